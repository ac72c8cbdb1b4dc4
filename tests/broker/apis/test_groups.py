"""Members join, synchronize and leave groups, which are described, listed and deleted."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from minibroker.broker.apis.groups import (
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    LIST_GROUPS,
    SYNC_GROUP,
)
from minibroker.broker.groups.events import CommitRequested
from minibroker.broker.groups.offsets import CommittedOffset
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.delete_groups import DeleteGroupsRequest
from minibroker_protocol.messages.describe_groups import DescribeGroupsRequest
from minibroker_protocol.messages.heartbeat import HeartbeatRequest
from minibroker_protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from minibroker_protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from minibroker_protocol.messages.list_groups import ListGroupsRequest
from minibroker_protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment


def join_request(member_id: str = "", **other: Any) -> JoinGroupRequest:
    values: dict[str, Any] = {
        "group_id": "g",
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 60_000,
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocols": [JoinGroupRequestProtocol(name="range", metadata=b"r")],
    }
    return JoinGroupRequest(**(values | other))


async def join(apis: Any, member_id: str = "", **other: Any) -> Any:
    """A member joins: a new one before versions that give it an id first, or a static one."""
    version = 5 if other.get("group_instance_id") else 3
    return await apis.ask(JOIN_GROUP, join_request(member_id, **other), version)


def commit_to(apis: Any, group_ids: list[str]) -> None:
    """Commit an offset of each group, which needs no member."""
    for group_id in group_ids:
        owner = apis.context(JOIN_GROUP.key, 0).group_owner(group_id)
        offsets = {("t", 0): CommittedOffset(1, -1, "", 1)}
        simple_consumer = CommitRequested(member_id="", generation=-1)
        apis.workers[owner].groups.commit(group_id, simple_consumer, offsets)


def worker(apis: Any) -> Any:
    return apis.workers[apis.context(JOIN_GROUP.key, 0).group_owner("g")]


@pytest.mark.parametrize("version", range(4))
async def test_older_versions_join_without_member_id(group_apis: Any, version: int) -> None:
    joined = await group_apis.ask(JOIN_GROUP, join_request(), version)
    assert joined.error_code == ErrorCode.NONE
    assert joined.member_id == joined.leader == joined.members[0].member_id
    assert joined.member_id.startswith("test-")
    assert (joined.generation_id, joined.protocol_name) == (1, "range")
    member = worker(group_apis).groups.describe("g").members[0]
    assert member.rebalance_timeout_ms == (10_000 if version == 0 else 60_000)
    assert (member.client_id, member.client_host) == ("test", "/127.0.0.1")


@pytest.mark.parametrize("version", range(4, 10))
async def test_newer_versions_must_rejoin_with_assigned_member_id(
    group_apis: Any, version: int
) -> None:
    refused = await group_apis.ask(JOIN_GROUP, join_request(), version)
    assert refused.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert refused.protocol_name == (None if version >= 7 else "")
    joined = await group_apis.ask(JOIN_GROUP, join_request(refused.member_id), version)
    assert joined.error_code == ErrorCode.NONE
    assert joined.member_id == refused.member_id
    assert joined.protocol_type == ("consumer" if version >= 7 else None)
    assert joined.members[0].metadata == b"r"


@pytest.mark.parametrize("version", range(5, 10))
async def test_static_member_is_listed_with_group_instance_id(
    group_apis: Any, version: int
) -> None:
    joined = await group_apis.ask(JOIN_GROUP, join_request(group_instance_id="s"), version)
    assert joined.error_code == ErrorCode.NONE
    assert joined.members[0].group_instance_id == "s"


@pytest.mark.parametrize("version", [8, 9])
async def test_static_leader_that_rejoins_skips_assignment_in_version_9(
    group_apis: Any, version: int
) -> None:
    from minibroker.broker.apis.groups import SYNC_GROUP
    from minibroker_protocol.messages.sync_group import SyncGroupRequest

    joined = await group_apis.ask(JOIN_GROUP, join_request(group_instance_id="s"), version)
    sync = SyncGroupRequest(
        group_id="g",
        generation_id=1,
        member_id=joined.member_id,
        protocol_type="consumer",
        protocol_name="range",
    )
    await group_apis.ask(SYNC_GROUP, sync, 5)
    back = await group_apis.ask(JOIN_GROUP, join_request(group_instance_id="s"), version)
    assert back.skip_assignment is (version == 9)
    assert (back.leader == back.member_id) is (version == 9)
    assert back.generation_id == 1


async def test_join_response_waits_for_all_members(group_apis: Any) -> None:
    first = await group_apis.ask(JOIN_GROUP, join_request(), 3)
    answers = []

    async def join(member_id: str) -> None:
        answers.append(await group_apis.ask(JOIN_GROUP, join_request(member_id), 3))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(join, "")
        await trio.testing.wait_all_tasks_blocked()
        assert answers == []
        nursery.start_soon(join, first.member_id)
    assert {answer.generation_id for answer in answers} == {2}
    assert sorted(len(answer.members) for answer in answers) == [0, 2]


@pytest.mark.parametrize(
    ("other", "error"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"session_timeout_ms": 1}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"member_id": "x"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"protocols": []}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
@pytest.mark.parametrize("version", [0, 9])
async def test_invalid_join_group_is_rejected_in_every_version(
    group_apis: Any, version: int, other: dict[str, Any], error: ErrorCode
) -> None:
    refused = await group_apis.ask(JOIN_GROUP, join_request(**other), version)
    assert refused.error_code == error
    assert refused.generation_id == -1
    assert refused.member_id == other.get("member_id", "")


# Sync group ---------------------------------------------------------------------------------------


def sync(joined: Any, **other: Any) -> SyncGroupRequest:
    values: dict[str, Any] = {
        "group_id": "g",
        "generation_id": joined.generation_id,
        "member_id": joined.member_id,
        "protocol_type": "consumer",
        "protocol_name": "range",
    }
    return SyncGroupRequest(**(values | other))


@pytest.mark.parametrize("version", range(6))
async def test_leader_receives_its_own_assignment(group_apis: Any, version: int) -> None:
    joined = await join(group_apis)
    brought = [SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"mine")]
    synced = await group_apis.ask(SYNC_GROUP, sync(joined, assignments=brought), version)
    assert (synced.error_code, synced.assignment) == (ErrorCode.NONE, b"mine")
    named = ("consumer", "range") if version >= 5 else (None, None)
    assert (synced.protocol_type, synced.protocol_name) == named


async def test_follower_waits_for_assignment_from_leader(group_apis: Any) -> None:
    first = await join(group_apis)
    joined: list[Any] = []

    async def collect(member_id: str) -> None:
        joined.append(await join(group_apis, member_id))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(collect, "")
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(collect, first.member_id)
    leader, follower = sorted(joined, key=lambda each: not each.members)
    answers = []

    async def ask(who: Any, brought: list[SyncGroupRequestAssignment]) -> None:
        answers.append(
            (await group_apis.ask(SYNC_GROUP, sync(who, assignments=brought), 5)).assignment
        )

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, follower, [])
        await trio.testing.wait_all_tasks_blocked()
        assert answers == []
        theirs = SyncGroupRequestAssignment(member_id=follower.member_id, assignment=b"theirs")
        nursery.start_soon(ask, leader, [theirs])
    assert sorted(answers) == [b"", b"theirs"]


@pytest.mark.parametrize("missing", ["protocol_type", "protocol_name"])
async def test_missing_protocol_type_or_name_is_rejected_since_version_5(
    group_apis: Any, missing: str
) -> None:
    joined = await join(group_apis)
    refused = await group_apis.ask(SYNC_GROUP, sync(joined, **{missing: None}), 5)
    assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert group_apis.asked == {}


@pytest.mark.parametrize(
    ("other", "error"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"group_id": "h"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation_id": 9}, ErrorCode.ILLEGAL_GENERATION),
        ({"group_instance_id": "s"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"protocol_name": "sticky"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
async def test_invalid_sync_group_is_rejected_with_error_code(
    group_apis: Any, other: dict[str, Any], error: ErrorCode
) -> None:
    refused = await group_apis.ask(SYNC_GROUP, sync(await join(group_apis), **other), 5)
    assert (refused.error_code, refused.assignment) == (error, b"")


# Heartbeat ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(5))
async def test_heartbeat_is_accepted_from_current_members_only(
    group_apis: Any, version: int
) -> None:
    member_id = (await join(group_apis, group_instance_id="s")).member_id

    async def beat(**other: Any) -> int:
        values: dict[str, Any] = {"group_id": "g", "generation_id": 1, "member_id": member_id}
        request = HeartbeatRequest(**(values | other))
        return int((await group_apis.ask(HEARTBEAT, request, version)).error_code)

    assert await beat() == ErrorCode.NONE
    assert await beat(group_instance_id="s" if version >= 3 else None) == ErrorCode.NONE
    assert await beat(generation_id=2) == ErrorCode.ILLEGAL_GENERATION
    assert await beat(member_id="x") == ErrorCode.UNKNOWN_MEMBER_ID
    assert await beat(group_id="h") == ErrorCode.UNKNOWN_MEMBER_ID
    assert await beat(group_id="") == ErrorCode.INVALID_GROUP_ID
    if version >= 3:
        fenced = await beat(member_id="x", group_instance_id="s")
        assert fenced == ErrorCode.FENCED_INSTANCE_ID


# Leave group --------------------------------------------------------------------------------------


async def joined(apis: Any, instance: str | None = None) -> str:
    return str((await join(apis, group_instance_id=instance)).member_id)


def members(apis: Any) -> int:
    worker = apis.workers[apis.context(LEAVE_GROUP.key, 0).group_owner("g")]
    return len(worker.groups.describe("g").members)


@pytest.mark.parametrize("version", range(3))
async def test_member_leaves_group(group_apis: Any, version: int) -> None:
    member_id = await joined(group_apis)
    request = LeaveGroupRequest(group_id="g", member_id=member_id)
    assert (await group_apis.ask(LEAVE_GROUP, request, version)).error_code == ErrorCode.NONE
    assert members(group_apis) == 0
    again = await group_apis.ask(LEAVE_GROUP, request, version)
    assert again.error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", range(3, 6))
async def test_each_leaving_member_has_its_own_result(group_apis: Any, version: int) -> None:
    await joined(group_apis, "s")
    leaving = [
        MemberIdentity(
            member_id="", group_instance_id="s", reason="moved" if version > 4 else None
        ),
        MemberIdentity(member_id="x"),
    ]
    request = LeaveGroupRequest(group_id="g", members=leaving)
    response = await group_apis.ask(LEAVE_GROUP, request, version)
    assert response.error_code == ErrorCode.NONE
    assert [(each.group_instance_id, each.error_code) for each in response.members] == [
        ("s", ErrorCode.NONE),
        (None, ErrorCode.UNKNOWN_MEMBER_ID),
    ]
    assert members(group_apis) == 0


@pytest.mark.parametrize("version", [0, 5])
async def test_empty_group_id_is_rejected(group_apis: Any, version: int) -> None:
    request = LeaveGroupRequest(group_id="", members=[MemberIdentity(member_id="x")])
    if version == 0:
        request = LeaveGroupRequest(group_id="", member_id="x")
    response = await group_apis.ask(LEAVE_GROUP, request, version)
    assert response.error_code == ErrorCode.INVALID_GROUP_ID
    assert response.members == []


# Describe groups ----------------------------------------------------------------------------------


NOT_ASKED = -0x80000000
READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS = 3, 6, 8, 10, 11


async def stable_group(apis: Any, group_id: str) -> str:
    member = await join(apis, group_id=group_id, group_instance_id="s")
    member_id = str(member.member_id)
    assigned = SyncGroupRequestAssignment(member_id=member_id, assignment=b"A")
    sync = SyncGroupRequest(
        group_id=group_id, generation_id=1, member_id=member_id, assignments=[assigned]
    )
    await apis.ask(SYNC_GROUP, sync, 4)
    return member_id


@pytest.mark.parametrize("version", range(7))
async def test_stable_group_is_described_with_members(group_apis: Any, version: int) -> None:
    member_id = await stable_group(group_apis, "g")
    response = await group_apis.ask(DESCRIBE_GROUPS, DescribeGroupsRequest(groups=["g"]), version)
    (group,) = response.groups
    assert (group.error_code, group.error_message) == (ErrorCode.NONE, None)
    assert (group.group_state, group.protocol_type, group.protocol_data) == (
        "Stable",
        "consumer",
        "range",
    )
    (member,) = group.members
    assert (member.member_id, member.client_id, member.client_host) == (
        member_id,
        "test",
        "/127.0.0.1",
    )
    assert (member.member_metadata, member.member_assignment) == (b"r", b"A")
    assert member.group_instance_id == ("s" if version >= 4 else None)
    assert group.authorized_operations == NOT_ASKED


@pytest.mark.parametrize("version", range(7))
async def test_unknown_group_is_described_as_dead(group_apis: Any, version: int) -> None:
    request = DescribeGroupsRequest(groups=["g"], include_authorized_operations=version >= 3)
    (group,) = (await group_apis.ask(DESCRIBE_GROUPS, request, version)).groups
    assert (group.group_id, group.group_state, group.members) == ("g", "Dead", [])
    if version >= 6:
        assert group.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert group.error_message == "Group g not found."
    else:
        assert group.error_code == ErrorCode.NONE


@pytest.mark.parametrize("version", [3, 6])
async def test_authorized_operations_are_included_if_requested(
    group_apis: Any, version: int
) -> None:
    await stable_group(group_apis, "g")
    request = DescribeGroupsRequest(groups=["g"], include_authorized_operations=True)
    (group,) = (await group_apis.ask(DESCRIBE_GROUPS, request, version)).groups
    allowed = {bit for bit in range(32) if group.authorized_operations & (1 << bit)}
    assert allowed == {READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS}


async def test_groups_of_several_workers_are_answered_in_request_order(group_apis: Any) -> None:
    ids = [f"g{number}" for number in range(6)]
    for group_id in ids:
        await stable_group(group_apis, group_id)
    asked = ["none", *reversed(ids), "g0"]
    response = await group_apis.ask(DESCRIBE_GROUPS, DescribeGroupsRequest(groups=asked), 5)
    assert [group.group_id for group in response.groups] == asked
    assert len(group_apis.asked) == 2
    assert [group.group_state for group in response.groups] == ["Dead", *["Stable"] * 7]


# List groups --------------------------------------------------------------------------------------


SIMPLE = [f"simple-{number}" for number in range(6)]


@pytest.fixture
async def with_groups(group_apis: Any) -> Any:
    """Groups without members at both owners, and one whose member waits for its assignment."""
    commit_to(group_apis, SIMPLE)
    await join(group_apis, group_id="busy")
    return group_apis


async def listed(apis: Any, version: int, **filters: list[str]) -> list[str]:
    response = await apis.ask(LIST_GROUPS, ListGroupsRequest(**filters), version)  # type: ignore[arg-type]
    return [group.group_id for group in response.groups]


@pytest.mark.parametrize("version", range(6))
async def test_list_groups_returns_all_groups_sorted_by_id(with_groups: Any, version: int) -> None:
    response = await with_groups.ask(LIST_GROUPS, ListGroupsRequest(), version)
    assert [group.group_id for group in response.groups] == ["busy", *SIMPLE]
    assert len(with_groups.asked) == 2
    busy, simple = response.groups[:2]
    assert (busy.protocol_type, simple.protocol_type) == ("consumer", "")
    states = ("CompletingRebalance", "Empty") if version >= 4 else ("", "")
    assert (busy.group_state, simple.group_state) == states
    assert busy.group_type == ("classic" if version >= 5 else "")


async def test_states_filter_ignores_case_and_whitespace(with_groups: Any) -> None:
    assert await listed(with_groups, 4, states_filter=["emPTY "]) == SIMPLE
    assert await listed(with_groups, 4, states_filter=["Stable", "CompletingRebalance"]) == ["busy"]
    assert await listed(with_groups, 4, states_filter=["nonsense"]) == []


async def test_types_filter_without_classic_matches_no_group(with_groups: Any) -> None:
    assert len(await listed(with_groups, 5, types_filter=["Classic", "share"])) == 7
    assert await listed(with_groups, 5, types_filter=["consumer"]) == []
    assert await listed(with_groups, 5, types_filter=["nonsense"]) == []


# Delete groups ------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(4))
async def test_only_empty_groups_are_deleted(group_apis: Any, version: int) -> None:
    ids = [f"g{number}" for number in range(4)]
    commit_to(group_apis, ids)
    await join(group_apis, group_id="busy")
    asked = ["busy", *ids, "none", "g0"]
    response = await group_apis.ask(DELETE_GROUPS, DeleteGroupsRequest(groups_names=asked), version)
    assert len(group_apis.asked) == 2
    errors = [(each.group_id, each.error_code) for each in response.results]
    assert errors == [
        ("busy", ErrorCode.NON_EMPTY_GROUP),
        *((group_id, ErrorCode.NONE) for group_id in ids),
        ("none", ErrorCode.GROUP_ID_NOT_FOUND),
    ]
    left = [
        group.group_id
        for worker in group_apis.workers.values()
        for group in worker.groups.list_groups()
    ]
    assert left == ["busy"]
