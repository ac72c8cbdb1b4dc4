"""Every version of LeaderAndIsr rejects each partition: other brokers do not assign leaders."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from minibroker.broker.apis.leader_and_isr import API, error_response
from minibroker.broker.metadata.topics import NewTopic
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.leader_and_isr import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from minibroker_protocol.types import ZERO_UUID
from tests.broker.apis.conftest import ApisMaker

VERSIONS = range(8)
KRAFT_VERSION = 7
OTHER = 99


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


def state(index: int = 0, leader_epoch: int = 6, leader: int = 1) -> LeaderAndIsrPartitionState:
    return LeaderAndIsrPartitionState(
        partition_index=index,
        leader=leader,
        leader_epoch=leader_epoch,
        isr=[leader],
        replicas=[leader],
    )


def request(
    version: int, *states: tuple[str, bytes, LeaderAndIsrPartitionState], **fields: Any
) -> LeaderAndIsrRequest:
    made = LeaderAndIsrRequest(**{"controller_id": 7, "controller_epoch": 3, **fields})
    for name, topic_id, one in states:
        one.topic_name = name
        if version < 2:
            made.ungrouped_partition_states.append(one)
        else:
            topic = LeaderAndIsrTopicState(
                topic_name=name, topic_id=topic_id, partition_states=[one]
            )
            made.topic_states.append(topic)
    return made


def errors(response: Any, version: int) -> dict[tuple[Any, int], int]:
    if version < 5:
        listed = [(one.topic_name, one) for one in response.partition_errors]
    else:
        listed = [
            (topic.topic_id, one) for topic in response.topics for one in topic.partition_errors
        ]
    return {(topic, one.partition_index): one.error_code for topic, one in listed}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("leader_epoch", [4, 5, 6])
async def test_leader_and_isr_is_rejected_per_partition_and_changes_nothing(
    apis: Any, version: int, leader_epoch: int
) -> None:
    topic_id, strange = apis.image.topics["t"].topic_id, b"s" * 16
    sent = [
        ("t", topic_id, state(1, leader_epoch)),
        ("t", topic_id, state(2, leader_epoch)),
        ("strange", strange, state(0, leader_epoch)),
    ]
    before = apis.controller.image
    response = await apis.ask(API, request(version, *sent), version)
    assert response.error_code == ErrorCode.NONE
    known, other = ("t", "strange") if version < 5 else (topic_id, strange)
    assert errors(response, version) == {
        (known, 1): ErrorCode.STALE_CONTROLLER_EPOCH,
        (known, 2): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        (other, 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert apis.controller.image is before
    assert apis.asked == {}


async def test_partition_with_leader_on_other_broker_is_rejected(apis: Any) -> None:
    topic_id = apis.image.topics["t"].topic_id
    for leader_epoch, error in (
        (5, ErrorCode.STALE_CONTROLLER_EPOCH),
        (6, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ):
        sent = request(4, ("t", topic_id, state(0, leader_epoch, leader=OTHER)))
        assert errors(await apis.ask(API, sent, 4), 4) == {("t", 0): error}


@pytest.mark.parametrize("version", VERSIONS)
async def test_other_topic_id_is_rejected(apis: Any, version: int) -> None:
    response = await apis.ask(API, request(version, ("t", b"x" * 16, state())), version)
    expected = ErrorCode.INCONSISTENT_TOPIC_ID if version >= 5 else ErrorCode.STALE_CONTROLLER_EPOCH
    assert list(errors(response, version).values()) == [expected]


async def test_current_leader_epoch_is_accepted_from_kraft_controller_only(apis: Any) -> None:
    for is_kraft, leader_epoch, error in (
        (True, 5, ErrorCode.NONE),
        (True, 6, ErrorCode.STALE_CONTROLLER_EPOCH),
        (False, 5, ErrorCode.STALE_CONTROLLER_EPOCH),
    ):
        sent = request(
            KRAFT_VERSION, ("t", ZERO_UUID, state(0, leader_epoch)), is_kraft_controller=is_kraft
        )
        response = await apis.ask(API, sent, KRAFT_VERSION)
        assert errors(response, KRAFT_VERSION) == {(ZERO_UUID, 0): error}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"controller_epoch": 2}, ErrorCode.STALE_CONTROLLER_EPOCH),
        ({"broker_epoch": 2, "controller_epoch": 2}, ErrorCode.STALE_BROKER_EPOCH),
    ],
)
async def test_stale_epoch_rejects_whole_request(
    apis: Any, version: int, fields: dict[str, int], error: ErrorCode
) -> None:
    response = await apis.ask(API, request(version, ("t", b"t" * 16, state()), **fields), version)
    if version < 2:  # without a broker epoch
        error = ErrorCode.STALE_CONTROLLER_EPOCH
    assert response.error_code == error
    assert errors(response, version) == {("t" if version < 5 else b"t" * 16, 0): error}


def test_rejected_request_has_error_for_every_partition() -> None:
    refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    for version in VERSIONS:
        response = error_response(request(version, ("t", ZERO_UUID, state())), refused)
        assert (response.error_code, errors(response, version)[
            "t" if version < 5 else ZERO_UUID, 0
        ]) == (refused, refused)  # fmt: skip
