from __future__ import annotations

import pytest

from minibroker.lab.journal.entries import JournalEntry
from minibroker.lab.verdicts.commit_rules import IN_FLIGHT_MS
from minibroker.lab.verdicts.judging import RuleOutcome
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from minibroker_protocol.messages.join_group import JoinGroupRequest
from tests.lab.verdicts.group_messages import (
    GROUP,
    MEMBER,
    SESSION_MS,
    beat,
    beat_848,
    commit,
    get_metadata,
    join,
)
from tests.lab.verdicts.written import WrittenJournal


@pytest.fixture
def journal() -> WrittenJournal:
    journal = WrittenJournal()
    journal.open("1")
    return journal


# Commits ------------------------------------------------------------------------------------------


def test_commit_of_a_partition_that_was_assigned_away_is_found(journal: WrittenJournal) -> None:
    join(journal, "1", 0, 1)
    join(journal, "1", 0, generation=2)
    journal.now += IN_FLIGHT_MS + 50
    commit(journal, "1", 0, 1, generation=2)
    [text] = journal.findings("commit-ownership")
    assert "committed an offset of t-1 as member m of group g, 550 ms after an assignment" in text


def test_commit_of_partitions_that_stayed_is_kept(journal: WrittenJournal) -> None:
    join(journal, "1", 0, 1)
    join(journal, "1", 0, generation=2)
    journal.now += IN_FLIGHT_MS + 50
    commit(journal, "1", 0, generation=2)
    assert journal.findings("commit-ownership") == []


def test_commit_that_was_in_flight_at_the_loss_is_kept(journal: WrittenJournal) -> None:
    join(journal, "1", 0, 1)
    join(journal, "1", 0, generation=2)
    commit(journal, "2", 1, generation=1)
    assert journal.findings("commit-ownership") == []


def test_commit_right_after_a_loss_is_found_if_the_member_knew(journal: WrittenJournal) -> None:
    """It joined again on the same connection, so it had read the error."""
    join(journal, "1", 0)
    beat(journal, "1", error_code=ErrorCode.UNKNOWN_MEMBER_ID)
    join(journal, "1", 0, member="m-2")
    commit(journal, "1", 0)
    [text] = journal.findings("commit-ownership")
    assert "after UNKNOWN_MEMBER_ID" in text


def test_commit_right_after_a_loss_may_be_in_flight(journal: WrittenJournal) -> None:
    join(journal, "1", 0)
    beat(journal, "1", error_code=ErrorCode.UNKNOWN_MEMBER_ID)
    commit(journal, "1", 0)
    join(journal, "1", 0, member="m-2")
    assert journal.findings("commit-ownership") == []


def test_commit_in_the_new_generation_right_after_a_loss_is_found(journal: WrittenJournal) -> None:
    """A member of an eager group gave up all partitions before it joined."""
    join(journal, "1", 0, 1, protocol="range")
    join(journal, "1", 0, generation=2, protocol="range")
    commit(journal, "2", 1, generation=2)
    [text] = journal.findings("commit-ownership")
    assert "committed an offset of t-1 as member m of group g" in text


def test_cooperative_member_keeps_its_partitions_until_it_joins_again(
    journal: WrittenJournal,
) -> None:
    """KIP-429: it commits the revoked partitions, and then joins again."""
    join(journal, "1", 0, 1, protocol="cooperative-sticky")
    join(journal, "1", 0, generation=2, protocol="cooperative-sticky")
    journal.now += IN_FLIGHT_MS + 50
    commit(journal, "1", 0, 1, generation=2)
    join(journal, "1", 0, generation=3, protocol="cooperative-sticky")
    assert journal.findings("commit-ownership") == []
    commit(journal, "1", 1, generation=3)
    assert len(journal.findings("commit-ownership")) == 1


def test_commit_in_an_old_generation_is_found_though_the_partitions_stayed(
    journal: WrittenJournal,
) -> None:
    join(journal, "1", 0)
    join(journal, "1", 0, generation=2)
    commit(journal, "1", 0, generation=1)
    [text] = journal.findings("commit-ownership")
    assert text == (
        "committed offsets as member m of group g in generation 1, 1 ms after it sent SyncGroup v5 "
        "in generation 2"
    )


def test_commit_in_an_old_generation_on_another_connection_is_found_later(
    journal: WrittenJournal,
) -> None:
    join(journal, "1", 0)
    join(journal, "1", 0, generation=2)
    commit(journal, "2", 0, generation=1)
    assert journal.verdict("commit-ownership").broken == 0
    journal.now += IN_FLIGHT_MS
    commit(journal, "2", 0, generation=1)
    assert len(journal.findings("commit-ownership")) == 1


def test_commit_of_a_partition_that_was_never_assigned_is_found(journal: WrittenJournal) -> None:
    join(journal, "1", 0)
    commit(journal, "1", 0, 3)
    assert journal.findings("commit-ownership") == [
        "committed an offset of t-3 as member m of group g, which was never assigned to it"
    ]


def test_assignments_before_the_journal_are_unknown(journal: WrittenJournal) -> None:
    beat(journal, "1")
    join(journal, "1", 0, generation=2)
    commit(journal, "1", 0, 3, generation=2)
    assert journal.verdict("commit-ownership").outcome is RuleOutcome.NOT_OBSERVED


