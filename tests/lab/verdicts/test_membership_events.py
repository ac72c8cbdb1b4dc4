from __future__ import annotations

from minibroker.lab.verdicts.membership_events import MembershipStep, membership_events, topic_names
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from minibroker_protocol.types import uuid_text
from tests.lab.verdicts.group_messages import (
    GROUP,
    INTERVAL_MS,
    MEMBER,
    SESSION_MS,
    TOPIC_ID,
    beat,
    beat_848,
    commit,
    get_metadata,
    join,
    leave,
)
from tests.lab.verdicts.written import WrittenJournal


def steps(journal: WrittenJournal) -> list[MembershipStep]:
    return [event.step for event in membership_events(journal.traffic)]


def test_classic_membership_has_its_steps_in_order() -> None:
    journal = WrittenJournal()
    join(journal, "1", 0, 2)
    commit(journal, "1", 2)
    leave(journal, "1")
    events = membership_events(journal.traffic)
    assert [event.step for event in events] == [
        MembershipStep.KEPT_ALIVE,
        MembershipStep.JOINED,
        MembershipStep.KEPT_ALIVE,
        MembershipStep.ASSIGNED,
        MembershipStep.COMMITTED,
        MembershipStep.LEFT,
    ]
    assert {event.member for event in events} == {(GROUP, MEMBER)}
    assert events[1].interval_ms == SESSION_MS
    assert events[3].partitions == frozenset({"t-0", "t-2"})
    assert events[4].partitions == frozenset({"t-2"})


def test_error_that_ends_a_membership_is_a_loss() -> None:
    journal = WrittenJournal()
    join(journal, "1", 0)
    beat(journal, "1", error_code=ErrorCode.REBALANCE_IN_PROGRESS)
    beat(journal, "1", error_code=ErrorCode.UNKNOWN_MEMBER_ID)
    assert steps(journal)[-3:] == [
        MembershipStep.KEPT_ALIVE,
        MembershipStep.KEPT_ALIVE,
        MembershipStep.LOST,
    ]


def test_kip_848_membership_has_names_of_topic_ids() -> None:
    journal = WrittenJournal()
    get_metadata(journal, "1")
    beat_848(journal, "1", epoch=0, owned=[], assigned=[1])
    beat_848(journal, "1", epoch=-1)
    events = membership_events(journal.traffic)
    assert [event.step for event in events] == [
        MembershipStep.KEPT_ALIVE,
        MembershipStep.REPORTED,
        MembershipStep.JOINED,
        MembershipStep.ASSIGNED,
        MembershipStep.LEFT,
    ]
    assert events[2].interval_ms == INTERVAL_MS
    assert events[3].partitions == frozenset({"t-1"})
    assert topic_names(journal.traffic) == {uuid_text(TOPIC_ID): "t"}


def test_assignment_of_another_protocol_is_unknown() -> None:
    journal = WrittenJournal()
    request = SyncGroupRequest(group_id=GROUP, generation_id=1, member_id=MEMBER)
    journal.ask("1", request, 5, SyncGroupResponse(assignment=b"\0\0\xff"))
    [_, assigned] = membership_events(journal.traffic)
    assert (assigned.step, assigned.partitions) == (MembershipStep.ASSIGNED, None)
