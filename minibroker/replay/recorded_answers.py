"""The recorded response to each request of a live client.

Owns which recorded response comes next, and what of it is changed. It must never know connections
or time. Invariant: ids in responses stay as recorded, so that the client uses the recorded ones;
only the correlation id, the addresses of brokers and repeated records are changed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from minibroker.config.types import HostPort
from minibroker.proxy.rewriting import can_name_brokers, rewrite, translate_addresses
from minibroker.replay.capture import Captured
from protocol.errors import DecodeError
from protocol.headers import RequestHeader
from protocol.registry import ApiKey

REPEATED: Final = frozenset(
    {
        ApiKey.FETCH,
        ApiKey.LIST_OFFSETS,
        ApiKey.METADATA,
        ApiKey.OFFSET_COMMIT,
        ApiKey.OFFSET_FETCH,
        ApiKey.FIND_COORDINATOR,
        ApiKey.HEARTBEAT,
        ApiKey.LEAVE_GROUP,
        ApiKey.API_VERSIONS,
        ApiKey.DESCRIBE_CLUSTER,
        ApiKey.GET_TELEMETRY_SUBSCRIPTIONS,
    }
)
"""APIs whose last response is repeated if a client requests more often than recorded."""

_Kind = tuple[int, int]
"""API key and version."""


class RecordedAnswers:
    """The responses of a capture, in the recorded order of each API and version."""

    def __init__(self, requests: Sequence[Captured]) -> None:
        self._next: dict[_Kind, deque[Captured]] = {}
        self._last: dict[_Kind, Captured] = {}
        for each in requests:
            if each.response is not None:
                kind = each.header.api_key, each.header.api_version
                self._next.setdefault(kind, deque()).append(each)

    def take(self, header: RequestHeader) -> tuple[Captured, bool] | None:
        """Return the next recorded request and whether its response was given before.

        Those of the same client id come first. None if there is none.
        """
        kind = header.api_key, header.api_version
        waiting = self._next.get(kind) or deque()
        found = next((each for each in waiting if each.header.client_id == header.client_id), None)
        if found is None and waiting:
            found = waiting[0]
        if found is not None:
            waiting.remove(found)
            self._last[kind] = found
            return found, False
        last = self._last.get(kind)
        return (last, True) if last is not None and header.api_key in REPEATED else None


def answer_frame(
    captured: Captured, correlation_id: int, address: HostPort, *, is_repeated: bool
) -> bytes:
    """Return a recorded response for a live request."""
    assert captured.response is not None
    key, version = captured.header.api_key, captured.header.api_version
    frame = captured.response
    try:
        if can_name_brokers(key, version):
            frame = rewrite(key, version, frame, lambda response, of: _at(response, of, address))
        if is_repeated and key == ApiKey.FETCH:
            frame = rewrite(key, version, frame, _without_records)
    except DecodeError:
        pass  # Sent as it was recorded.
    return correlation_id.to_bytes(4, "big", signed=True) + frame[4:]


def _at(response: Any, version: int, address: HostPort) -> bool:
    return translate_addresses(response, version, lambda _: address)


def _without_records(response: Any, _version: int) -> bool:
    for topic in response.responses:
        for partition in topic.partitions:
            partition.records = b""
    return True
