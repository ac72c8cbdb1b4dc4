"""A client, a proxied connection and a broker in memory, each of whose steps a test chooses."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio
from trio.testing import wait_all_tasks_blocked

from minibroker.broker.settings.setting import HostPort
from minibroker.lab.faults.fault_rule import FaultRule
from minibroker.lab.proxy.connection import (
    FrameReader,
    ListenFailed,
    ProxiedConnection,
    UpstreamLost,
)
from minibroker.lab.proxy.exchange import TopicNames
from minibroker.lab.proxy.faults import ProxyFaults
from minibroker.lab.proxy.journal import JournaledProcess
from minibroker.lab.proxy.namespace import NamespaceNames
from minibroker.lab.schema import parse
from minibroker.runtime.stream import ByteStream, memory_stream_pair
from minibroker_protocol.compiler import decode, encode
from minibroker_protocol.registry import schema
from minibroker_protocol.schema import Message
from minibroker_protocol.wire import (
    RequestHeader,
    decode_request_header,
    encode_request_header,
    encode_response_header,
)
from tests.broker.network.raw_client import response_in

BROKER = HostPort("kafka", 9092)
LOCAL = "10.0.0.1"
LIMIT = 10**6


def request_frame(message: Message, version: int, correlation_id: int = 1) -> bytes:
    """A request without its length."""
    key = type(message).__api_key__
    assert key is not None
    header = RequestHeader(key, version, correlation_id, "client")
    return encode_request_header(header) + encode(message, version)


def response_frame(message: Message, version: int, correlation_id: int = 1) -> bytes:
    """A response without its length."""
    key = type(message).__api_key__
    assert key is not None
    return encode_response_header(key, version, correlation_id) + encode(message, version)


def with_length(frame: bytes) -> bytes:
    return len(frame).to_bytes(4, "big") + frame


class Conversation:
    """Implements ``ConnectionScope`` for one connection."""

    def __init__(self, process: JournaledProcess) -> None:
        self.client, client_end = memory_stream_pair(("127.0.0.9", 5), (LOCAL, 19092))
        self.broker, self._upstream_end = memory_stream_pair()
        self._from_proxy = FrameReader(self.client, LIMIT)
        self._from_client = FrameReader(self.broker, LIMIT)
        self.connection: ProxiedConnection
        self.faults = ProxyFaults(lambda: [self.connection])
        self.executor = self.faults.executor
        self.topic_names = TopicNames()
        self.namespace: NamespaceNames | None = None
        self.client_tls = None
        self.process = process
        self.is_reachable = True
        self.listen_failure = ""
        self.connection = ProxiedConnection(3, BROKER, client_end, self)
        self.ended = trio.Event()

    async def connect(self, broker: HostPort) -> ByteStream:
        if not self.is_reachable:
            raise UpstreamLost(f"broker {broker} can't be reached: test")
        return self._upstream_end

    def local_address(self, broker: HostPort, seen_from: str) -> HostPort:
        if self.listen_failure:
            raise ListenFailed(self.listen_failure)
        return HostPort(seen_from, broker.port + 1)

    async def run(self) -> None:
        await self.connection.run()
        self.ended.set()

    async def add(self, action: Any, **fields: Any) -> str:
        """Add a rule and return its id."""
        return (await self.faults.add(parse(FaultRule, {"action": action, **fields}))).id

    # What the client does -------------------------------------------------------------------

    async def send(self, message: Message, version: int, correlation_id: int = 1) -> None:
        await self.send_frame(request_frame(message, version, correlation_id))

    async def send_frame(self, frame: bytes) -> None:
        await self.client.send_all(with_length(frame))

    async def receive_frame(self) -> bytes | None:
        return await self._from_proxy.next_frame()

    async def receive(self, request: Message, version: int) -> Any:
        frame = await self.receive_frame()
        assert frame is not None, self.connection.end
        return response_in(with_length(frame), request, version)

    # What the broker does -------------------------------------------------------------------

    async def taken_frame(self) -> bytes | None:
        """The next request that arrives at the broker."""
        return await self._from_client.next_frame()

    async def taken(self) -> tuple[RequestHeader, Any]:
        frame = await self.taken_frame()
        assert frame is not None
        header, at = decode_request_header(frame)
        request = schema(header.api_key).request
        return header, decode(request, header.api_version, frame, at)

    async def answer(self, message: Message, version: int, correlation_id: int = 1) -> None:
        await self.answer_frame(response_frame(message, version, correlation_id))

    async def answer_frame(self, frame: bytes) -> None:
        await self.broker.send_all(with_length(frame))


@asynccontextmanager
async def conversation(
    *, reachable: bool = True, process: JournaledProcess | None = None
) -> AsyncIterator[Conversation]:
    """A running connection, which has passed the rules about new ones."""
    made = Conversation(process or JournaledProcess())
    made.is_reachable = reachable
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.run)
        await wait_all_tasks_blocked()
        yield made
        nursery.cancel_scope.cancel()
