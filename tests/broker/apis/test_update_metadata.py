"""Every version of UpdateMetadata changes nothing, and accepts what is known already."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.apis.update_metadata import API, GONE
from minibroker.broker.metadata.topics import NewTopic
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from tests.broker.apis.conftest import ENDPOINTS, ApisMaker

VERSIONS = range(9)


@pytest.fixture
async def apis(make_apis: ApisMaker) -> Any:
    made = await make_apis("broker.rack=r1")
    outcome = await made.cluster.create_topics([NewTopic("t", 2)])
    await made.controller.publish(outcome.updates)
    return made


def broker(**fields: Any) -> UpdateMetadataBroker:
    host, port = ENDPOINTS["OUTSIDE"]
    endpoints = [
        UpdateMetadataEndpoint(listener=name, host=at[0], port=at[1])
        for name, at in ENDPOINTS.items()
    ]
    known = {"id": 1, "v0_host": host, "v0_port": port, "endpoints": endpoints, "rack": "r1"}
    return UpdateMetadataBroker(**{**known, **fields})


def partition(apis: Any, index: int = 1, **fields: Any) -> UpdateMetadataPartitionState:
    found = apis.controller.image.topics["t"].partitions[min(index, 1)]
    known = {
        "topic_name": "t",
        "partition_index": index,
        "leader": found.leader,
        "leader_epoch": found.leader_epoch,
        "isr": list(found.isr),
        "replicas": list(found.replicas),
    }
    return UpdateMetadataPartitionState(**{**known, **fields})


def request(apis: Any, *states: UpdateMetadataPartitionState, **fields: Any) -> Any:
    known = {
        "controller_epoch": apis.controller.image.controller_epoch,
        "live_brokers": [broker()],
        "ungrouped_partition_states": list(states),
        "topic_states": [
            UpdateMetadataTopicState(topic_name=state.topic_name, partition_states=[state])
            for state in states
        ],
    }
    return UpdateMetadataRequest(**{**known, **fields})


@pytest.mark.parametrize("version", VERSIONS)
async def test_metadata_equal_to_image_is_accepted(apis: Any, version: int) -> None:
    before = apis.controller.image
    sent = request(apis, partition(apis), partition(apis, topic_name="u", leader=GONE))
    assert (await apis.ask(API, sent, version)).error_code == ErrorCode.NONE
    assert apis.controller.image is before
    assert apis.asked == {}


@pytest.mark.parametrize("version", VERSIONS)
async def test_partition_state_different_from_image_is_rejected(apis: Any, version: int) -> None:
    for fields, error in (
        ({"leader": 2}, ErrorCode.STALE_CONTROLLER_EPOCH),
        ({"leader": GONE}, ErrorCode.STALE_CONTROLLER_EPOCH),
        ({"leader_epoch": 9}, ErrorCode.STALE_CONTROLLER_EPOCH),
        ({"isr": [1, 2]}, ErrorCode.STALE_CONTROLLER_EPOCH),
        ({"replicas": [2, 1]}, ErrorCode.STALE_CONTROLLER_EPOCH),
        ({"index": 2}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"topic_name": "u"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ):
        sent = request(apis, partition(apis, 0), partition(apis, **fields))
        assert (await apis.ask(API, sent, version)).error_code == error, fields


@pytest.mark.parametrize("version", VERSIONS)
async def test_live_brokers_different_from_image_are_rejected(apis: Any, version: int) -> None:
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
        response = await apis.ask(API, request(apis, live_brokers=brokers), version)
        assert response.error_code == ErrorCode.STALE_CONTROLLER_EPOCH


async def test_other_topic_id_is_inconsistent_topic_id(apis: Any) -> None:
    sent = request(apis, partition(apis))
    sent.topic_states[0].topic_id = b"x" * 16
    assert (await apis.ask(API, sent, 8)).error_code == ErrorCode.INCONSISTENT_TOPIC_ID
    assert (await apis.ask(API, sent, 6)).error_code == ErrorCode.NONE


@pytest.mark.parametrize("version", VERSIONS)
async def test_stale_controller_or_broker_epoch_is_rejected(apis: Any, version: int) -> None:
    late = request(apis, partition(apis, 2), controller_epoch=0)
    assert (await apis.ask(API, late, version)).error_code == ErrorCode.STALE_CONTROLLER_EPOCH
    if version >= 5:
        late.broker_epoch = 0
        assert (await apis.ask(API, late, version)).error_code == ErrorCode.STALE_BROKER_EPOCH