def test_commit_before_any_loss_is_no_situation(journal: WrittenJournal) -> None:
    join(journal, "1", 0, 1)
    commit(journal, "1", 0, 1)
    join(journal, "1", 0, 1, 2, generation=2)
    commit(journal, "1", 2, generation=2)
    assert journal.verdict("commit-ownership").outcome is RuleOutcome.NOT_OBSERVED


@pytest.mark.parametrize("error", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION])
def test_commit_after_a_lost_membership_is_found(journal: WrittenJournal, error: ErrorCode) -> None:
    join(journal, "1", 0)
    beat(journal, "1", error_code=error)
    journal.now += 600
    commit(journal, "1", 0, error_code=error)
    [text] = journal.findings("commit-ownership")
    assert f"600 ms after {error.name}" in text


def test_commit_after_joining_again_is_kept(journal: WrittenJournal) -> None:
    join(journal, "1", 0)
    beat(journal, "1", error_code=ErrorCode.ILLEGAL_GENERATION)
    join(journal, "1", 0, generation=3)
    journal.now += 600
    commit(journal, "1", 0, generation=3)
    assert journal.findings("commit-ownership") == []


def test_commit_of_a_reported_revocation_is_found_with_kip_848(journal: WrittenJournal) -> None:
    get_metadata(journal, "1")
    beat_848(journal, "1", epoch=0, owned=[], assigned=[0, 1])
    beat_848(journal, "1", owned=[0, 1])
    beat_848(journal, "1", assigned=[0])
    journal.now += 600
    commit(journal, "1", 1)  # Still owned: it has not reported the revocation.
    beat_848(journal, "1", owned=[0])
    assert journal.findings("commit-ownership") == []
    journal.now += 600
    commit(journal, "1", 1)
    assert len(journal.findings("commit-ownership")) == 1


def test_unknown_topic_id_proves_nothing(journal: WrittenJournal) -> None:
    beat_848(journal, "1", epoch=0, owned=[], assigned=[0, 1])
    beat_848(journal, "1", owned=[0], assigned=[0])
    journal.now += 600
    commit(journal, "1", 1)
    assert journal.verdict("commit-ownership").outcome is RuleOutcome.NOT_OBSERVED


# Commits while joining ----------------------------------------------------------------------------

JOINING = "commit-while-joining"


def ask_to_join(journal: WrittenJournal, connection: str) -> JournalEntry:
    request = JoinGroupRequest(
        group_id=GROUP, session_timeout_ms=SESSION_MS, member_id=MEMBER, protocol_type="consumer"
    )
    return journal.send(connection, request, 7)


def test_commit_before_joining_again_is_kept(journal: WrittenJournal) -> None:
    join(journal, "1", 0)
    beat(journal, "1", error_code=ErrorCode.REBALANCE_IN_PROGRESS)
    commit(journal, "1", 0)
    join(journal, "1", 0, generation=2)
    commit(journal, "1", 0, generation=2)
    assert journal.findings(JOINING) == []


def test_commit_while_joining_again_is_found(journal: WrittenJournal) -> None:
    join(journal, "1", 0)
    ask_to_join(journal, "1")
    commit(journal, "1", 0)
    join(journal, "1", 0, generation=2)
    [text] = journal.findings(JOINING)
    assert text == (
        "committed offsets as member m of group g in generation 1 after JoinGroup v7 and before "
        "its assignment"
    )


def test_commit_on_another_connection_may_be_older_than_the_request_to_join(
    journal: WrittenJournal,
) -> None:
    join(journal, "1", 0)
    ask_to_join(journal, "1")
    commit(journal, "2", 0)
    join(journal, "1", 0, generation=2)
    assert journal.findings(JOINING) == []


def test_member_that_joins_once_is_no_situation(journal: WrittenJournal) -> None:
    join(journal, "1", 0)
    commit(journal, "1", 0)
    assert journal.verdict(JOINING).outcome is RuleOutcome.NOT_OBSERVED


def test_commit_while_a_member_of_a_consumer_group_joins_again_is_found(
    journal: WrittenJournal,
) -> None:
    get_metadata(journal, "1")
    beat_848(journal, "1", epoch=0, owned=[], assigned=[0])
    beat_848(journal, "1", owned=[0], error_code=ErrorCode.FENCED_MEMBER_EPOCH)
    request = ConsumerGroupHeartbeatRequest(
        group_id=GROUP, member_id=MEMBER, member_epoch=0, topic_partitions=[]
    )
    journal.send("1", request, 0)
    commit(journal, "1", 0)
    beat_848(journal, "1", epoch=0, owned=[], assigned=[0])
    [text] = journal.findings(JOINING)
    assert text.startswith(
        "committed offsets as member m of group g in generation 1 after Consumer"
    )


def test_member_of_a_consumer_group_that_has_joined_again_may_commit(
    journal: WrittenJournal,
) -> None:
    get_metadata(journal, "1")
    beat_848(journal, "1", epoch=0, owned=[], assigned=[0])
    beat_848(journal, "1", owned=[0], error_code=ErrorCode.FENCED_MEMBER_EPOCH)
    beat_848(journal, "1", epoch=0, owned=[], assigned=[0])
    commit(journal, "1", 0)
    assert journal.findings(JOINING) == []
