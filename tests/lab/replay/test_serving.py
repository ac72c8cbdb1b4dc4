"""Clients of the server get the recorded responses, and a closed connection without one."""

from __future__ import annotations

import pytest
import trio

from minibroker.broker.settings.types import HostPort
from minibroker.lab.replay.capture import Capture, read_capture
from minibroker.lab.replay.serving import serve_capture
from minibroker.runtime.stream import StreamClosed
from minibroker_protocol.messages.create_topics import CreateTopicsRequest
from minibroker_protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
)
from minibroker_protocol.messages.produce import ProduceRequest
from tests.lab.replay.recording import CaptureWriter
from tests.simulation.client import SimulatedClient


def capture() -> Capture:
    writer = CaptureWriter()
    broker = MetadataResponseBroker(node_id=1, host="elsewhere", port=9092)
    response = MetadataResponse(brokers=[broker], cluster_id="c")
    writer.exchange("1", 1, MetadataRequest(topics=[]), 9, response)
    return read_capture(writer.lines)


class SocketStream:
    """A trio stream with the methods of the broker's streams."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream

    async def send_all(self, data: bytes) -> None:
        await self._stream.send_all(data)

    async def receive_into(self, room: memoryview) -> int:
        data = await self._stream.receive_some(len(room))
        room[: len(data)] = data
        return len(data)


@pytest.mark.parametrize("speed", [None, 1.0])
async def test_client_gets_recorded_responses_from_the_server(speed: float | None) -> None:
    ready = trio.Event()
    found: list[HostPort] = []

    def on_ready(address: HostPort) -> None:
        found.append(address)
        ready.set()

    async with trio.open_nursery() as nursery:
        listening = HostPort("127.0.0.1", 0)
        nursery.start_soon(lambda: serve_capture(capture(), listening, on_ready, speed=speed))
        await ready.wait()
        async with await trio.open_tcp_stream(*found[0]) as stream:
            client = SimulatedClient(SocketStream(stream))  # type: ignore[arg-type]
            await client.send_request(ProduceRequest(acks=0), 9)
            for _ in range(2):
                client._correlation_id += 5
                response = await client.ask(MetadataRequest(topics=[]), 9)
                assert response.cluster_id == "c"
                [broker] = response.brokers
                assert (broker.host, broker.port) == found[0]
            with pytest.raises(StreamClosed):
                await client.ask(CreateTopicsRequest(topics=[]), 7)
        nursery.cancel_scope.cancel()
