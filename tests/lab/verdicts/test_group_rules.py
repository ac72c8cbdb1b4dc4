from __future__ import annotations

import pytest

from minibroker.lab.verdicts.judging import RuleOutcome
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.fetch import FetchRequest, FetchResponse
from tests.lab.verdicts.group_messages import (
    INTERVAL_MS,
    SESSION_MS,
    beat,
    beat_848,
    beat_1071,
    commit,
    join,
    leave,
)
from tests.lab.verdicts.written import WrittenJournal


@pytest.fixture
def journal() -> WrittenJournal:
    journal = WrittenJournal()
    journal.open("1")
    return journal


# Heartbeats ---------------------------------------------------------------------------------------


def test_heartbeats_within_the_session_timeout_are_kept(journal: WrittenJournal) -> None:
    join(journal, "1", 0)
    for _ in range(3):
        journal.now += SESSION_MS / 2
        beat(journal, "1")
    assert journal.findings("heartbeats") == []


def test_heartbeat_after_the_session_timeout_is_found(journal: WrittenJournal) -> None:
    join(journal, "1", 0)
    journal.now += SESSION_MS + 1000
    beat(journal, "1")
    [text] = journal.findings("heartbeats")
    assert "sent nothing to the coordinator for 7000 ms" in text


@pytest.mark.parametrize("quiet_intervals", [1, 5])
def test_heartbeats_of_streams_members_are_due_at_their_interval(
    journal: WrittenJournal, quiet_intervals: int
) -> None:
    beat_1071(journal, "1", epoch=0, owned=[], assigned=[0])
    for _ in range(2):
        journal.now += INTERVAL_MS * quiet_intervals
        beat_1071(journal, "1")
    assert len(journal.findings("heartbeats")) == (2 if quiet_intervals > 2 else 0)


def test_member_that_falls_silent_while_it_fetches_is_found(journal: WrittenJournal) -> None:
    journal.open("2")
    join(journal, "1", 0)
    for _ in range(4):
        journal.now += SESSION_MS / 2
        journal.ask("2", FetchRequest(), 11, FetchResponse())
    assert len(journal.findings("heartbeats")) == 1


def test_commits_keep_a_member_alive(journal: WrittenJournal) -> None:
    join(journal, "1", 0)
    for _ in range(4):
        journal.now += SESSION_MS / 2
        commit(journal, "1", 0)
    beat(journal, "1")
    assert journal.findings("heartbeats") == []


def test_client_that_could_not_connect_is_not_late(journal: WrittenJournal) -> None:
    join(journal, "1", 0)
    journal.close("1")
    journal.now += SESSION_MS
    journal.refuse("2")
    journal.now += 1000
    journal.open("3")
    beat(journal, "3", error_code=ErrorCode.UNKNOWN_MEMBER_ID)
    join(journal, "3", 0)
    beat(journal, "3")
    assert journal.findings("heartbeats") == []


def test_client_that_the_broker_disconnected_is_not_late(journal: WrittenJournal) -> None:
    join(journal, "1", 0)
    beat(journal, "1")
    journal.close("1", "fault_rule")
    journal.now += SESSION_MS + 1000
    journal.open("2")
    beat(journal, "2")
    assert journal.findings("heartbeats") == []


def test_moved_clock_does_not_make_a_heartbeat_late(journal: WrittenJournal) -> None:
    join(journal, "1", 0)
    journal.clock()
    journal.now += SESSION_MS + 1000
    beat(journal, "1")
    journal.now += SESSION_MS / 2
    beat(journal, "1")
    assert journal.findings("heartbeats") == []


def test_member_that_left_owes_no_heartbeat(journal: WrittenJournal) -> None:
    journal.open("2")
    join(journal, "1", 0)
    beat(journal, "1")
    leave(journal, "1")
    journal.now += 2 * SESSION_MS
    journal.ask("2", FetchRequest(), 11, FetchResponse())
    assert journal.findings("heartbeats") == []


def test_late_heartbeat_is_found_with_kip_848(journal: WrittenJournal) -> None:
    beat_848(journal, "1", epoch=0, owned=[], assigned=[0])
    journal.now += INTERVAL_MS
    beat_848(journal, "1")
    assert journal.findings("heartbeats") == []
    journal.now += 3 * INTERVAL_MS
    beat_848(journal, "1")
    [text] = journal.findings("heartbeats")
    assert "for 15.0 s" in text


# Leaving ------------------------------------------------------------------------------------------


def test_client_that_leaves_before_it_closes_is_kept(journal: WrittenJournal) -> None:
    join(journal, "1", 0)
    leave(journal, "1")
    journal.close("1")
    assert journal.findings("leaves-group") == []


def test_client_that_closes_without_leaving_is_found(journal: WrittenJournal) -> None:
    join(journal, "1", 0)
    journal.close("1")
    assert journal.findings("leaves-group") == ["closed its connection as member m of group g"]


def test_leaving_with_kip_848_is_kept(journal: WrittenJournal) -> None:
    beat_848(journal, "1", epoch=0, owned=[], assigned=[0])
    beat_848(journal, "1", epoch=-1)
    journal.close("1")
    assert journal.findings("leaves-group") == []


@pytest.mark.parametrize("reason", ["fault_rule", "stopping"])
def test_client_that_the_broker_disconnected_is_no_situation(
    journal: WrittenJournal, reason: str
) -> None:
    join(journal, "1", 0)
    journal.close("1", reason)
    assert journal.verdict("leaves-group").outcome is RuleOutcome.NOT_OBSERVED


def test_member_that_expired_before_the_close_is_no_situation(journal: WrittenJournal) -> None:
    join(journal, "1", 0)
    journal.now += 2 * SESSION_MS
    journal.close("1")
    assert journal.verdict("leaves-group").outcome is RuleOutcome.NOT_OBSERVED


def test_member_that_joins_on_another_connection_is_no_situation(journal: WrittenJournal) -> None:
    join(journal, "1", 0)
    journal.close("1")
    journal.open("2")
    join(journal, "2", 0, generation=2)
    assert journal.verdict("leaves-group").outcome is RuleOutcome.NOT_OBSERVED


def test_static_member_need_not_leave(journal: WrittenJournal) -> None:
    join(journal, "1", 0, instance="i")
    journal.close("1")
    assert journal.verdict("leaves-group").outcome is RuleOutcome.NOT_OBSERVED
