"""A whole broker with a persona answers as the recorded one, request by request."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
from trio.testing import MockClock

from minibroker.broker.apis.registry import serving
from minibroker.broker.metadata.features import DESCRIPTIVE, GROUP_VERSION, TRANSACTION_VERSION
from minibroker.broker.personas.persona import NAMES, load
from minibroker.broker.settings import Settings
from minibroker.runtime.stream import StreamClosed
from minibroker_protocol import registry
from minibroker_protocol.compiler import decode
from minibroker_protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from minibroker_protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from minibroker_protocol.records import Record, build_batch
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.wire import decode_response_header
from tests.broker.network.one_broker import another, running
from tests.simulation.client import SimulatedClient

SOFTWARE: Final[dict[str, Any]] = {"client_software_name": "t", "client_software_version": "1"}
NEWEST = 5
"""The newest version of ApiVersions."""
METADATA = 4
PRODUCE = 3


def listed(response: Any) -> dict[int, tuple[int, int]]:
    return {each.api_key: (each.min_version, each.max_version) for each in response.api_keys}


@pytest.mark.parametrize("name", NAMES)
async def test_versions_and_features_are_those_of_the_persona(
    tmp_path: Path, autojump_clock: MockClock, name: str
) -> None:
    persona, settings = load(name), Settings.from_sources(pairs=[f"persona={name}"])
    async with running(tmp_path, autojump_clock, "combined", f"persona={name}") as client:
        found = listed(await client.ask(ApiVersionsRequest(), 0))
        assert found == serving(settings).advertised
        high = found[ApiKey.API_VERSIONS][1]
        response = await client.ask(ApiVersionsRequest(**SOFTWARE), high)
        shown = {each.name: each.max_version_level for each in response.finalized_features}
        assert (response.finalized_features_epoch < 0) == (persona.features is None)
        theirs = {} if persona.features is None else persona.features.finalized
        wanted = DESCRIPTIVE | {GROUP_VERSION.name, TRANSACTION_VERSION.name}
        assert shown == {name: level for name, level in theirs.items() if name in wanted}


@pytest.mark.parametrize("name", NAMES)
async def test_version_above_the_persona_s_maximum_disconnects(
    tmp_path: Path, autojump_clock: MockClock, name: str
) -> None:
    async with running(tmp_path, autojump_clock, "combined", f"persona={name}") as client:
        found = listed(await client.ask(ApiVersionsRequest(), 0))
        for key in (ApiKey.METADATA, ApiKey.PRODUCE, ApiKey.FIND_COORDINATOR):
            request = registry.schema(key).request()
            version = found[key][1] + 1
            if registry.schema(key).valid_versions.has(version):
                other = await another(client)
                with pytest.raises(StreamClosed):
                    await other.ask(request, version)


async def unknown_version(client: SimulatedClient, version: int) -> ApiVersionsResponse:
    await client.send_request(ApiVersionsRequest(**SOFTWARE), version)
    body = await client.receive_frame()
    _, at = decode_response_header(body, ApiKey.API_VERSIONS, 0)
    return decode(ApiVersionsResponse, 0, body, at)


@pytest.mark.parametrize(
    ("name", "lists"),
    [("kafka-0.11", "none"), ("kafka-2.0", "none"), ("kafka-2.4", "own"), ("redpanda", "all")],
)
async def test_unknown_version_of_api_versions_is_answered_as_by_the_persona(
    tmp_path: Path, autojump_clock: MockClock, name: str, lists: str
) -> None:
    async with running(tmp_path, autojump_clock, "combined", f"persona={name}") as client:
        everything = listed(await client.ask(ApiVersionsRequest(), 0))
        response = await unknown_version(client, NEWEST)
        assert response.error_code == 35
        own = {18: everything[18]}
        assert listed(response) == {"none": {}, "own": own, "all": everything}[lists]


@pytest.mark.parametrize("name", NAMES)
async def test_new_topic_and_unknown_producer_get_the_errors_of_the_persona(
    tmp_path: Path, autojump_clock: MockClock, name: str
) -> None:
    behaviour = load(name).behaviour
    request = MetadataRequest(topics=[MetadataRequestTopic(name="new")])
    async with running(tmp_path, autojump_clock, "combined", f"persona={name}") as client:
        codes = [(await client.ask(request, METADATA)).topics[0].error_code for _ in range(2)]
        assert codes == [behaviour.new_topic_error, 0]
        assert await produced(client, sequence=5) == behaviour.unknown_producer_error
        assert await produced(client, sequence=0, producer_id=7) == 0
        assert await produced(client, sequence=1, producer_id=7) == 0


async def produced(client: SimulatedClient, *, sequence: int, producer_id: int = 4711) -> int:
    batch = build_batch(
        [Record(value=b"x")], producer_id=producer_id, producer_epoch=0, base_sequence=sequence
    )
    data = [PartitionProduceData(index=0, records=batch)]
    topics = [TopicProduceData(name="new", partition_data=data)]
    response = await client.ask(ProduceRequest(acks=-1, timeout_ms=1, topic_data=topics), PRODUCE)
    return int(response.responses[0].partition_responses[0].error_code)


@pytest.mark.parametrize(("name", "prefix"), [("redpanda", "redpanda."), ("kafka-3.9", "")])
async def test_new_cluster_id_has_the_form_of_the_persona(
    tmp_path: Path, autojump_clock: MockClock, name: str, prefix: str
) -> None:
    async with running(tmp_path, autojump_clock, "combined", f"persona={name}") as client:
        cluster_id = (await client.ask(MetadataRequest(topics=[]), METADATA)).cluster_id
    assert cluster_id.startswith(prefix)
    assert len(cluster_id.removeprefix(prefix)) == (36 if prefix else 22)
