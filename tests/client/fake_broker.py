"""A broker that gives prepared answers, for tests of clients."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import trio

from minibroker_protocol.compiler import decoder, encode
from minibroker_protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from minibroker_protocol.registry import ApiKey, schema
from minibroker_protocol.schema import Message
from minibroker_protocol.wire import decode_request_header, encode_response_header

T = TypeVar("T")

Answer = Callable[[Any], Message | None]


class FakeBroker:
    """Answers the APIs in ``answers`` and records requests with their versions.

    For each API in ``drop_once`` it closes the connection once instead of answering.
    """

    def __init__(self) -> None:
        self.answers: dict[ApiKey, Answer] = {ApiKey.API_VERSIONS: self._api_versions}
        self.versions: dict[ApiKey, tuple[int, int]] = {}
        self.requests: list[tuple[int, Message]] = []
        self.drop_once: list[ApiKey] = []
        self.port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _api_versions(self, request: ApiVersionsRequest) -> ApiVersionsResponse:
        keys = []
        for key in self.answers:
            low, high = self.versions.get(key, schema(key).valid_versions)
            keys.append(ApiVersion(api_key=key, min_version=low, max_version=high))
        return ApiVersionsResponse(api_keys=keys)

    async def listen(self, nursery: trio.Nursery) -> None:
        """Listen on a free port."""
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.port = listeners[0].socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, self._serve, listeners)

    async def _serve(self, stream: trio.SocketStream) -> None:
        received = bytearray()
        async for chunk in stream:
            received += chunk
            while len(received) >= 4:
                size = 4 + struct.unpack_from(">i", received)[0]
                if len(received) < size:
                    break
                reply = self._reply(bytes(received[4:size]))
                del received[:size]
                if reply == b"":
                    await stream.aclose()
                    return
                if reply is not None:
                    await stream.send_all(struct.pack(">i", len(reply)) + reply)

    def _reply(self, frame: bytes) -> bytes | None:
        header, body = decode_request_header(frame)
        key = ApiKey(header.api_key)
        request, _ = decoder(schema(key).request, header.api_version)(frame, body)
        self.requests.append((header.api_version, request))
        if key in self.drop_once:
            self.drop_once.remove(key)
            return b""
        answer = self.answers[key](request)
        if answer is None:
            return None
        prefix = encode_response_header(key, header.api_version, header.correlation_id)
        return prefix + encode(answer, header.api_version)


@pytest.fixture
async def fake_broker(nursery: trio.Nursery) -> FakeBroker:
    broker = FakeBroker()
    await broker.listen(nursery)
    return broker


async def in_thread(call: Callable[[], T]) -> T:
    """Run a blocking call while the fake broker answers."""
    with trio.fail_after(10):
        return await trio.to_thread.run_sync(call)
