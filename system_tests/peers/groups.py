"""Groups: members that join, leave and are late, offsets, and their errors."""

from __future__ import annotations

from typing import Any, Final

from minibroker_protocol.messages.delete_groups import DeleteGroupsRequest
from minibroker_protocol.messages.describe_groups import DescribeGroupsRequest
from minibroker_protocol.messages.find_coordinator import FindCoordinatorRequest
from minibroker_protocol.messages.heartbeat import HeartbeatRequest
from minibroker_protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from minibroker_protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from minibroker_protocol.messages.list_groups import ListGroupsRequest
from minibroker_protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from minibroker_protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from minibroker_protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from minibroker_protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from system_tests.peers.conversation import SendRequest
from system_tests.peers.topics import create, topic

SESSION_MS: Final = 30_000


def join(group: str, member: str = "", **options: Any) -> JoinGroupRequest:
    names = options.pop("protocols", ("range",))
    values: dict[str, Any] = {
        "session_timeout_ms": SESSION_MS,
        "rebalance_timeout_ms": SESSION_MS,
        "protocol_type": "consumer",
        "protocols": [JoinGroupRequestProtocol(name=name, metadata=b"m") for name in names],
        **options,
    }
    return JoinGroupRequest(group_id=group, member_id=member, **values)


def sync(group: str, member: str, generation: int, **options: Any) -> SyncGroupRequest:
    assignments = [SyncGroupRequestAssignment(member_id=member, assignment=b"a")]
    return SyncGroupRequest(
        group_id=group,
        member_id=member,
        generation_id=generation,
        assignments=assignments,
        **{"protocol_type": "consumer", "protocol_name": "range", **options},
    )


def heartbeat(
    group: str, member: str, generation: int, instance: str | None = None
) -> HeartbeatRequest:
    return HeartbeatRequest(
        group_id=group, member_id=member, generation_id=generation, group_instance_id=instance
    )


def leave(group: str, *members: tuple[str, str | None]) -> LeaveGroupRequest:
    """By their ids and instances; before version 3 only the first leaves."""
    identities = [
        MemberIdentity(member_id=member, group_instance_id=instance) for member, instance in members
    ]
    return LeaveGroupRequest(group_id=group, member_id=members[0][0], members=identities)


def found(ask: SendRequest) -> None:
    for version in (0, 1, 3):
        ask(f"version {version}", FindCoordinatorRequest(key="g", key_type=0), version)
        ask(f"named nothing {version}", FindCoordinatorRequest(key="", key_type=0), version)
    several = FindCoordinatorRequest(coordinator_keys=["g", "h", ""], key_type=0)
    ask("several", several, 4)
    ask("none", FindCoordinatorRequest(coordinator_keys=[], key_type=0), 4)
    ask("of something else", FindCoordinatorRequest(key="g", key_type=9), 3)


def members(ask: SendRequest) -> None:
    ask("named nothing", join(""), 9)
    ask("a short session", join("g", session_timeout_ms=1), 9)
    ask("a long session", join("g", session_timeout_ms=10**9), 9)
    ask("no protocols", join("g", protocols=()), 9)
    ask("no type", join("g", protocol_type=""), 9)
    ask("unknown member", join("g", "unknown"), 9)
    ask("unknown member of a new version", join("g", "unknown"), 5)
    first = ask("first join without a member id", join("g"), 9).member_id
    generation = ask("joined", join("g", first), 9).generation_id
    ask("another type", join("g", protocol_type="connect"), 5)
    ask("another protocol", join("g", protocols=("cooperative",)), 5)
    ask("heartbeat before sync", heartbeat("g", first, generation), 4)
    ask("sync by an unknown member", sync("g", "unknown", generation), 5)
    ask("sync of a generation to come", sync("g", first, generation + 1), 5)
    ask("sync of another protocol", sync("g", first, generation, protocol_name="sticky"), 5)
    ask("sync of another type", sync("g", first, generation, protocol_type="connect"), 5)
    ask("sync", sync("g", first, generation), 5)
    ask("sync again", sync("g", first, generation), 5)
    ask("heartbeat", heartbeat("g", first, generation), 4)
    ask("heartbeat of another generation", heartbeat("g", first, generation + 1), 4)
    ask("heartbeat by an unknown member", heartbeat("g", "unknown", generation), 4)
    ask("heartbeat without a member id", heartbeat("g", "", generation), 4)
    ask("heartbeat of no group", heartbeat("missing", first, 1), 4)
    ask("heartbeat named nothing", heartbeat("", first, 1), 4)
    ask("sync of no group", sync("missing", first, 1), 5)
    for version in (0, 3, 5, 6):
        ask(f"described {version}", DescribeGroupsRequest(groups=["g", "missing", ""]), version)
    for version in (0, 2, 3):
        ask(f"an unknown member leaves {version}", leave("g", ("unknown", None)), version)
    ask("leaves", leave("g", (first, None), (first, None), ("", "nobody")), 5)
    ask("leaves no group", leave("missing", (first, None)), 5)
    ask("described when empty", DescribeGroupsRequest(groups=["g"]), 5)


