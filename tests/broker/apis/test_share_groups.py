"""Heartbeats, descriptions and offsets of share groups, at a whole broker."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from minibroker.broker.shares.state import ShareKey
from minibroker.broker.shares.state_store import (
    InitializeState,
    ShareStateStore,
    StateOperation,
    StateReply,
)
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages import alter_share_group_offsets as altering
from minibroker_protocol.messages import delete_share_group_offsets as deleting
from minibroker_protocol.messages import describe_share_group_offsets as offsets
from minibroker_protocol.messages.delete_groups import DeleteGroupsRequest
from minibroker_protocol.messages.describe_groups import DescribeGroupsRequest
from minibroker_protocol.messages.find_coordinator import FindCoordinatorRequest
from minibroker_protocol.messages.list_groups import ListGroupsRequest
from minibroker_protocol.messages.share_fetch import ShareFetchRequest
from minibroker_protocol.messages.share_group_describe import ShareGroupDescribeRequest
from minibroker_protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from minibroker_protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from minibroker_protocol.types import uuid_text
from tests.broker.apis.share_client import ShareMember, ShareWorld, acquired, errors, share_world

ACCEPT = 1
TWO_WORKERS = ("process.mode=separate", "num.io.threads=2")
MODES = [(), TWO_WORKERS]


@pytest.mark.parametrize("mode", MODES)
async def test_first_heartbeat_has_the_assignment(
    tmp_path: Path, autojump_clock: MockClock, mode: tuple[str, ...]
) -> None:
    async with share_world(tmp_path, autojump_clock, *mode) as world:
        one, two = await world.member("m"), await world.member("n")
        assert await one.join() == [0, 1]
        await two.join()
        described = (
            await world.client.ask(ShareGroupDescribeRequest(group_ids=["g", "x", ""]), 1)
        ).groups
        group, unknown, empty = described
        assert (group.group_state, group.assignor_name) == ("Stable", "simple")
        assert [each.member_id for each in group.members] == ["m", "n"]
        assert group.members[0].subscribed_topic_names == ["t"]
        assert unknown.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert unknown.error_message == "Group x not found."
        assert empty.error_code == ErrorCode.INVALID_GROUP_ID


async def test_members_that_join_at_once_have_states_created_once(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    created: Counter[ShareKey] = Counter()
    handle = ShareStateStore.handle

    def count(store: ShareStateStore, operation: StateOperation, *rest: Any) -> StateReply:
        if isinstance(operation, InitializeState):
            created[operation.key] += 1
        return handle(store, operation, *rest)

    monkeypatch.setattr(ShareStateStore, "handle", count)
    async with share_world(tmp_path, autojump_clock, *TWO_WORKERS) as world:
        members = [await world.member(f"m{number}") for number in range(4)]
        assigned: list[list[int]] = []

        async def join(member: ShareMember) -> None:
            assigned.append(await member.join())

        async with trio.open_nursery() as nursery:
            for member in members:
                nursery.start_soon(join, member)
        assert [each.partition for each in created] == [0, 1]
        assert set(created.values()) == {1}
        assert all(assigned)


@pytest.mark.parametrize(
    ("fields", "error", "text"),
    [
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST, "Invalid member id in the request."),
        ({"member_id": "m" * 37}, ErrorCode.INVALID_REQUEST, "Invalid member id in the request."),
        ({"member_id": "  "}, ErrorCode.INVALID_REQUEST, "MemberId can't be empty."),
        ({"group_id": ""}, ErrorCode.INVALID_REQUEST, "GroupId can't be empty."),
        ({"rack_id": ""}, ErrorCode.INVALID_REQUEST, "RackId can't be empty."),
        ({"subscribed_topic_names": None}, ErrorCode.INVALID_REQUEST,
         "SubscribedTopicNames must be set in first request."),
        ({"member_epoch": -2}, ErrorCode.INVALID_REQUEST, "MemberEpoch is invalid."),
        ({"member_epoch": 3}, ErrorCode.GROUP_ID_NOT_FOUND, "Share group g not found."),
        ({"member_epoch": -1}, ErrorCode.GROUP_ID_NOT_FOUND, "Group g not found."),
    ],
)  # fmt: skip
async def test_invalid_heartbeat_is_rejected(
    tmp_path: Path, autojump_clock: MockClock, fields: dict[str, Any], error: ErrorCode, text: str
) -> None:
    valid = {"group_id": "g", "member_id": "m", "subscribed_topic_names": ["t"]}
    async with share_world(tmp_path, autojump_clock) as world:
        request = ShareGroupHeartbeatRequest(**{**valid, **fields})
        response = await world.client.ask(request, 1)
        assert (response.error_code, response.error_message) == (error, text)


async def test_switched_off_share_groups_are_not_served(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with share_world(tmp_path, autojump_clock) as world:
        update = FeatureUpdateKey(feature="share.version", max_version_level=0, upgrade_type=2)
        await world.client.ask(UpdateFeaturesRequest(feature_updates=[update]), 1)
        unserved = ErrorCode.UNSUPPORTED_VERSION
        member = await world.member("m")
        assert (await member.heartbeat(0, ["t"])).error_code == unserved
        assert (await member.fetch(0)).error_code == unserved
        assert (await member.acknowledge((0, 0, 0, (ACCEPT,)))).error_code == unserved
        described = await world.client.ask(ShareGroupDescribeRequest(group_ids=["g"]), 1)
        assert described.groups[0].error_code == unserved
        group = offsets.DescribeShareGroupOffsetsRequestGroup(group_id="g", topics=None)
        found = await world.client.ask(offsets.DescribeShareGroupOffsetsRequest(groups=[group]), 1)
        assert found.groups[0].error_code == unserved
        fetch = await world.client.ask(ShareFetchRequest(group_id=None, member_id=None), 1)
        assert fetch.error_code == unserved


async def test_share_group_is_listed_and_is_no_other_group(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with share_world(tmp_path, autojump_clock) as world:
        await (await world.member("m")).join()
        (listed,) = (await world.client.ask(ListGroupsRequest(types_filter=["Share"]), 5)).groups
        assert (listed.group_id, listed.protocol_type, listed.group_type, listed.group_state) == (
            "g",
            "share",
            "share",
            "Stable",
        )
        assert (await world.client.ask(ListGroupsRequest(types_filter=["classic"]), 5)).groups == []
        (described,) = (await world.client.ask(DescribeGroupsRequest(groups=["g"]), 6)).groups
        assert described.error_code == ErrorCode.GROUP_ID_NOT_FOUND


async def described_offsets(world: ShareWorld, topics: Any = None) -> dict[int, tuple[int, int]]:
    group = offsets.DescribeShareGroupOffsetsRequestGroup(group_id="g", topics=topics)
    request = offsets.DescribeShareGroupOffsetsRequest(groups=[group])
    (found,) = (await world.client.ask(request, 1)).groups
    return {
        partition.partition_index: (partition.start_offset, partition.lag)
        for topic in found.topics
        for partition in topic.partitions
    }


@pytest.mark.parametrize("mode", MODES)
async def test_offsets_are_described_altered_and_deleted(
    tmp_path: Path, autojump_clock: MockClock, mode: tuple[str, ...]
) -> None:
    async with share_world(tmp_path, autojump_clock, *mode) as world:
        await world.produce(0, 10)
        member = await world.member("m")
        await member.join()
        assert await described_offsets(world) == {0: (-1, -1), 1: (-1, -1)}
        await member.fetch(0)
        await member.acknowledge((0, 0, 3, (ACCEPT,)))
        assert await described_offsets(world) == {0: (0, 6), 1: (-1, -1)}
        assert await alter(world, 0, 2) == (ErrorCode.NON_EMPTY_GROUP, {})
        assert (await delete(world, "t"))[0] == ErrorCode.NON_EMPTY_GROUP
        await member.fetch(epoch=-1)
        await member.heartbeat(-1)
        assert await alter(world, 0, 2) == (0, {("t", 0): 0})
        assert await alter(world, 9, 2) == (
            0,
            {("t", 9): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION},
        )
        assert (await described_offsets(world))[0] == (2, 8)
        await member.join()
        assert acquired(await member.fetch(0)) == {0: [(2, 9, 1)]}
        await member.fetch(epoch=-1)
        await member.heartbeat(-1)
        assert await delete(world, "t", "x") == (
            0,
            {"t": 0, "x": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION},
        )
        assert await described_offsets(world) == {}
        assert await delete(world, "t") == (0, {"t": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
        unknown = [offsets.DescribeShareGroupOffsetsRequestTopic(topic_name="x", partitions=[1])]
        assert await described_offsets(world, unknown) == {1: (-1, -1)}


async def alter(world: ShareWorld, index: int, start: int) -> tuple[int, dict[Any, int]]:
    partition = altering.AlterShareGroupOffsetsRequestPartition(
        partition_index=index, start_offset=start
    )
    topic = altering.AlterShareGroupOffsetsRequestTopic(topic_name="t", partitions=[partition])
    request = altering.AlterShareGroupOffsetsRequest(group_id="g", topics=[topic])
    response = await world.client.ask(request, 0)
    return response.error_code, {
        (topic.topic_name, each.partition_index): each.error_code
        for topic in response.responses
        for each in topic.partitions
    }


async def delete(world: ShareWorld, *names: str) -> tuple[int, dict[str, int]]:
    topics = [deleting.DeleteShareGroupOffsetsRequestTopic(topic_name=name) for name in names]
    request = deleting.DeleteShareGroupOffsetsRequest(group_id="g", topics=topics)
    response = await world.client.ask(request, 0)
    return response.error_code, {each.topic_name: each.error_code for each in response.responses}


@pytest.mark.parametrize("mode", MODES)
async def test_deleted_group_starts_again(
    tmp_path: Path, autojump_clock: MockClock, mode: tuple[str, ...]
) -> None:
    async with share_world(tmp_path, autojump_clock, *mode) as world:
        await world.produce(0, 3)
        member = await world.member("m")
        await member.join()
        await member.fetch(0)
        assert errors(await member.acknowledge((0, 0, 2, (ACCEPT,)))) == {0: 0}
        request = DeleteGroupsRequest(groups_names=["g"])
        (result,) = (await world.client.ask(request, 2)).results
        assert result.error_code == ErrorCode.NON_EMPTY_GROUP
        await member.fetch(epoch=-1)
        await member.heartbeat(-1)
        (result,) = (await world.client.ask(request, 2)).results
        assert result.error_code == ErrorCode.NONE
        await member.join()
        assert acquired(await member.fetch(0)) == {0: [(0, 2, 1)]}


async def test_coordinator_of_a_share_partition_is_found(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with share_world(tmp_path, autojump_clock) as world:
        key = f"g:{uuid_text(world.topic_id)}:0"
        request = FindCoordinatorRequest(key_type=2, coordinator_keys=[key, "g"])
        good, bad = (await world.client.ask(request, 6)).coordinators
        assert (good.error_code, good.node_id) == (ErrorCode.NONE, 1)
        assert bad.error_code == ErrorCode.INVALID_REQUEST
