"""Members of consumer groups (KIP-848) that join again, report and acknowledge, or do not."""

from __future__ import annotations

import pytest

from minibroker.lab.verdicts.judging import RuleOutcome
from minibroker_protocol.errors import ErrorCode
from tests.lab.verdicts.group_messages import beat_848, beat_1071, get_metadata
from tests.lab.verdicts.written import WrittenJournal

REJOINS, REPORTS = "rejoins-after-fence", "reports-assignment"
TIMEOUT_MS = 60_000


@pytest.fixture
def journal() -> WrittenJournal:
    journal = WrittenJournal()
    journal.open("1")
    get_metadata(journal, "1")
    return journal


def join(journal: WrittenJournal, *partitions: int) -> None:
    assigned = list(partitions)
    beat_848(journal, "1", epoch=0, owned=[], assigned=assigned, timeout_ms=TIMEOUT_MS)


def fence(journal: WrittenJournal, error: ErrorCode = ErrorCode.FENCED_MEMBER_EPOCH) -> None:
    beat_848(journal, "1", error_code=error)


# Joining again ------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID])
def test_fenced_member_that_joins_again_without_partitions_is_kept(
    journal: WrittenJournal, error: ErrorCode
) -> None:
    join(journal, 0)
    fence(journal, error)
    join(journal, 0)
    assert journal.findings(REJOINS) == []


def test_fenced_member_that_goes_on_in_its_epoch_is_found(journal: WrittenJournal) -> None:
    join(journal, 0)
    fence(journal)
    journal.now += 200
    beat_848(journal, "1", epoch=1)
    assert journal.findings(REJOINS) == [
        "sent a heartbeat as member m of group g in epoch 1, 200 ms after FENCED_MEMBER_EPOCH"
    ]


def test_fenced_member_that_keeps_its_partitions_is_found(journal: WrittenJournal) -> None:
    join(journal, 0, 1)
    fence(journal)
    beat_848(journal, "1", epoch=0, owned=[0, 1])
    [text] = journal.findings(REJOINS)
    assert text == (
        "joined as member m of group g with 2 partitions that it had, 0 ms after "
        "FENCED_MEMBER_EPOCH"
    )


def test_fenced_member_may_leave(journal: WrittenJournal) -> None:
    join(journal, 0)
    fence(journal)
    beat_848(journal, "1", epoch=-1)
    assert journal.verdict(REJOINS).outcome is RuleOutcome.NOT_OBSERVED


def test_heartbeat_on_another_connection_may_be_older_than_the_fence(
    journal: WrittenJournal,
) -> None:
    journal.open("2")
    join(journal, 0)
    fence(journal)
    journal.now += 100
    beat_848(journal, "2", epoch=1)
    join(journal, 0)
    assert journal.findings(REJOINS) == []
    fence(journal)
    journal.now += 600
    beat_848(journal, "2", epoch=1)
    assert len(journal.findings(REJOINS)) == 1


def test_error_to_a_join_is_no_fence(journal: WrittenJournal) -> None:
    beat_848(journal, "1", epoch=0, owned=[], error_code=ErrorCode.UNKNOWN_MEMBER_ID)
    beat_848(journal, "1", epoch=1)
    assert journal.verdict(REJOINS).outcome is RuleOutcome.NOT_OBSERVED


def test_fenced_member_of_a_streams_group_gives_up_its_tasks(journal: WrittenJournal) -> None:
    beat_1071(journal, "1", epoch=0, owned=[], assigned=[0, 1])
    beat_1071(journal, "1", error_code=ErrorCode.FENCED_MEMBER_EPOCH)
    beat_1071(journal, "1", epoch=0, owned=[])
    assert journal.findings(REJOINS) == []
    assert journal.verdict(REJOINS).situations == 1
    beat_1071(journal, "1", error_code=ErrorCode.FENCED_MEMBER_EPOCH)
    beat_1071(journal, "1", epoch=0, owned=[0, 1])
    [text] = journal.findings(REJOINS)
    assert text == (
        "joined as member m of group g with 2 tasks that it had, 0 ms after FENCED_MEMBER_EPOCH"
    )


# Reporting an assignment --------------------------------------------------------------------------


def test_reported_assignments_are_kept(journal: WrittenJournal) -> None:
    join(journal, 0, 1)
    beat_848(journal, "1", owned=[0, 1])
    beat_848(journal, "1", assigned=[0])
    beat_848(journal, "1")
    beat_848(journal, "1", owned=[0])
    assert journal.findings(REPORTS) == []
    assert journal.verdict(REPORTS).situations == 2


def test_report_of_a_partition_that_was_never_assigned_is_found(journal: WrittenJournal) -> None:
    join(journal, 0)
    beat_848(journal, "1", owned=[0, 3])
    assert journal.findings(REPORTS) == [
        "reported t-3 as member m of group g, which was not assigned to it"
    ]


def test_report_of_a_partition_that_was_given_up_is_found(journal: WrittenJournal) -> None:
    join(journal, 0, 1)
    beat_848(journal, "1", owned=[0, 1], assigned=[0])
    beat_848(journal, "1", owned=[0])
    beat_848(journal, "1", owned=[0, 1])
    assert journal.findings(REPORTS) == [
        "reported t-1 as member m of group g, which was not assigned to it"
    ]


def test_assignment_that_is_never_reported_is_found(journal: WrittenJournal) -> None:
    join(journal, 0, 1)
    beat_848(journal, "1", owned=[0, 1], assigned=[0])
    for _ in range(2):
        journal.now += 32_500
        beat_848(journal, "1", owned=[0, 1])
    [text] = journal.findings(REPORTS)
    assert text == (
        "has not reported its assignment as member m of group g after 65.0 s, and its rebalance "
        "timeout is 60.0 s"
    )


def test_clock_that_was_moved_makes_no_report_late(journal: WrittenJournal) -> None:
    join(journal, 0)
    journal.now += 100_000
    journal.clock(advanced_ms=100_000)
    beat_848(journal, "1")
    assert journal.verdict(REPORTS).outcome is RuleOutcome.NOT_OBSERVED


def test_new_assignment_takes_the_place_of_one_that_was_not_reported(
    journal: WrittenJournal,
) -> None:
    join(journal, 0)
    beat_848(journal, "1", owned=[0], assigned=[0, 1])
    beat_848(journal, "1", assigned=[0])
    journal.now += 100_000
    beat_848(journal, "1", owned=[0])
    assert journal.findings(REPORTS) == []


def test_member_that_was_fenced_reports_nothing(journal: WrittenJournal) -> None:
    join(journal, 0)
    fence(journal)
    journal.now += 100_000
    beat_848(journal, "1", owned=[5])
    assert journal.verdict(REPORTS).outcome is RuleOutcome.NOT_OBSERVED


def test_member_whose_join_is_not_in_the_journal_proves_nothing(journal: WrittenJournal) -> None:
    beat_848(journal, "1", assigned=[0])
    beat_848(journal, "1", owned=[0, 7])
    assert journal.verdict(REPORTS).outcome is RuleOutcome.NOT_OBSERVED


def test_topic_that_the_client_does_not_know_need_not_be_reported() -> None:
    journal = WrittenJournal()
    journal.open("1")
    join(journal, 0)
    journal.now += 100_000
    beat_848(journal, "1")
    assert journal.verdict(REPORTS).outcome is RuleOutcome.NOT_OBSERVED
