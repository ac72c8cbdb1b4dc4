"""Every version of StopReplica leaves everything where it is, and says so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from minibroker.broker.apis.stop_replica import API, error_response
from minibroker.broker.metadata.topics import NewTopic
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.stop_replica import (
    StopReplicaPartitionState,
    StopReplicaPartitionV0,
    StopReplicaRequest,
    StopReplicaTopicState,
    StopReplicaTopicV1,
)
from tests.broker.apis.conftest import ApisMaker

VERSIONS = range(5)


@pytest.fixture
async def apis(make_apis: ApisMaker) -> Any:
    made = await make_apis()
    outcome = await made.cluster.create_topics([NewTopic("t", 2)])
    await made.controller.publish(outcome.updates)
    image = made.controller.at_processor
    topic = image.topics["t"]
    later = tuple(replace(partition, leader_epoch=5) for partition in topic.partitions)
    topics = {**image.topics, "t": topic._replace(partitions=later)}
    made.image = replace(image, topics=topics, controller_epoch=3)
    return made


def request(
    version: int, *partitions: tuple[str, int], leader_epoch: int = -1, **fields: Any
) -> StopReplicaRequest:
    made = StopReplicaRequest(
        **{"controller_epoch": 3, "delete_partitions": True, **fields},
        ungrouped_partitions=[
            StopReplicaPartitionV0(topic_name=name, partition_index=index)
            for name, index in partitions
        ],
    )
    for name, index in partitions:
        state = StopReplicaPartitionState(
            partition_index=index, leader_epoch=leader_epoch, delete_partition=True
        )
        made.topics.append(StopReplicaTopicV1(name=name, partition_indexes=[index]))
        made.topic_states.append(StopReplicaTopicState(topic_name=name, partition_states=[state]))
    return made


def errors(response: Any) -> dict[tuple[str, int], int]:
    return {
        (one.topic_name, one.partition_index): one.error_code for one in response.partition_errors
    }


@pytest.mark.parametrize("version", VERSIONS)
async def test_stop_replica_is_rejected_for_hosted_partitions_only(apis: Any, version: int) -> None:
    before = apis.controller.image
    response = await apis.ask(API, request(version, ("t", 1), ("t", 2), ("u", 0)), version)
    assert response.error_code == ErrorCode.NONE
    assert errors(response) == {
        ("t", 1): ErrorCode.STALE_CONTROLLER_EPOCH,
        ("t", 2): ErrorCode.NONE,
        ("u", 0): ErrorCode.NONE,
    }
    assert apis.controller.image is before
    assert apis.asked == {}


@pytest.mark.parametrize(
    ("leader_epoch", "error"),
    [
        (-2, ErrorCode.STALE_CONTROLLER_EPOCH),
        (-1, ErrorCode.STALE_CONTROLLER_EPOCH),
        (0, ErrorCode.FENCED_LEADER_EPOCH),
        (4, ErrorCode.FENCED_LEADER_EPOCH),
        (5, ErrorCode.STALE_CONTROLLER_EPOCH),
        (6, ErrorCode.STALE_CONTROLLER_EPOCH),
    ],
)
@pytest.mark.parametrize("version", [3, 4])
async def test_older_leader_epoch_is_fenced(
    apis: Any, version: int, leader_epoch: int, error: ErrorCode
) -> None:
    sent = request(version, ("t", 0), leader_epoch=leader_epoch)
    assert errors(await apis.ask(API, sent, version)) == {("t", 0): error}


@pytest.mark.parametrize("version", VERSIONS)
async def test_stale_epoch_rejects_whole_request(apis: Any, version: int) -> None:
    late = request(version, ("t", 0), controller_epoch=2)
    response = await apis.ask(API, late, version)
    assert (response.error_code, errors(response)) == (ErrorCode.STALE_CONTROLLER_EPOCH, {})
    if version >= 1:
        late.broker_epoch = 2
        response = await apis.ask(API, late, version)
        assert (response.error_code, errors(response)) == (ErrorCode.STALE_BROKER_EPOCH, {})


def test_rejected_request_has_error_for_every_partition() -> None:
    sent = StopReplicaRequest(topics=[StopReplicaTopicV1(name="t", partition_indexes=[0, 1])])
    refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    response = error_response(sent, refused)
    assert response.error_code == refused
    assert errors(response) == {("t", 0): refused, ("t", 1): refused}
