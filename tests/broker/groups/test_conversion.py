"""Classic members take part in consumer groups, and groups change their type with members."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from minibroker.broker.groups.classic_group import ClassicGroup
from minibroker.broker.groups.consumer_group import ConsumerGroup
from minibroker.broker.groups.consumer_records import ConsumerGroupRecord
from minibroker.broker.groups.consumer_state import ConsumerGroupState
from minibroker.broker.groups.conversion import (
    ConversionRejected,
    consumer_group_problem,
    consumer_group_records,
)
from minibroker.broker.groups.events import (
    HeartbeatReceived,
    HeartbeatResult,
    JoinRequested,
    JoinResult,
    LeaveRequested,
    LeaveResult,
    LeavingMember,
    SyncRequested,
    SyncResult,
)
from minibroker.broker.groups.group import ConsumerLimits, GroupLimits
from minibroker.broker.groups.membership import (
    ClassicMember,
    assigned_partitions,
    encode_assignment,
)
from minibroker.broker.groups.records import GroupEntry
from minibroker.broker.groups.states import GroupState
from minibroker_protocol.compiler import encode
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
)
from tests.broker.groups.consumer_play import ConsumerPlay, PlayedMember, topic_id

OK = ErrorCode.NONE


def subscription(*topics: str, owned: tuple[int, ...] = ()) -> bytes:
    message = ConsumerProtocolSubscription(
        topics=list(topics),
        owned_partitions=[TopicPartition(topic="t", partitions=list(owned))] if owned else [],
    )
    return b"\0\1" + encode(message, 1)


def classic_join(play: ConsumerPlay, member_id: str, *owned: int, **fields: Any) -> JoinResult:
    event = JoinRequested(
        member_id, 10_000, 20_000, "consumer", (("range", subscription("t", owned=owned)),)
    )
    result = play.handle(event._replace(**fields))
    assert isinstance(result, JoinResult)
    return result


def classic_sync(play: ConsumerPlay, member_id: str, generation: int) -> SyncResult:
    result = play.handle(SyncRequested(member_id, generation))
    assert isinstance(result, SyncResult)
    return result


def classic_beat(play: ConsumerPlay, member_id: str, generation: int) -> ErrorCode:
    result = play.handle(HeartbeatReceived(member_id, generation))
    assert isinstance(result, HeartbeatResult)
    return result.error


def test_classic_member_takes_part_in_a_consumer_group() -> None:
    play = ConsumerPlay(t=2)
    first = PlayedMember(play, "a", "t")
    first.beat()
    play.sleep(1)
    unknown = classic_join(play, "", require_known_member_id=True)
    assert unknown[:2] == (ErrorCode.MEMBER_ID_REQUIRED, "id1")
    joined = classic_join(play, "c")
    assert (joined.error, joined.generation, joined.protocol_name) == (OK, 3, "range")
    assert assigned_partitions(classic_sync(play, "c", 3).assignment) == ()
    assert classic_beat(play, "c", 3) is OK
    assert classic_beat(play, "c", 2) is ErrorCode.ILLEGAL_GENERATION
    assert classic_beat(play, "a", 2) is ErrorCode.UNKNOWN_MEMBER_ID
    first.beat()
    first.beat()
    assert classic_beat(play, "c", 3) is ErrorCode.REBALANCE_IN_PROGRESS
    again = classic_join(play, "c")
    [(topic, given)] = assigned_partitions(classic_sync(play, "c", again.generation).assignment)
    assert (topic, len(given)) == ("t", 1)
    assert len(first.partitions) == 1
    assert play.group.state_name == ConsumerGroupState.STABLE.value


def test_classic_member_that_does_not_sync_or_rejoin_is_removed() -> None:
    play = ConsumerPlay(t=2)
    first = PlayedMember(play, "a", "t")
    first.beat()
    classic_join(play, "c", session_timeout_ms=60_000)
    for _ in range(21):
        play.sleep(1)
        first.beat()
    assert list(play.group.data.members) == ["a"]


def test_group_becomes_classic_when_only_classic_members_are_left() -> None:
    play = ConsumerPlay(t=2)
    first = PlayedMember(play, "a", "t")
    first.beat()
    play.sleep(1)
    generation = classic_join(play, "c").generation
    classic_sync(play, "c", generation)
    assert play.beat("a", -1).error is OK
    assert play.replaced is not None
    group = play.replaced.group
    assert isinstance(group, ClassicGroup)
    assert [member.member_id for member in group.membership] == ["c"]
    assert [each.group_type for each in play.stored.records.values()] == ["classic"]
    group.handle(play.replaced.event, play.time)
    assert group.state is GroupState.PREPARING_REBALANCE


def test_static_classic_member_that_replaces_the_last_other_keeps_the_assignment() -> None:
    play = ConsumerPlay(t=2)
    play.join("a", "t", instance_id="s")
    play.sleep(1)
    joined = classic_join(play, "", group_instance_id="s")
    assert (joined.error, joined.generation) == (OK, 2)
    assert play.replaced is not None
    group = play.replaced.group
    assert isinstance(group, ClassicGroup)
    group.handle(play.replaced.event, play.time)
    assert (group.state, group.generation) == (GroupState.STABLE, 2)
    [member] = group.membership
    assert assigned_partitions(member.assignment) == (("t", (0, 1)),)


def test_disabled_migration_rejects_classic_members() -> None:
    limits = GroupLimits(consumer=ConsumerLimits(may_upgrade=False, may_downgrade=False))
    play = ConsumerPlay(limits, t=2)
    play.join("a", "t")
    assert classic_join(play, "c").error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_classic_members_with_other_protocols_are_rejected() -> None:
    play = ConsumerPlay(t=2)
    play.join("a", "t")
    classic_join(play, "c")
    other = (("roundrobin", subscription("t")),)
    assert classic_join(play, "d", protocols=other).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    broken = (("range", b"\0"),)
    assert classic_join(play, "d", protocols=broken).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_leave_requests_remove_members_of_both_kinds() -> None:
    play = ConsumerPlay(t=2)
    play.join("a", "t", instance_id="s")
    play.join("b", "t")
    leaving = (LeavingMember("", "s"), LeavingMember("x"), LeavingMember("y", "s"))
    result = play.handle(LeaveRequested(leaving))
    assert isinstance(result, LeaveResult)
    assert [error for _, error in result.members] == [
        OK,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
    ]
    assert list(play.group.data.members) == ["b"]


# From classic to consumer -------------------------------------------------------------------------


def classic_group(play: ConsumerPlay, assignment: bytes) -> ClassicGroup:
    group = ClassicGroup("g", play.limits, play.make_id, play.time)
    member = ClassicMember(
        member_id="c",
        group_instance_id="s",
        client_id="client",
        client_host="/h",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=20_000,
        protocols=(("range", subscription("t", "gone")),),
        assignment=assignment,
    )
    group.membership.add(member)
    group.generation, group.protocol_name, group.protocol_type = 7, "range", "consumer"
    group.state = GroupState.STABLE
    return group


def test_classic_members_keep_ids_partitions_and_generation() -> None:
    play = ConsumerPlay(t=3)
    group = classic_group(play, encode_assignment({"t": (0, 2), "gone": (1,)}))
    first, *records = consumer_group_records(group, play.image)
    assert first == GroupEntry("g", None)
    assert all(isinstance(record, ConsumerGroupRecord) for record in records)
    made = ConsumerGroup.restore("g", records, play.limits, play.make_id, play.time)
    assert (made.data.group_epoch, made.data.assignment_epoch) == (7, 7)
    member = made.data.members["c"]
    assert member.assigned == {topic_id("t"): {0: 7, 2: 7}}
    assert (member.member_epoch, member.instance_id) == (7, "s")
    assert member.topics == {"t", "gone"}
    assert member.classic is not None
    assert member.classic.session_timeout_ms == 10_000
    assert made.state is ConsumerGroupState.STABLE


def test_partition_that_a_classic_leader_invented_is_given_to_nobody() -> None:
    play = ConsumerPlay(t=3, other=1)
    group = classic_group(play, encode_assignment({"t": (0, 9)}))
    _, *records = consumer_group_records(group, play.image)
    for record in records:
        play.stored.apply(record)
    play.restart()
    PlayedMember(play, "new", "t", "other").beat()
    targets = [play.group.data.targets[name][topic_id("t")] for name in ("c", "new")]
    assert sorted(each for partitions in targets for each in partitions) == [0, 1, 2]


@pytest.mark.parametrize(
    ("assignment", "text"),
    [
        (b"\0", "the embedded consumer protocol is malformed."),
        (
            b"\0\0" + encode(ConsumerProtocolAssignment(user_data=b"x"), 0),
            "an unsupported custom assignor is in use.",
        ),
    ],
)
def test_group_with_an_assignment_of_its_own_stays_classic(assignment: bytes, text: str) -> None:
    play = ConsumerPlay(t=3)
    with pytest.raises(ConversionRejected, match=text):
        consumer_group_records(classic_group(play, assignment), play.image)


def test_reasons_to_stay_classic_are_kafka_s() -> None:
    play = ConsumerPlay(t=3)
    group = classic_group(play, b"")
    assert consumer_group_problem(group) == ""
    text = "Cannot upgrade classic group g to consumer group because "
    group.limits = replace(play.limits, consumer=ConsumerLimits(members_max=0))
    assert consumer_group_problem(group) == (
        f"{text}the group size exceeds the consumer group maximum size."
    )
    group.protocol_type = "connect"
    assert consumer_group_problem(group) == (
        f"{text}the group does not use the consumer embedded protocol."
    )
    group.limits = replace(play.limits, consumer=ConsumerLimits(may_upgrade=False))
    assert consumer_group_problem(group) == f"{text}online upgrade is disabled."
