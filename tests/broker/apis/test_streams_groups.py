"""Heartbeats and descriptions of streams groups, at a whole broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages import streams_group_describe as described
from minibroker_protocol.messages import streams_group_heartbeat as beating
from minibroker_protocol.messages.api_versions import ApiVersionsRequest
from minibroker_protocol.messages.delete_groups import DeleteGroupsRequest
from minibroker_protocol.messages.describe_groups import DescribeGroupsRequest
from minibroker_protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from minibroker_protocol.messages.list_groups import ListGroupsRequest
from minibroker_protocol.messages.metadata import MetadataRequest
from minibroker_protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from minibroker_protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from minibroker_protocol.messages.streams_group_describe import StreamsGroupDescribeRequest
from minibroker_protocol.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest
from minibroker_protocol.messages.streams_group_topology_description_update import (
    StreamsGroupTopologyDescriptionUpdateRequest,
)
from minibroker_protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from tests.broker.apis.share_client import ShareWorld, share_world

AT_ONCE = (
    "group.streams.initial.rebalance.delay.ms=0",
    "group.streams.assignment.interval.ms=0",
)
SEPARATE = ("process.mode=separate", "num.io.threads=2")
SESSION_S = 45


def topology(
    *sources: str, logs: tuple[str, ...] = (), partitions: int = 0, epoch: int = 0
) -> beating.Topology:
    return beating.Topology(
        epoch=epoch,
        subtopologies=[
            beating.Subtopology(
                subtopology_id="0",
                source_topics=list(sources),
                state_changelog_topics=[
                    beating.TopicInfo(
                        name=log,
                        partitions=partitions,
                        topic_configs=[beating.KeyValue(key="cleanup.policy", value="compact")],
                    )
                    for log in logs
                ],
            )
        ],
    )


def joining(member: str = "m", **fields: Any) -> StreamsGroupHeartbeatRequest:
    valid = {
        "group_id": "g",
        "member_id": member,
        "member_epoch": 0,
        "rebalance_timeout_ms": 9_000,
        "process_id": member,
        "topology": topology("t"),
        "active_tasks": [],
        "standby_tasks": [],
        "warmup_tasks": [],
    }
    return StreamsGroupHeartbeatRequest(**{**valid, **fields})


async def beat(world: ShareWorld, member: str, epoch: int, **fields: Any) -> Any:
    request = StreamsGroupHeartbeatRequest(
        group_id="g", member_id=member, member_epoch=epoch, **fields
    )
    return await world.client.ask(request, 1)


def partitions(tasks: list[beating.TaskIds] | None) -> dict[str, list[int]] | None:
    return None if tasks is None else {each.subtopology_id: each.partitions for each in tasks}


@pytest.mark.parametrize("mode", [(), SEPARATE])
async def test_internal_topics_are_created_and_tasks_given(
    tmp_path: Path, autojump_clock: MockClock, mode: tuple[str, ...]
) -> None:
    async with share_world(tmp_path, autojump_clock, *AT_ONCE, *mode) as world:
        first = await world.client.ask(joining(topology=topology("t", logs=("log",))), 1)
        (status,) = first.status
        assert (status.status_code, status.status_detail) == (
            3,
            "Internal topics are missing: log",
        )
        assert partitions(first.active_tasks) == {}
        found = await world.client.ask(MetadataRequest(topics=None), 12)
        assert {topic.name: len(topic.partitions) for topic in found.topics}["log"] == 2
        second = await beat(world, "m", first.member_epoch)
        assert (second.status, partitions(second.active_tasks)) == ([], {"0": [0, 1]})
        assert (second.acceptable_recovery_lag, second.heartbeat_interval_ms) == (10_000, 5_000)
        assert (await beat(world, "m", second.member_epoch)).active_tasks is None


async def test_group_is_described_and_listed(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with share_world(tmp_path, autojump_clock, *AT_ONCE) as world:
        fields: dict[str, Any] = {
            "user_endpoint": beating.Endpoint(host="h", port=7),
            "client_tags": [beating.KeyValue(key="zone", value="z")],
            "task_offsets": [beating.TaskOffset(subtopology_id="0", partition=1, offset=5)],
        }
        joined = await world.client.ask(joining(**fields), 0)
        assert joined.acceptable_recovery_lag_legacy == 0
        request = StreamsGroupDescribeRequest(group_ids=["g", "x", ""])
        group, unknown, empty = (await world.client.ask(request, 1)).groups
        assert (group.group_state, group.group_epoch, group.assignment_epoch) == ("Stable", 2, 2)
        assert (group.assignor_name, group.topology.epoch) == ("sticky", 0)
        assert [each.source_topics for each in group.topology.subtopologies] == [["t"]]
        (member,) = group.members
        assert (member.process_id, member.user_endpoint.port) == ("m", 7)
        assert [(each.key, each.value) for each in member.client_tags] == [("zone", "z")]
        assert [each.offset for each in member.task_offsets] == [5]
        assert partitions(member.assignment.active_tasks) == {"0": [0, 1]}
        assert partitions(member.target_assignment.active_tasks) == {"0": [0, 1]}
        assert unknown.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert unknown.error_message == "Group x not found."
        assert empty.error_code == ErrorCode.INVALID_GROUP_ID
        (listed,) = (await world.client.ask(ListGroupsRequest(types_filter=["Streams"]), 5)).groups
        assert (listed.protocol_type, listed.group_type, listed.group_state) == (
            "streams",
            "streams",
            "Stable",
        )
        (classic,) = (await world.client.ask(DescribeGroupsRequest(groups=["g"]), 6)).groups
        assert classic.error_code == ErrorCode.GROUP_ID_NOT_FOUND


TASK = [beating.TaskIds(subtopology_id="0", partitions=[0])]
INVALID = ErrorCode.INVALID_REQUEST
BAD_TOPOLOGY = ErrorCode.STREAMS_INVALID_TOPOLOGY


@pytest.mark.parametrize(
    ("fields", "error", "text"),
    [
        ({"member_id": ""}, INVALID, "MemberId can't be empty."),
        ({"group_id": " "}, INVALID, "GroupId can't be empty."),
        ({"instance_id": ""}, INVALID, "InstanceId can't be empty."),
        ({"rack_id": ""}, INVALID, "RackId can't be empty."),
        ({"rebalance_timeout_ms": -1}, INVALID,
         "RebalanceTimeoutMs must be provided in first request."),
        ({"active_tasks": TASK}, INVALID, "ActiveTasks must be empty when (re-)joining."),
        ({"standby_tasks": TASK}, INVALID, "StandbyTasks must be empty when (re-)joining."),
        ({"warmup_tasks": TASK}, INVALID, "WarmupTasks must be empty when (re-)joining."),
        ({"warmup_tasks": None}, INVALID, "If one task-type is non-null, all must be non-null."),
        ({"topology": None}, INVALID, "Topology must be non-null when (re-)joining."),
        ({"member_epoch": 1}, INVALID, "Topology can only be provided when (re-)joining."),
        ({"member_epoch": -2}, INVALID, "InstanceId can't be null."),
        ({"member_epoch": -3}, INVALID,
         "MemberEpoch is -3, but must be greater than or equal to -2."),
        ({"topology": topology("__consumer_offsets")}, BAD_TOPOLOGY,
         ("Use of Kafka internal topics __consumer_offsets in a Kafka Streams topology is "
          "prohibited.")),
        ({"topology": topology("a b")}, BAD_TOPOLOGY, "Topic names a b are not valid topic names."),
        ({"topology": topology("t", logs=("l",), partitions=3)}, BAD_TOPOLOGY,
         "Changelog topic l must have an undefined partition count, but it is set to 3."),
        ({"topology": beating.Topology(epoch=0, subtopologies=[
            beating.Subtopology(subtopology_id="0", source_topic_regex=["t.*"])])}, INVALID,
         "Regular expressions for source topics are not supported yet."),
        ({"member_epoch": 3, "topology": None}, ErrorCode.GROUP_ID_NOT_FOUND,
         "Streams group g not found."),
        ({"member_epoch": -1, "topology": None}, ErrorCode.GROUP_ID_NOT_FOUND,
         "Group g not found."),
    ],
)  # fmt: skip
async def test_invalid_heartbeat_is_rejected(
    tmp_path: Path, autojump_clock: MockClock, fields: dict[str, Any], error: ErrorCode, text: str
) -> None:
    async with share_world(tmp_path, autojump_clock) as world:
        response = await world.client.ask(joining(**fields), 1)
        assert (response.error_code, response.error_message) == (error, text)
        assert (await world.client.ask(ListGroupsRequest(), 5)).groups == []


async def test_switched_off_streams_groups_are_not_served(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with share_world(tmp_path, autojump_clock) as world:
        versions = await world.client.ask(
            ApiVersionsRequest(client_software_name="t", client_software_version="1"), 4
        )
        levels = {each.name: each.max_version_level for each in versions.finalized_features}
        assert levels["streams.version"] == 1
        update = FeatureUpdateKey(feature="streams.version", max_version_level=0, upgrade_type=2)
        await world.client.ask(UpdateFeaturesRequest(feature_updates=[update]), 1)
        unserved = ErrorCode.UNSUPPORTED_VERSION
        assert (await world.client.ask(joining(), 1)).error_code == unserved
        request = StreamsGroupDescribeRequest(group_ids=["g"])
        assert (await world.client.ask(request, 1)).groups[0].error_code == unserved


async def test_protocol_that_is_not_listed_is_not_served(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    setting = "group.coordinator.rebalance.protocols=classic,consumer"
    async with share_world(tmp_path, autojump_clock, setting) as world:
        response = await world.client.ask(joining(), 1)
        assert response.error_code == ErrorCode.UNSUPPORTED_VERSION


async def commit(world: ShareWorld, member: str, epoch: int) -> int:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=3)
    request = OffsetCommitRequest(
        group_id="g",
        member_id=member,
        generation_id_or_member_epoch=epoch,
        topics=[OffsetCommitRequestTopic(name="t", partitions=[partition])],
    )
    response = await world.client.ask(request, 9)
    code: int = response.topics[0].partitions[0].error_code
    return code


async def test_offsets_are_committed_in_the_epoch_of_the_member(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with share_world(tmp_path, autojump_clock, *AT_ONCE) as world:
        assert await commit(world, "", -1) == 0  # A classic group without members.
        epoch = (await world.client.ask(joining(), 1)).member_epoch
        assert await commit(world, "m", epoch) == 0
        assert await commit(world, "m", epoch + 1) == ErrorCode.STALE_MEMBER_EPOCH
        assert await commit(world, "n", epoch) == ErrorCode.UNKNOWN_MEMBER_ID
        group = OffsetFetchRequestGroup(
            group_id="g", member_id="m", member_epoch=epoch, topics=None
        )
        (found,) = (await world.client.ask(OffsetFetchRequest(groups=[group]), 9)).groups
        assert found.topics[0].partitions[0].committed_offset == 3


async def test_group_without_members_becomes_classic(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    join = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=9_000,
        rebalance_timeout_ms=9_000,
        protocol_type="x",
        protocols=[JoinGroupRequestProtocol(name="p", metadata=b"")],
    )
    async with share_world(tmp_path, autojump_clock, *AT_ONCE) as world:
        epoch = (await world.client.ask(joining(), 1)).member_epoch
        assert await commit(world, "m", epoch) == 0
        inconsistent = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert (await world.client.ask(join, 5)).error_code == inconsistent
        (deleted,) = (await world.client.ask(DeleteGroupsRequest(groups_names=["g"]), 2)).results
        assert deleted.error_code == ErrorCode.NON_EMPTY_GROUP
        await trio.sleep(SESSION_S + 1)
        assert (await world.client.ask(join, 5)).error_code == ErrorCode.MEMBER_ID_REQUIRED
        (listed,) = (await world.client.ask(ListGroupsRequest(), 5)).groups
        assert listed.group_type == "classic"


async def test_group_without_members_is_deleted_with_its_offsets(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with share_world(tmp_path, autojump_clock, *AT_ONCE) as world:
        epoch = (await world.client.ask(joining(), 1)).member_epoch
        assert await commit(world, "m", epoch) == 0
        assert (await beat(world, "m", -1)).error_code == 0
        (deleted,) = (await world.client.ask(DeleteGroupsRequest(groups_names=["g"]), 2)).results
        assert deleted.error_code == 0
        assert (await world.client.ask(ListGroupsRequest(), 5)).groups == []


DESCRIBED = "group.streams.topology.description.plugin.class=any"


def describing(member: str = "m", epoch: int = 0, group: str = "g") -> Any:
    source = described.TopologyDescriptionNode(name="s", node_type=1, source_topics=["t"])
    part = described.TopologyDescriptionSubtopology(subtopology_id="0", nodes=[source])
    return StreamsGroupTopologyDescriptionUpdateRequest(
        group_id=group,
        member_id=member,
        topology_epoch=epoch,
        topology_description=described.TopologyDescription(subtopologies=[part]),
    )


async def test_member_is_asked_to_describe_its_topology(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with share_world(tmp_path, autojump_clock, *AT_ONCE, DESCRIBED) as world:
        joined = await world.client.ask(joining(), 1)
        assert joined.topology_description_required
        epoch = joined.member_epoch
        assert not (await beat(world, "m", epoch)).topology_description_required
        await trio.sleep(40)
        assert (await beat(world, "m", epoch)).topology_description_required
        shown = StreamsGroupDescribeRequest(group_ids=["g"], include_topology_description=True)
        (group,) = (await world.client.ask(shown, 1)).groups
        assert (group.topology_description_status, group.topology_description) == (1, None)
        assert (await world.client.ask(describing(), 0)).error_code == ErrorCode.NONE
        (group,) = (await world.client.ask(shown, 1)).groups
        assert group.topology_description_status == 3
        assert group.topology_description == describing().topology_description
        shown.include_topology_description = False
        (group,) = (await world.client.ask(shown, 1)).groups
        assert (group.topology_description_status, group.topology_description) == (0, None)
        await trio.sleep(44)
        assert not (await beat(world, "m", epoch)).topology_description_required


async def test_description_of_another_topology_is_refused(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with share_world(tmp_path, autojump_clock, *AT_ONCE, DESCRIBED) as world:
        await world.client.ask(joining(), 1)
        for request, error, text in (
            (describing(""), INVALID, "MemberId can't be empty."),
            (describing(group=" "), INVALID, "GroupId can't be empty."),
            (describing("x"), ErrorCode.UNKNOWN_MEMBER_ID, "Member x is not a member of group g."),
            (describing(group="x"), ErrorCode.GROUP_ID_NOT_FOUND, "Group x not found."),
            (
                describing(epoch=1),
                INVALID,
                "Topology epoch 1 does not match the group's current topology epoch 0.",
            ),
        ):
            response = await world.client.ask(request, 0)
            assert (response.error_code, response.error_message) == (error, text)


async def test_nothing_is_asked_for_without_the_setting(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with share_world(tmp_path, autojump_clock, *AT_ONCE) as world:
        assert not (await world.client.ask(joining(), 1)).topology_description_required
        response = await world.client.ask(describing(), 0)
        assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert "group.streams.topology.description.plugin.class" in response.error_message
