"""Requests of other controllers and brokers change nothing, and get the errors that Kafka gives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from minibroker.broker.apis.control_requests import (
    CONTROLLED_SHUTDOWN,
    GONE,
    LEADER_AND_ISR,
    STOP_REPLICA,
    UPDATE_METADATA,
    broker_epoch_problem,
    controller_epoch_problem,
    refuse_leader_and_isr,
    refuse_stop_replica,
)
from minibroker.broker.metadata.image import Image
from minibroker.broker.metadata.topics import NewTopic
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.controlled_shutdown import ControlledShutdownRequest
from minibroker_protocol.messages.leader_and_isr import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from minibroker_protocol.messages.stop_replica import (
    StopReplicaPartitionState,
    StopReplicaPartitionV0,
    StopReplicaRequest,
    StopReplicaTopicState,
    StopReplicaTopicV1,
)
from minibroker_protocol.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from minibroker_protocol.types import ZERO_UUID
from tests.broker.apis.conftest import ENDPOINTS, ApisMaker

IMAGE = Image(controller_epoch=5)


@pytest.mark.parametrize(
    ("epoch", "error"),
    [
        (-1, ErrorCode.NONE),
        (0, ErrorCode.STALE_BROKER_EPOCH),
        (4, ErrorCode.STALE_BROKER_EPOCH),
        (5, ErrorCode.NONE),
        (2**63 - 1, ErrorCode.NONE),
    ],
)
def test_stale_broker_epoch_is_rejected(epoch: int, error: ErrorCode) -> None:
    assert broker_epoch_problem(IMAGE, epoch) is error


@pytest.mark.parametrize(
    ("epoch", "error"),
    [
        (-1, ErrorCode.STALE_CONTROLLER_EPOCH),
        (4, ErrorCode.STALE_CONTROLLER_EPOCH),
        (5, ErrorCode.NONE),
        (2**31 - 1, ErrorCode.NONE),
    ],
)
def test_stale_controller_epoch_is_rejected(epoch: int, error: ErrorCode) -> None:
    assert controller_epoch_problem(IMAGE, epoch) is error


# Leader and isr -----------------------------------------------------------------------------------


VERSIONS = range(8)
KRAFT_VERSION = 7
OTHER = 99


@pytest.fixture
async def apis(make_apis: ApisMaker) -> Any:
    made = await make_apis()
    await made.create_topics([NewTopic("t", 2)])
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
    response = await apis.ask(LEADER_AND_ISR, request(version, *sent), version)
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
        assert errors(await apis.ask(LEADER_AND_ISR, sent, 4), 4) == {("t", 0): error}


@pytest.mark.parametrize("version", VERSIONS)
async def test_other_topic_id_is_rejected(apis: Any, version: int) -> None:
    response = await apis.ask(LEADER_AND_ISR, request(version, ("t", b"x" * 16, state())), version)
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
        response = await apis.ask(LEADER_AND_ISR, sent, KRAFT_VERSION)
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
    response = await apis.ask(
        LEADER_AND_ISR, request(version, ("t", b"t" * 16, state()), **fields), version
    )
    if version < 2:  # without a broker epoch
        error = ErrorCode.STALE_CONTROLLER_EPOCH
    assert response.error_code == error
    assert errors(response, version) == {("t" if version < 5 else b"t" * 16, 0): error}


def test_rejected_request_has_error_for_every_partition() -> None:
    refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    for version in VERSIONS:
        response = refuse_leader_and_isr(request(version, ("t", ZERO_UUID, state())), refused)
        assert (response.error_code, errors(response, version)[
            "t" if version < 5 else ZERO_UUID, 0
        ]) == (refused, refused)  # fmt: skip


# Stop replica -------------------------------------------------------------------------------------


STOP_REPLICA_VERSIONS = range(5)


def stop_replica_request(
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


def stop_replica_errors(response: Any) -> dict[tuple[str, int], int]:
    return {
        (one.topic_name, one.partition_index): one.error_code for one in response.partition_errors
    }


@pytest.mark.parametrize("version", STOP_REPLICA_VERSIONS)
async def test_stop_replica_is_rejected_for_hosted_partitions_only(apis: Any, version: int) -> None:
    before = apis.controller.image
    response = await apis.ask(
        STOP_REPLICA, stop_replica_request(version, ("t", 1), ("t", 2), ("u", 0)), version
    )
    assert response.error_code == ErrorCode.NONE
    assert stop_replica_errors(response) == {
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
    sent = stop_replica_request(version, ("t", 0), leader_epoch=leader_epoch)
    assert stop_replica_errors(await apis.ask(STOP_REPLICA, sent, version)) == {("t", 0): error}


@pytest.mark.parametrize("version", STOP_REPLICA_VERSIONS)
async def test_stale_epoch_rejects_whole_stop_replica_request(apis: Any, version: int) -> None:
    late = stop_replica_request(version, ("t", 0), controller_epoch=2)
    response = await apis.ask(STOP_REPLICA, late, version)
    assert (response.error_code, stop_replica_errors(response)) == (
        ErrorCode.STALE_CONTROLLER_EPOCH,
        {},
    )
    if version >= 1:
        late.broker_epoch = 2
        response = await apis.ask(STOP_REPLICA, late, version)
        assert (response.error_code, stop_replica_errors(response)) == (
            ErrorCode.STALE_BROKER_EPOCH,
            {},
        )


def test_rejected_stop_replica_has_error_for_every_partition() -> None:
    sent = StopReplicaRequest(topics=[StopReplicaTopicV1(name="t", partition_indexes=[0, 1])])
    refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    response = refuse_stop_replica(sent, refused)
    assert response.error_code == refused
    assert stop_replica_errors(response) == {("t", 0): refused, ("t", 1): refused}


# Update metadata ----------------------------------------------------------------------------------


UPDATE_METADATA_VERSIONS = range(9)


@pytest.fixture
async def racked(make_apis: ApisMaker) -> Any:
    made = await make_apis("broker.rack=r1")
    await made.create_topics([NewTopic("t", 2)])
    return made


def broker(**fields: Any) -> UpdateMetadataBroker:
    host, port = ENDPOINTS["OUTSIDE"]
    endpoints = [
        UpdateMetadataEndpoint(listener=name, host=at[0], port=at[1])
        for name, at in ENDPOINTS.items()
    ]
    known = {"id": 1, "v0_host": host, "v0_port": port, "endpoints": endpoints, "rack": "r1"}
    return UpdateMetadataBroker(**{**known, **fields})


def partition(racked: Any, index: int = 1, **fields: Any) -> UpdateMetadataPartitionState:
    found = racked.controller.image.topics["t"].partitions[min(index, 1)]
    known = {
        "topic_name": "t",
        "partition_index": index,
        "leader": found.leader,
        "leader_epoch": found.leader_epoch,
        "isr": list(found.isr),
        "replicas": list(found.replicas),
    }
    return UpdateMetadataPartitionState(**{**known, **fields})


def update_metadata_request(
    racked: Any, *states: UpdateMetadataPartitionState, **fields: Any
) -> Any:
    known = {
        "controller_epoch": racked.controller.image.controller_epoch,
        "live_brokers": [broker()],
        "ungrouped_partition_states": list(states),
        "topic_states": [
            UpdateMetadataTopicState(topic_name=state.topic_name, partition_states=[state])
            for state in states
        ],
    }
    return UpdateMetadataRequest(**{**known, **fields})


@pytest.mark.parametrize("version", UPDATE_METADATA_VERSIONS)
async def test_metadata_equal_to_image_is_accepted(racked: Any, version: int) -> None:
    before = racked.controller.image
    sent = update_metadata_request(
        racked,
        partition(racked),
        partition(racked, topic_name="u", leader=GONE),
    )
    assert (await racked.ask(UPDATE_METADATA, sent, version)).error_code == ErrorCode.NONE
    assert racked.controller.image is before
    assert racked.asked == {}


@pytest.mark.parametrize("version", UPDATE_METADATA_VERSIONS)
async def test_partition_state_different_from_image_is_rejected(racked: Any, version: int) -> None:
    for fields, error in (
        ({"leader": 2}, ErrorCode.STALE_CONTROLLER_EPOCH),
        ({"leader": GONE}, ErrorCode.STALE_CONTROLLER_EPOCH),
        ({"leader_epoch": 9}, ErrorCode.STALE_CONTROLLER_EPOCH),
        ({"isr": [1, 2]}, ErrorCode.STALE_CONTROLLER_EPOCH),
        ({"replicas": [2, 1]}, ErrorCode.STALE_CONTROLLER_EPOCH),
        ({"index": 2}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"topic_name": "u"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ):
        sent = update_metadata_request(
            racked,
            partition(racked, 0),
            partition(racked, **fields),
        )
        assert (await racked.ask(UPDATE_METADATA, sent, version)).error_code == error, fields


@pytest.mark.parametrize("version", UPDATE_METADATA_VERSIONS)
async def test_live_brokers_different_from_image_are_rejected(racked: Any, version: int) -> None:
    moved = UpdateMetadataEndpoint(listener="PLAINTEXT", host="elsewhere", port=1)
    cases: list[list[UpdateMetadataBroker]] = [
        [],
        [broker(id=2)],
        [broker(), broker(id=2)],
        [broker(endpoints=[moved], v0_host="elsewhere")],
    ]
    if version >= 2:
        cases.append([broker(rack="r2")])
    for brokers in cases:
        response = await racked.ask(
            UPDATE_METADATA,
            update_metadata_request(racked, live_brokers=brokers),
            version,
        )
        assert response.error_code == ErrorCode.STALE_CONTROLLER_EPOCH


async def test_other_topic_id_is_inconsistent_topic_id(racked: Any) -> None:
    sent = update_metadata_request(racked, partition(racked))
    sent.topic_states[0].topic_id = b"x" * 16
    assert (
        await racked.ask(UPDATE_METADATA, sent, 8)
    ).error_code == ErrorCode.INCONSISTENT_TOPIC_ID
    assert (await racked.ask(UPDATE_METADATA, sent, 6)).error_code == ErrorCode.NONE


@pytest.mark.parametrize("version", UPDATE_METADATA_VERSIONS)
async def test_stale_controller_or_broker_epoch_is_rejected(racked: Any, version: int) -> None:
    late = update_metadata_request(racked, partition(racked, 2), controller_epoch=0)
    assert (
        await racked.ask(UPDATE_METADATA, late, version)
    ).error_code == ErrorCode.STALE_CONTROLLER_EPOCH
    if version >= 5:
        late.broker_epoch = 0
        assert (
            await racked.ask(UPDATE_METADATA, late, version)
        ).error_code == ErrorCode.STALE_BROKER_EPOCH


# Controlled shutdown ------------------------------------------------------------------------------


CONTROLLED_SHUTDOWN_VERSIONS = range(4)


@pytest.fixture
async def with_topic(make_apis: ApisMaker) -> Any:
    made = await make_apis()
    await made.create_topics([NewTopic("t", 2)])
    return made


@pytest.mark.parametrize("version", CONTROLLED_SHUTDOWN_VERSIONS)
async def test_unreplicated_partitions_do_not_remain(with_topic: Any, version: int) -> None:
    response = await with_topic.ask(
        CONTROLLED_SHUTDOWN, ControlledShutdownRequest(broker_id=1), version
    )
    assert (response.error_code, response.remaining_partitions) == (ErrorCode.NONE, [])
    assert with_topic.asked == {}


@pytest.mark.parametrize("version", CONTROLLED_SHUTDOWN_VERSIONS)
async def test_replicated_partition_remains(with_topic: Any, version: int) -> None:
    image = with_topic.controller.at_processor
    topic = image.topics["t"]
    first, second = topic.partitions
    copied = replace(second, replicas=(1, 2))
    topics = {**image.topics, "t": topic._replace(partitions=(first, copied))}
    with_topic.image = replace(image, topics=topics)
    response = await with_topic.ask(
        CONTROLLED_SHUTDOWN, ControlledShutdownRequest(broker_id=1), version
    )
    remaining = [(one.topic_name, one.partition_index) for one in response.remaining_partitions]
    assert remaining == [("t", 1)]


@pytest.mark.parametrize("version", CONTROLLED_SHUTDOWN_VERSIONS)
async def test_shutdown_of_other_broker_is_broker_not_available(
    with_topic: Any, version: int
) -> None:
    for epoch in (-1, 0):
        asked = ControlledShutdownRequest(broker_id=2, broker_epoch=epoch)
        response = await with_topic.ask(CONTROLLED_SHUTDOWN, asked, version)
        assert response.error_code == ErrorCode.BROKER_NOT_AVAILABLE


@pytest.mark.parametrize("version", [2, 3])
async def test_stale_broker_epoch_rejects_controlled_shutdown(
    with_topic: Any, version: int
) -> None:
    asked = ControlledShutdownRequest(broker_id=1, broker_epoch=0)
    assert (
        await with_topic.ask(CONTROLLED_SHUTDOWN, asked, version)
    ).error_code == ErrorCode.STALE_BROKER_EPOCH
