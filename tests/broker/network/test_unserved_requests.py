"""A processor reports clients whose requests are not served."""

from __future__ import annotations

from typing import Any

import pytest
from trio.testing import MockClock

from minibroker.broker.process.messages import (
    DetailsRequest,
)
from minibroker_protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from minibroker_protocol.messages.find_coordinator import FindCoordinatorRequest
from minibroker_protocol.messages.init_producer_id import InitProducerIdRequest
from minibroker_protocol.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest
from minibroker_protocol.messages.streams_group_topology_description_update import (
    StreamsGroupTopologyDescriptionUpdateRequest,
)
from minibroker_protocol.messages.vote import VoteRequest
from minibroker_protocol.wire import RequestHeader, encode_request_header
from tests.broker.process.conftest import MakeEnvironment
from tests.broker.roles.running_processor import HELLO, LOOK, running_processor
from tests.simulation.client import api_key

TOPOLOGY_UPDATE = StreamsGroupTopologyDescriptionUpdateRequest()


@pytest.mark.parametrize(
    ("request_", "version", "protocol"),
    [
        (ConsumerGroupHeartbeatRequest(), 1, "the consumer group protocol of KIP-848"),
        (StreamsGroupHeartbeatRequest(), 0, "the streams group protocol of KIP-1071"),
        (TOPOLOGY_UPDATE, 0, "the streams group protocol of KIP-1071"),
    ],
)
async def test_processor_reports_clients_that_ask_for_unserved_protocols(
    make_env: MakeEnvironment, autojump_clock: MockClock, request_: Any, version: int, protocol: str
) -> None:
    protocols = "group.coordinator.rebalance.protocols=classic"
    async with running_processor(make_env, protocols) as at:
        client = await at.connect()
        await client.ask(HELLO, 4)
        await client.ask(request_, version)
        assert at.controller is not None
        (unserved,) = (await at.controller.request(DetailsRequest())).unserved
        assert (unserved.client_id, unserved.software_name, unserved.host) == (
            "t",
            "me",
            "10.0.0.1",
        )
        assert (unserved.protocol, unserved.requests) == (protocol, 1)


@pytest.mark.parametrize(
    ("request_", "version", "protocol"),
    [
        (VoteRequest(), 0, "VOTE is not served"),
        (LOOK, 0, "LIST_OFFSETS version 0 is not served, 1 to 11 are"),
    ],
)
async def test_processor_reports_clients_that_it_disconnects_for_unserved_requests(
    make_env: MakeEnvironment, autojump_clock: MockClock, request_: Any, version: int, protocol: str
) -> None:
    async with running_processor(make_env) as at:
        client = await at.connect()
        header = RequestHeader(api_key(request_), version, 1, "old")
        body = encode_request_header(header)
        await client.stream.send_all(len(body).to_bytes(4, "big") + body)
        await client.wait_closed()
        assert at.controller is not None
        (unserved,) = (await at.controller.request(DetailsRequest())).unserved
        assert (unserved.client_id, unserved.protocol) == ("old", protocol)


async def test_processor_reports_no_unserved_protocol_for_ordinary_rejections(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with running_processor(make_env) as at:
        client = await at.connect()
        await client.ask(FindCoordinatorRequest(coordinator_keys=["t"], key_type=9), 6)
        half = InitProducerIdRequest(transactional_id=None, producer_id=5)
        await client.ask(half, 4)
        assert at.controller is not None
        assert (await at.controller.request(DetailsRequest())).unserved == ()
