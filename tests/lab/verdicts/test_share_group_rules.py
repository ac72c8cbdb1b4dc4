"""Members of share groups that join again, open sessions and acknowledge, or do not."""

from __future__ import annotations

import pytest

from minibroker.lab.verdicts.judging import RuleOutcome
from minibroker_protocol.errors import ErrorCode
from tests.lab.verdicts.group_messages import get_metadata
from tests.lab.verdicts.share_messages import LOCK_MS, acknowledge, beat_share, fetch_share
from tests.lab.verdicts.written import WrittenJournal

REJOINS, SESSIONS = "share-rejoins-after-fence", "reopens-share-session"
ACQUIRED, IN_TIME = "acknowledges-acquired", "acknowledges-in-time"
ACCEPT, RELEASE, RENEW = 1, 2, 4
FENCES = [ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID]
SESSION_ERRORS = [ErrorCode.SHARE_SESSION_NOT_FOUND, ErrorCode.INVALID_SHARE_SESSION_EPOCH]


@pytest.fixture
def journal() -> WrittenJournal:
    journal = WrittenJournal()
    journal.open("1")
    get_metadata(journal, "1")
    return journal


def test_member_without_these_situations_is_not_observed(journal: WrittenJournal) -> None:
    beat_share(journal, "1", epoch=0)
    fetch_share(journal, "1", (0, 4), epoch=0)
    for rule in (REJOINS, SESSIONS, ACQUIRED, IN_TIME):
        assert journal.verdict(rule).outcome is RuleOutcome.NOT_OBSERVED


# Joining again ------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", FENCES)
def test_fenced_member_that_joins_again_is_kept(journal: WrittenJournal, error: ErrorCode) -> None:
    beat_share(journal, "1", error_code=error)
    beat_share(journal, "1", epoch=0)
    assert journal.verdict(REJOINS).outcome is RuleOutcome.KEPT


def test_fenced_member_that_goes_on_in_its_epoch_is_found(journal: WrittenJournal) -> None:
    beat_share(journal, "1", error_code=ErrorCode.FENCED_MEMBER_EPOCH)
    journal.now += 199
    beat_share(journal, "1", epoch=1)
    assert journal.findings(REJOINS) == [
        "sent a heartbeat as member m of group s in epoch 1, 199 ms after FENCED_MEMBER_EPOCH"
    ]


def test_fenced_member_may_leave_or_have_a_heartbeat_under_way(journal: WrittenJournal) -> None:
    beat_share(journal, "1", error_code=ErrorCode.FENCED_MEMBER_EPOCH)
    journal.open("2")
    beat_share(journal, "2", epoch=1)
    beat_share(journal, "1", epoch=-1)
    assert journal.verdict(REJOINS).outcome is RuleOutcome.NOT_OBSERVED


# Sessions -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", SESSION_ERRORS)
def test_new_session_after_an_error_is_kept(journal: WrittenJournal, error: ErrorCode) -> None:
    fetch_share(journal, "1", error_code=error)
    fetch_share(journal, "1", epoch=0)
    assert journal.verdict(SESSIONS).outcome is RuleOutcome.KEPT


@pytest.mark.parametrize("error", SESSION_ERRORS)
def test_session_that_goes_on_after_an_error_is_found(
    journal: WrittenJournal, error: ErrorCode
) -> None:
    fetch_share(journal, "1", error_code=error)
    journal.now += 49
    acknowledge(journal, "1", (0, 0, ACCEPT), epoch=2)
    [text] = journal.findings(SESSIONS)
    assert text == (
        "sent ShareAcknowledge v2 as member m of group s in epoch 2 of its session, 49 ms after "
        f"{error.name}"
    )


# Acquired records ---------------------------------------------------------------------------------


def test_acknowledgements_of_acquired_records_are_kept(journal: WrittenJournal) -> None:
    fetch_share(journal, "1", (0, 4), (6, 9), epoch=0)
    acknowledge(journal, "1", (0, 2, ACCEPT), (6, 6, RELEASE))
    fetch_share(journal, "1", (6, 6), epoch=2, batches=[(3, 4, ACCEPT)])
    acknowledge(journal, "1", (6, 9, ACCEPT), epoch=3)
    assert journal.findings(ACQUIRED) == []
    assert journal.verdict(ACQUIRED).situations == 3


