"""Heartbeats and descriptions of consumer groups, and the other requests about these groups."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from minibroker.broker.apis.cluster import UPDATE_FEATURES
from minibroker.broker.apis.consumer_groups import (
    CONSUMER_GROUP_DESCRIBE,
    CONSUMER_GROUP_HEARTBEAT,
)
from minibroker.broker.apis.group_offsets import OFFSET_COMMIT, OFFSET_FETCH
from minibroker.broker.apis.groups import (
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    HEARTBEAT,
    JOIN_GROUP,
    LIST_GROUPS,
    SYNC_GROUP,
)
from minibroker.broker.metadata.features import UpgradeType
from minibroker.broker.settings import Settings
from minibroker_protocol.compiler import encode
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from minibroker_protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from minibroker_protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from minibroker_protocol.messages.delete_groups import DeleteGroupsRequest
from minibroker_protocol.messages.describe_groups import DescribeGroupsRequest
from minibroker_protocol.messages.heartbeat import HeartbeatRequest
from minibroker_protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from minibroker_protocol.messages.list_groups import ListGroupsRequest
from minibroker_protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from minibroker_protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from minibroker_protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from minibroker_protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from tests.broker.apis.conftest import GroupWorker

OK = ErrorCode.NONE
SUBSCRIPTION = b"\0\0" + encode(ConsumerProtocolSubscription(topics=["t"]), 0)


async def beat(apis: Any, *, version: int = 1, **fields: Any) -> Any:
    stated = {"group_id": "g", "member_id": "m", "member_epoch": 1, **fields}
    request = ConsumerGroupHeartbeatRequest(**stated)
    return await apis.ask(CONSUMER_GROUP_HEARTBEAT, request, version)


async def join(apis: Any, **fields: Any) -> Any:
    joining = {
        "member_epoch": 0,
        "rebalance_timeout_ms": 30_000,
        "subscribed_topic_names": ["t"],
        "topic_partitions": [],
    }
    return await beat(apis, **{**joining, **fields})


async def join_classic(apis: Any, *, group_id: str = "g", version: int = 9) -> Any:
    """Join as a static member, which needs no member id."""
    request = JoinGroupRequest(
        group_id=group_id,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        group_instance_id="s",
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=SUBSCRIPTION)],
    )
    return await apis.ask(JOIN_GROUP, request, version)


@pytest.mark.parametrize("version", [0, 1])
async def test_member_joins_and_gets_partitions(group_apis: Any, version: int) -> None:
    joined = await join(group_apis, version=version)
    assert (joined.error_code, joined.error_message, joined.member_id) == (OK, None, "m")
    assert (joined.member_epoch, joined.heartbeat_interval_ms) == (2, 5000)
    topic_id = group_apis.controller.image.topics["t"].topic_id
    [assigned] = joined.assignment.topic_partitions
    assert (assigned.topic_id, assigned.partitions) == (topic_id, [0, 1, 2])
    owned = [TopicPartitions(topic_id=topic_id, partitions=[0, 1, 2])]
    again = await beat(group_apis, member_epoch=2, topic_partitions=owned, version=version)
    assert (again.error_code, again.member_epoch, again.assignment) == (OK, 2, None)


async def test_member_id_is_made_only_in_version_0(group_apis: Any) -> None:
    assert (await join(group_apis, member_id="", version=0)).member_id
    rejected = await join(group_apis, member_id="", version=1)
    assert (rejected.error_code, rejected.error_message) == (
        ErrorCode.INVALID_REQUEST,
        "MemberId can't be empty.",
    )


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"member_id": " "}, "MemberId can't be empty."),
        ({"group_id": ""}, "GroupId can't be empty."),
        ({"instance_id": ""}, "InstanceId can't be empty."),
        ({"rack_id": ""}, "RackId can't be empty."),
        (
            {"member_epoch": 0},
            "RebalanceTimeoutMs must be provided in first request.",
        ),
        (
            {"member_epoch": 0, "rebalance_timeout_ms": 1},
            "TopicPartitions must be empty when (re-)joining.",
        ),
        (
            {"member_epoch": 0, "rebalance_timeout_ms": 1, "topic_partitions": []},
            (
                "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when "
                "(re-)joining."
            ),
        ),
        ({"member_epoch": -2}, "InstanceId can't be null."),
        ({"member_epoch": -3}, "MemberEpoch is invalid."),
        ({"member_epoch": -3, "server_assignor": "x"}, "MemberEpoch is invalid."),
    ],
)
async def test_invalid_heartbeat_is_rejected(
    group_apis: Any, fields: dict[str, Any], text: str
) -> None:
    rejected = await beat(group_apis, **fields)
    assert (rejected.error_code, rejected.error_message) == (ErrorCode.INVALID_REQUEST, text)
    assert group_apis.asked == {}


async def test_unknown_assignor_is_rejected(group_apis: Any) -> None:
    rejected = await join(group_apis, server_assignor="sticky")
    assert (rejected.error_code, rejected.error_message) == (
        ErrorCode.UNSUPPORTED_ASSIGNOR,
        "ServerAssignor sticky is not supported. Supported assignors: uniform, range.",
    )


async def test_group_that_does_not_exist_or_is_classic_is_not_found(group_apis: Any) -> None:
    for epoch, text in ((1, "Consumer group g not found."), (-1, "Group g not found.")):
        missing = await beat(group_apis, member_epoch=epoch)
        assert (missing.error_code, missing.error_message) == (ErrorCode.GROUP_ID_NOT_FOUND, text)
    await join_classic(group_apis)
    missing = await beat(group_apis)
    assert (missing.error_code, missing.error_message) == (
        ErrorCode.GROUP_ID_NOT_FOUND,
        "Group g is not a consumer group.",
    )


async def test_rejected_first_member_makes_no_group(group_apis: Any) -> None:
    rejected = await join(group_apis, subscribed_topic_names=None, subscribed_topic_regex="(")
    assert rejected.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert (await group_apis.ask(LIST_GROUPS, ListGroupsRequest(), 5)).groups == []


@pytest.mark.parametrize("off", ["setting", "feature"])
@pytest.mark.parametrize("version", [0, 1])
async def test_consumer_group_requests_are_unsupported_where_turned_off(
    group_apis: Any, version: int, off: str
) -> None:
    if off == "setting":
        pairs = ["group.coordinator.rebalance.protocols=classic"]
        group_apis.settings = Settings.from_sources(pairs=pairs)
    else:
        change = FeatureUpdateKey(
            feature="group.version", max_version_level=0, upgrade_type=UpgradeType.UNSAFE_DOWNGRADE
        )
        request = UpdateFeaturesRequest(feature_updates=[change])
        assert (await group_apis.ask(UPDATE_FEATURES, request, 1)).error_code == OK
    response = await beat(group_apis, version=version)
    assert group_apis.asked == {}
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert "group.protocol=classic" in response.error_message
    describe = ConsumerGroupDescribeRequest(group_ids=["g"])
    [group] = (await group_apis.ask(CONSUMER_GROUP_DESCRIBE, describe, version)).groups
    assert group.error_code == ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize("version", [0, 1])
async def test_consumer_group_is_described(group_apis: Any, version: int) -> None:
    await join(group_apis, instance_id="s", rack_id="r", server_assignor="range")
    await join_classic(group_apis, group_id="classic")
    request = ConsumerGroupDescribeRequest(group_ids=["g", "classic", "missing", ""])
    shown, classic, missing, empty = (
        await group_apis.ask(CONSUMER_GROUP_DESCRIBE, request, version)
    ).groups
    assert (shown.error_code, shown.group_state, shown.assignor_name) == (OK, "Stable", "range")
    assert (shown.group_epoch, shown.assignment_epoch) == (2, 2)
    [member] = shown.members
    assert (member.member_id, member.instance_id, member.rack_id) == ("m", "s", "r")
    assert (member.client_id, member.client_host) == ("test", "/127.0.0.1")
    assert (member.member_epoch, member.subscribed_topic_names) == (2, ["t"])
    assert member.member_type == (1 if version else -1)
    for assignment in (member.assignment, member.target_assignment):
        [topic] = assignment.topic_partitions
        assert (topic.topic_name, topic.partitions) == ("t", [0, 1, 2])
    assert (classic.error_code, classic.error_message) == (
        ErrorCode.GROUP_ID_NOT_FOUND,
        "Group classic is not a consumer group.",
    )
    assert (missing.error_code, missing.error_message) == (
        ErrorCode.GROUP_ID_NOT_FOUND,
        "Group missing not found.",
    )
    assert empty.error_code == ErrorCode.INVALID_GROUP_ID


async def test_groups_are_listed_by_type_and_state(group_apis: Any) -> None:
    await join(group_apis)
    await join_classic(group_apis, group_id="classic")

    async def listed(**filters: Any) -> list[tuple[str, str, str, str]]:
        response = await group_apis.ask(LIST_GROUPS, ListGroupsRequest(**filters), 5)
        return [
            (each.group_id, each.protocol_type, each.group_state, each.group_type)
            for each in response.groups
        ]

    consumer = ("g", "consumer", "Stable", "consumer")
    assert consumer in await listed()
    assert await listed(types_filter=["Consumer"]) == [consumer]
    assert await listed(states_filter=["stable"]) == [consumer]
    assert [each[0] for each in await listed(types_filter=["classic"])] == ["classic"]


@pytest.mark.parametrize("version", [5, 6])
async def test_classic_description_of_a_consumer_group_is_dead(
    group_apis: Any, version: int
) -> None:
    await join(group_apis)
    request = DescribeGroupsRequest(groups=["g"])
    [group] = (await group_apis.ask(DESCRIBE_GROUPS, request, version)).groups
    assert group.group_state == "Dead"
    if version >= 6:
        assert (group.error_code, group.error_message) == (
            ErrorCode.GROUP_ID_NOT_FOUND,
            "Group g is not a classic group.",
        )


async def test_consumer_group_is_deleted_only_without_members(group_apis: Any) -> None:
    async def deleted() -> int:
        response = await group_apis.ask(DELETE_GROUPS, DeleteGroupsRequest(groups_names=["g"]), 2)
        return int(response.results[0].error_code)

    await join(group_apis)
    assert await deleted() == ErrorCode.NON_EMPTY_GROUP
    assert (await beat(group_apis, member_epoch=-1)).error_code == OK
    assert await deleted() == OK
    assert await deleted() == ErrorCode.GROUP_ID_NOT_FOUND


async def commit(apis: Any, epoch: int, *, version: int = 9, member_id: str = "m") -> int:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=7)
    topic = OffsetCommitRequestTopic(name="t", partitions=[partition])
    request = OffsetCommitRequest(
        group_id="g",
        member_id=member_id,
        generation_id_or_member_epoch=epoch,
        topics=[topic],
    )
    response = await apis.ask(OFFSET_COMMIT, request, version)
    return int(response.topics[0].partitions[0].error_code)


async def test_members_commit_and_fetch_with_their_epoch(group_apis: Any) -> None:
    await join(group_apis)
    assert await commit(group_apis, 2) == OK
    assert await commit(group_apis, 3) == ErrorCode.STALE_MEMBER_EPOCH
    assert await commit(group_apis, 1) == ErrorCode.STALE_MEMBER_EPOCH
    assert await commit(group_apis, 2, version=8) == ErrorCode.UNSUPPORTED_VERSION
    assert await commit(group_apis, 2, member_id="x") == ErrorCode.UNKNOWN_MEMBER_ID

    async def fetched(member_id: str | None, epoch: int) -> tuple[int, list[int]]:
        topic = OffsetFetchRequestTopics(name="t", partition_indexes=[0])
        group = OffsetFetchRequestGroup(
            group_id="g", member_id=member_id, member_epoch=epoch, topics=[topic]
        )
        response = await group_apis.ask(OFFSET_FETCH, OffsetFetchRequest(groups=[group]), 9)
        [found] = response.groups
        offsets = [each.committed_offset for topic in found.topics for each in topic.partitions]
        return found.error_code, offsets

    assert await fetched("m", 2) == (OK, [7])
    assert await fetched(None, -1) == (OK, [7])
    assert await fetched("m", 1) == (ErrorCode.STALE_MEMBER_EPOCH, [])
    assert await fetched("x", 2) == (ErrorCode.UNKNOWN_MEMBER_ID, [])


async def test_classic_group_with_members_becomes_a_consumer_group(group_apis: Any) -> None:
    member_id = (await join_classic(group_apis)).member_id
    assigned = SyncGroupRequestAssignment(member_id=member_id, assignment=b"")
    sync = SyncGroupRequest(
        group_id="g",
        generation_id=1,
        member_id=member_id,
        group_instance_id="s",
        assignments=[assigned],
    )
    await group_apis.ask(SYNC_GROUP, sync, 4)
    joined = await join(group_apis)
    assert (joined.error_code, joined.member_epoch) == (OK, 2)
    request = HeartbeatRequest(
        group_id="g", generation_id=1, member_id=member_id, group_instance_id="s"
    )
    answer = await group_apis.ask(HEARTBEAT, request, 4)
    assert answer.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    describe = ConsumerGroupDescribeRequest(group_ids=["g"])
    [group] = (await group_apis.ask(CONSUMER_GROUP_DESCRIBE, describe, 1)).groups
    assert {each.member_id: each.member_type for each in group.members} == {"m": 1, member_id: 0}


async def test_disabled_migration_rejects_a_member_of_the_other_kind(
    group_apis: Any, tmp_path: Path
) -> None:
    pairs = ["group.consumer.migration.policy=disabled", "group.initial.rebalance.delay.ms=0"]
    settings = Settings.from_sources(pairs=pairs)
    for owner in group_apis.workers:
        group_apis.workers[owner] = GroupWorker(settings, tmp_path / "disabled", Random(owner))
    await join_classic(group_apis)
    rejected = await join(group_apis)
    assert (rejected.error_code, rejected.error_message) == (
        ErrorCode.GROUP_ID_NOT_FOUND,
        "Cannot upgrade classic group g to consumer group because online upgrade is disabled.",
    )


async def test_empty_groups_change_their_type_and_keep_their_offsets(group_apis: Any) -> None:
    assert await commit(group_apis, -1, member_id="") == OK
    await join(group_apis)
    assert await commit(group_apis, 2) == OK
    await beat(group_apis, member_epoch=-1)
    assert (await join_classic(group_apis)).error_code == OK
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)])
    [found] = (await group_apis.ask(OFFSET_FETCH, request, 9)).groups
    assert [each.committed_offset for each in found.topics[0].partitions] == [7]
