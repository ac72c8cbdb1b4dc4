"""Every version finds a coordinator at the caller's listener, and reports missing ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from minibroker.broker.apis.find_coordinator import API
from minibroker.broker.metadata.image import OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.find_coordinator import FindCoordinatorRequest


def request(version: int, key: str = "g", key_type: int = 0) -> FindCoordinatorRequest:
    if version < 4:
        return FindCoordinatorRequest(key=key, key_type=key_type)
    return FindCoordinatorRequest(coordinator_keys=[key], key_type=key_type)


def found(version: int, response: Any) -> Any:
    return response if version < 4 else response.coordinators[0]


@pytest.mark.parametrize("version", range(7))
@pytest.mark.parametrize(
    ("listener", "address"),
    [("PLAINTEXT", ("127.0.0.1", 9092)), ("OUTSIDE", ("example.test", 19092))],
)
async def test_group_coordinator_is_leader_of_its_offsets_partition(
    apis: Any, version: int, listener: str, address: tuple[str, int]
) -> None:
    node = found(version, await apis.ask(API, request(version), version, listener))
    assert (node.error_code, node.host, node.port) == (ErrorCode.NONE, *address)
    assert node.node_id == next(iter(apis.controller.image.brokers))
    assert apis.asked == {}


async def test_several_keys_are_answered_in_request_order(apis: Any) -> None:
    keys = ["b", "a", "b", ""]
    response = await apis.ask(API, FindCoordinatorRequest(coordinator_keys=keys), 6)
    assert [each.key for each in response.coordinators] == keys
    assert {each.error_code for each in response.coordinators} == {ErrorCode.NONE}


@pytest.mark.parametrize("version", [1, 3, 6])
@pytest.mark.parametrize(
    ("key_type", "text"),
    [
        (2, "is not the key of a share partition"),
        (9, "Key type 9 is unknown"),
    ],
)
async def test_unsupported_key_type_is_rejected_with_message(
    apis: Any, version: int, key_type: int, text: str
) -> None:
    response = await apis.ask(API, request(version, key_type=key_type), version)
    node = found(version, response)
    assert node.error_code == ErrorCode.INVALID_REQUEST
    assert text in node.error_message
    assert (node.node_id, node.host, node.port) == (-1, "", -1)


@pytest.mark.parametrize("version", [0, 6])
async def test_missing_leader_or_listener_is_coordinator_not_available(
    apis: Any, version: int
) -> None:
    again = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert (
        found(version, await apis.ask(API, request(version), version, "NONE")).error_code == again
    )
    image = apis.controller.image
    topics = {name: topic for name, topic in image.topics.items() if name != OFFSETS_TOPIC}
    apis.image = replace(image, topics=topics)
    assert found(version, await apis.ask(API, request(version), version)).error_code == again


@pytest.mark.parametrize("version", range(1, 7))
async def test_first_transactional_id_creates_state_topic(apis: Any, version: int) -> None:
    assert TRANSACTION_STATE_TOPIC not in apis.controller.image.topics
    node = found(version, await apis.ask(API, request(version, "x", 1), version))
    assert (node.error_code, node.host, node.port) == (ErrorCode.NONE, "127.0.0.1", 9092)
    topic = apis.controller.image.topics[TRANSACTION_STATE_TOPIC]
    assert (len(topic.partitions), topic.internal) == (50, True)
    await apis.ask(API, request(version, "y", 1), version)
    assert apis.asked == {}


async def test_no_transactional_id_creates_no_topic(apis: Any) -> None:
    empty = FindCoordinatorRequest(coordinator_keys=[], key_type=1)
    assert (await apis.ask(API, empty, 6)).coordinators == []
    assert TRANSACTION_STATE_TOPIC not in apis.controller.image.topics