def of_old_versions(ask: SendRequest) -> None:
    first = ask("joined", join("old"), 3)
    ask("sync", sync("old", first.member_id, first.generation_id), 2)
    again = ask("joined again", join("old", first.member_id), 3)
    ask("sync again", sync("old", first.member_id, again.generation_id), 2)
    ask("left", leave("old", (first.member_id, None)), 2)


def static(ask: SendRequest) -> None:
    first = ask("joined", join("s", group_instance_id="one"), 9)
    ask("sync", sync("s", first.member_id, first.generation_id, group_instance_id="one"), 5)
    second = ask("came again", join("s", group_instance_id="one"), 9)
    generation = second.generation_id
    ask("the former one", heartbeat("s", first.member_id, generation, "one"), 4)
    ask("the new one", heartbeat("s", second.member_id, generation, "one"), 4)
    ask("an unknown instance", heartbeat("s", second.member_id, generation, "two"), 4)
    ask("leaves by instance", leave("s", ("", "one")), 5)


def commit(
    group: str, name: str, offset: int, partition: int = 0, **options: Any
) -> OffsetCommitRequest:
    part = OffsetCommitRequestPartition(
        partition_index=partition,
        committed_offset=offset,
        committed_metadata=options.pop("metadata", ""),
        committed_leader_epoch=-1,
    )
    values: dict[str, Any] = {"generation_id_or_member_epoch": -1, "member_id": "", **options}
    topics = [OffsetCommitRequestTopic(name=name, partitions=[part])]
    return OffsetCommitRequest(group_id=group, topics=topics, **values)


def offsets(ask: SendRequest) -> None:
    ask("made", create(topic("o", 2)), 2)
    for version in (2, 5, 7, 9):
        ask(f"committed {version}", commit("c", "o", version), version)
    ask("of no topic", commit("c", "missing", 1), 8)
    ask("of no partition", commit("c", "o", 1, 9), 8)
    ask("negative", commit("c", "o", -5, 1), 8)
    ask("much metadata", commit("c", "o", 1, metadata="x" * 5000), 8)
    ask("no metadata", commit("c", "o", 1, metadata=None), 8)
    ask("named nothing", commit("", "o", 1), 8)
    ask(
        "by an unknown member",
        commit("c", "o", 1, member_id="m", generation_id_or_member_epoch=1),
        8,
    )
    ask(
        "of a new group by an unknown member",
        commit("n", "o", 1, member_id="m", generation_id_or_member_epoch=1),
        8,
    )
    ask("of a generation", commit("c", "o", 1, generation_id_or_member_epoch=5), 8)
    for version in (1, 2, 5, 7):
        for label, group in (("", "c"), (" of none", "missing"), (" named nothing", "")):
            topics = [OffsetFetchRequestTopic(name="o", partition_indexes=[0, 1, 7])]
            topics += [OffsetFetchRequestTopic(name="missing", partition_indexes=[0])]
            request = OffsetFetchRequest(group_id=group, topics=topics)
            ask(f"fetched {version}{label}", request, version)
            if version > 1:
                everything = OffsetFetchRequest(group_id=group, topics=None)
                ask(f"fetched all {version}{label}", everything, version)
    wanted = [
        OffsetFetchRequestGroup(group_id="c", topics=None),
        OffsetFetchRequestGroup(
            group_id="missing", topics=[OffsetFetchRequestTopics(name="o", partition_indexes=[0])]
        ),
    ]
    ask("of several groups", OffsetFetchRequest(groups=wanted), 8)
    ask("of no groups", OffsetFetchRequest(groups=[]), 8)
    for group, name in (("c", "o"), ("c", "missing"), ("missing", "o"), ("", "o")):
        parts = [OffsetDeleteRequestPartition(partition_index=index) for index in (0, 7)]
        topics_ = [OffsetDeleteRequestTopic(name=name, partitions=parts)]
        ask(f"{name} of {group} deleted", OffsetDeleteRequest(group_id=group, topics=topics_), 0)
    ask("what is left", OffsetFetchRequest(group_id="c", topics=None), 7)


def listed(ask: SendRequest) -> None:
    ask("made", create(topic("li")), 2)
    ask("committed", commit("li-empty", "li", 1), 8)
    first = ask("joined", join("li-waiting"), 3)
    for label, states, types in (
        ("all", [], []),
        ("empty ones", ["Empty"], []),
        ("stable ones", ["Stable"], []),
        ("of no state", ["Asleep"], []),
        ("lower case", ["empty"], []),
        ("classic", [], ["classic"]),
        ("consumer", [], ["consumer"]),
        ("of no type", [], ["x"]),
    ):
        ask(label, ListGroupsRequest(states_filter=states, types_filter=types), 5)
    ask("without states", ListGroupsRequest(), 2)
    ask(
        "deleted",
        DeleteGroupsRequest(groups_names=["li-empty", "li-waiting", "missing", "", "li-empty"]),
        2,
    )
    ask("deleted none", DeleteGroupsRequest(groups_names=[]), 2)
    ask("left", leave("li-waiting", (first.member_id, None)), 2)
    ask("deleted at last", DeleteGroupsRequest(groups_names=["li-waiting"]), 2)
    ask("described", DescribeGroupsRequest(groups=["li-waiting"]), 5)


CONVERSATIONS: Final = (found, members, of_old_versions, static, offsets, listed)
