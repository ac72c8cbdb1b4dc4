"""Every version of ControlledShutdown returns the remaining partitions, and stops nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from minibroker.broker.apis.controlled_shutdown import API
from minibroker.broker.metadata.topics import NewTopic
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.controlled_shutdown import ControlledShutdownRequest
from tests.broker.apis.conftest import ApisMaker

VERSIONS = range(4)


@pytest.fixture
async def apis(make_apis: ApisMaker) -> Any:
    made = await make_apis()
    outcome = await made.cluster.create_topics([NewTopic("t", 2)])
    await made.controller.publish(outcome.updates)
    return made


@pytest.mark.parametrize("version", VERSIONS)
async def test_unreplicated_partitions_do_not_remain(apis: Any, version: int) -> None:
    response = await apis.ask(API, ControlledShutdownRequest(broker_id=1), version)
    assert (response.error_code, response.remaining_partitions) == (ErrorCode.NONE, [])
    assert apis.asked == {}


@pytest.mark.parametrize("version", VERSIONS)
async def test_replicated_partition_remains(apis: Any, version: int) -> None:
    image = apis.controller.at_processor
    topic = image.topics["t"]
    first, second = topic.partitions
    copied = replace(second, replicas=(1, 2))
    topics = {**image.topics, "t": topic._replace(partitions=(first, copied))}
    apis.image = replace(image, topics=topics)
    response = await apis.ask(API, ControlledShutdownRequest(broker_id=1), version)
    remaining = [(one.topic_name, one.partition_index) for one in response.remaining_partitions]
    assert remaining == [("t", 1)]


@pytest.mark.parametrize("version", VERSIONS)
async def test_shutdown_of_other_broker_is_broker_not_available(apis: Any, version: int) -> None:
    for epoch in (-1, 0):
        asked = ControlledShutdownRequest(broker_id=2, broker_epoch=epoch)
        response = await apis.ask(API, asked, version)
        assert response.error_code == ErrorCode.BROKER_NOT_AVAILABLE


@pytest.mark.parametrize("version", [2, 3])
async def test_stale_broker_epoch_is_rejected(apis: Any, version: int) -> None:
    asked = ControlledShutdownRequest(broker_id=1, broker_epoch=0)
    assert (await apis.ask(API, asked, version)).error_code == ErrorCode.STALE_BROKER_EPOCH