def test_acknowledgement_of_other_records_is_found(journal: WrittenJournal) -> None:
    fetch_share(journal, "1", (2, 4), epoch=0)
    acknowledge(journal, "1", (0, 4, ACCEPT))
    acknowledge(journal, "1", (7, 7, ACCEPT), epoch=2)
    assert journal.findings(ACQUIRED) == [
        "acknowledged offsets 0 to 1 of t-0 as member m of group s, which it does not have",
        "acknowledged offset 7 of t-0 as member m of group s, which it does not have",
    ]


def test_second_acknowledgement_of_a_record_is_found(journal: WrittenJournal) -> None:
    fetch_share(journal, "1", (0, 4), epoch=0)
    acknowledge(journal, "1", (0, 4, RELEASE))
    fetch_share(journal, "1", epoch=2, batches=[(3, 4, ACCEPT)])
    assert journal.findings(ACQUIRED) == [
        "acknowledged offsets 3 to 4 of t-0 as member m of group s, which it does not have"
    ]


def test_renewed_records_and_those_of_a_failed_acknowledgement_are_acknowledged_again(
    journal: WrittenJournal,
) -> None:
    fetch_share(journal, "1", (0, 4), epoch=0)
    acknowledge(journal, "1", (0, 4, RENEW))
    error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    acknowledge(journal, "1", (0, 4, ACCEPT), epoch=2, error_code=error)
    fetch_share(journal, "1", epoch=3, batches=[(0, 4, ACCEPT)], acknowledge_error_code=error)
    acknowledge(journal, "1", (0, 4, ACCEPT), epoch=4)
    assert journal.findings(ACQUIRED) == []
    acknowledge(journal, "1", (0, 4, ACCEPT), epoch=5)
    assert len(journal.findings(ACQUIRED)) == 1


def test_records_of_an_earlier_session_are_not_held(journal: WrittenJournal) -> None:
    fetch_share(journal, "1", (0, 4), epoch=0)
    fetch_share(journal, "1", epoch=0)
    acknowledge(journal, "1", (0, 4, ACCEPT))
    assert len(journal.findings(ACQUIRED)) == 1


def test_session_from_before_the_journal_is_not_judged(journal: WrittenJournal) -> None:
    fetch_share(journal, "1", (0, 4), epoch=5)
    acknowledge(journal, "1", (7, 9, ACCEPT), epoch=6)
    assert journal.verdict(ACQUIRED).outcome is RuleOutcome.NOT_OBSERVED


# Locks --------------------------------------------------------------------------------------------


def test_acknowledgement_within_the_lock_is_kept(journal: WrittenJournal) -> None:
    fetch_share(journal, "1", (0, 4), epoch=0)
    journal.now += LOCK_MS
    acknowledge(journal, "1", (0, 4, RENEW))
    journal.now += LOCK_MS
    acknowledge(journal, "1", (0, 4, ACCEPT), epoch=2)
    assert journal.findings(IN_TIME) == []
    assert journal.verdict(IN_TIME).situations == 2


def test_acknowledgement_after_the_lock_is_found(journal: WrittenJournal) -> None:
    fetch_share(journal, "1", (0, 4), epoch=0)
    journal.now += LOCK_MS + 1000
    acknowledge(journal, "1", (0, 4, ACCEPT))
    [text] = journal.findings(IN_TIME)
    assert text == (
        "acknowledged records of t-0 as member m of group s 31.0 s after it got them, and its "
        "locks last 30.0 s"
    )


def test_lock_during_which_the_clock_was_moved_is_not_judged(journal: WrittenJournal) -> None:
    fetch_share(journal, "1", (0, 4), epoch=0)
    journal.clock(advance_ms=60_000)
    journal.now += 60_000
    acknowledge(journal, "1", (0, 4, ACCEPT))
    assert journal.verdict(IN_TIME).outcome is RuleOutcome.NOT_OBSERVED
