"""Single requests over bare sockets, sent again and again by a C client: ``frames.c``.

Owns the choice of versions, the encoded requests and the check of answers. It must never know which
figures a measure makes of a run. Invariant: a run whose first or last answer has an error code, or
whose answers differ although they should not, raises and never counts as a figure.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from minibroker_protocol import registry
from minibroker_protocol.compiler import decode, encode
from minibroker_protocol.messages.api_versions import ApiVersionsRequest
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.schema import Message, Struct
from minibroker_protocol.wire import RequestHeader, decode_response_header, encode_request_header
from system_tests.benchmarks.client import FRAMES, RunFailed, run_program
from system_tests.benchmarks.peers import Peer
from system_tests.connections.dialling import Client

CLIENT_ID = "benchmark"
VERSIONS_MOST = {
    ApiKey.PRODUCE: 9,
    ApiKey.FETCH: 11,
    ApiKey.LIST_OFFSETS: 7,
    ApiKey.OFFSET_COMMIT: 8,
    ApiKey.OFFSET_FETCH: 7,
    ApiKey.FIND_COORDINATOR: 3,
    ApiKey.JOIN_GROUP: 3,
    ApiKey.HEARTBEAT: 4,
    ApiKey.SYNC_GROUP: 3,
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.ADD_PARTITIONS_TO_TXN: 3,
    ApiKey.END_TXN: 3,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: 1,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: 1,
    ApiKey.SHARE_GROUP_HEARTBEAT: 1,
    ApiKey.SHARE_FETCH: 2,
    ApiKey.SHARE_ACKNOWLEDGE: 2,
}
"""The last versions with one group or transaction, topics by name, and a member that joins at
once.
"""
LOADING_S: Final = 30.0
RETRY_S: Final = 0.1


@dataclass(frozen=True)
class Seen:
    """Results of one run."""

    seconds: float
    answers: int
    """With those of the warm-up."""
    different: int
    median_us: float
    p99_us: float
    first: str
    last: str


class Versioned:
    """A connection that knows which versions its peer has."""

    def __init__(self, client: Client) -> None:
        self._client = client
        keys = client.ask(ApiVersionsRequest(), 0).api_keys
        self._most: dict[int, int] = {each.api_key: each.max_version for each in keys}

    def version(self, key: int) -> int:
        if key not in self._most:
            raise RunFailed(f"{ApiKey(key).name} is not supported")
        return min(VERSIONS_MOST[ApiKey(key)], self._most[key])

    def ask(self, request: Message) -> Any:
        return self._client.ask(request, self.version(key_of(request)))

    def send(self, request: Message) -> None:
        """Send a request without waiting."""
        self._client.send(request, self.version(key_of(request)))

    def answer(self, request: type[Message]) -> Any:
        """The response to a request that was sent."""
        return self._client.answer(request, self.version(request.__api_key__ or 0))

    def ask_until_accepted(self, request: Message) -> Any:
        """Repeat a request until it has no error: a coordinator may still be loading."""
        ends = time.monotonic() + LOADING_S
        while True:
            response = self.ask(request)
            try:
                refuse_errors(response)
            except RunFailed:
                if time.monotonic() > ends:
                    raise
                time.sleep(RETRY_S)
            else:
                return response

    def frame(self, request: Message) -> bytes:
        return frame(request, self.version(key_of(request)))


@contextmanager
def versioned(peer: Peer) -> Iterator[Versioned]:
    host, port = peer.servers.split(",")[0].rsplit(":", 1)
    with Client((host, int(port)), client_id=CLIENT_ID) as client:
        yield Versioned(client)


def key_of(request: Message) -> int:
    key = type(request).__api_key__
    assert key is not None
    return key


def frame(request: Message, version: int) -> bytes:
    """Return a request as it is sent, with its size."""
    header = encode_request_header(RequestHeader(key_of(request), version, 1, CLIENT_ID))
    body = header + encode(request, version)
    return len(body).to_bytes(4, "big") + body


def repeat(
    peer: Peer, requests: Sequence[bytes], count: int, *, connections: int = 1, alike: bool = True
) -> Seen:
    """Send requests until there are `count` answers, one in flight on each connection.

    `alike` if all answers must have the same bytes.
    """
    servers = peer.servers.split(",")[0]
    seen = Seen(**run_program(FRAMES, servers, count, connections, given=b"".join(requests)))
    if alike and seen.different:
        raise RunFailed(f"{seen.different} of {seen.answers} answers differ from the first")
    key, version = (int.from_bytes(requests[0][at : at + 2], "big") for at in (4, 6))
    for answer in (seen.first, seen.last):
        refuse_errors(decoded(bytes.fromhex(answer), key, version))
    return seen


def decoded(answer: bytes, key: int, version: int) -> Any:
    _, at = decode_response_header(answer, key, version)
    return decode(registry.schema(key).response, version, answer, at)


def refuse_errors(answer: Any) -> None:
    """Raise `RunFailed` if a response, or anything in it, has an error code."""
    if isinstance(answer, list):
        for each in answer:
            refuse_errors(each)
    elif isinstance(answer, Struct):
        for field in answer.__fields__:
            value = getattr(answer, field.name)
            if field.name == "error_code" and value != 0:
                raise RunFailed(f"{type(answer).__name__} has error code {value}")
            refuse_errors(value)
