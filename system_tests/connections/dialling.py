"""Connections to a broker as plain sockets, from any address of this machine.

Owns the sockets, a first request and its response, and what a client can see of a connection:
answered, disconnected without a byte, or kept waiting. Invariant: every wait has a deadline, and
nothing is sent on a connection before the test requests it: a broker that closes a socket with
unread bytes resets it, and a test could not distinguish whether it was answered.
"""

from __future__ import annotations

import re
import select
import socket
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any, Self

from minibroker_protocol import registry
from minibroker_protocol.compiler import decode, encode
from minibroker_protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    EntityData,
    OpData,
)
from minibroker_protocol.messages.api_versions import ApiVersionsRequest
from minibroker_protocol.schema import Message
from minibroker_protocol.wire import RequestHeader, decode_response_header, encode_request_header
from system_tests.harness.brokers import RunningBroker
from system_tests.harness.control import ask
from system_tests.harness.waiting import PATIENCE_S, wait_until

CLOCK_REQUESTS = 3

Entity = Mapping[str, str | None]
"""Names by type, None for the default."""


class Client:
    """One connection."""

    def __init__(
        self, address: tuple[str, int], source: str = "127.0.0.1", client_id: str = "dialling"
    ) -> None:
        self.client_id = client_id
        self.socket = socket.create_connection(address, PATIENCE_S, (source, 0))
        self._has_sent = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send_first_request(self) -> None:
        """Send a request without waiting."""
        if not self._has_sent:
            self._has_sent = True
            self.send(ApiVersionsRequest(), 0)

    def answered(self) -> bool:
        """Wait for the response to a request; False if the broker disconnects instead."""
        self.send_first_request()
        self._has_sent = False
        try:
            return bool(self._receive())
        except ConnectionResetError:
            return False

    def is_disconnected(self) -> bool:
        """Wait until the broker disconnects; False if it sends anything."""
        return self.socket.recv(1) == b""

    def received_nothing(self) -> bool:
        """Whether the broker has neither sent anything nor closed the connection."""
        return not select.select([self.socket], [], [], 0)[0]

    def ask(self, request: Message, version: int) -> Any:
        """The response to any request; ConnectionResetError if the broker closes the connection."""
        self.send(request, version)
        return self.answer(type(request), version)

    def answer(self, request: type[Message], version: int) -> Any:
        """The response to a request that was sent; ConnectionResetError as in `ask`."""
        body = self._receive()
        if not body:
            raise ConnectionResetError("the broker closed the connection")
        key = request.__api_key__
        assert key is not None
        _, at = decode_response_header(body, key, version)
        return decode(registry.schema(key).response, version, body, at)

    def send(self, request: Message, version: int) -> None:
        """Send any request without waiting."""
        key = type(request).__api_key__
        assert key is not None
        header = RequestHeader(key, version, 1, self.client_id)
        self._send_frame(encode_request_header(header) + encode(request, version))

    def exchange(self, frame: bytes) -> bytes:
        """Send a frame and return the one that follows; ConnectionResetError as in `ask`."""
        self._send_frame(frame)
        body = self._receive()
        if not body:
            raise ConnectionResetError("the broker closed the connection")
        return body

    def _send_frame(self, frame: bytes) -> None:
        self.socket.sendall(len(frame).to_bytes(4, "big") + frame)

    def _receive(self) -> bytes:
        length = self._receive_exactly(4)
        return self._receive_exactly(int.from_bytes(length, "big")) if length else b""

    def _receive_exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self.socket.recv(count - len(data))
            if not piece:
                assert not data, "the broker disconnected within a frame"
                return b""
            data += piece
        return data


def listener_address(broker: RunningBroker, listener: str) -> tuple[str, int]:
    """The address of one of a broker's listeners."""
    (found,) = [
        each
        for each in ask(broker, "GET", "/v1/connections")["listeners"]
        if each["listener"] == listener
    ]
    return found["host"], found["port"]


def set_ip_rate(client: Client, ip: str | None, rate: float) -> None:
    """Set the connection rate of an address, or with None the default of all addresses."""
    set_quotas(client, [({"ip": ip}, {"connection_creation_rate": rate})])


def set_quota(client: Client, entity: Entity, **quotas: float) -> None:
    """Set quotas of an entity, by type and name."""
    set_quotas(client, [(entity, quotas)])


def set_quotas(client: Client, given: Sequence[tuple[Entity, Mapping[str, float]]]) -> None:
    """Set quotas of entities; they are in force in every process when the broker responds."""
    entries = [
        AlterClientQuotasRequestEntryData(
            entity=[
                EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()
            ],
            ops=[OpData(key=key, value=value) for key, value in quotas.items()],
        )
        for entity, quotas in given
    ]
    response = client.ask(AlterClientQuotasRequest(entries=entries, validate_only=False), 1)
    assert [each.error_code for each in response.entries] == [0] * len(entries), response


def change_clock(broker: RunningBroker, **change: object) -> None:
    """Freeze or advance the broker's clock; returns when every process has read it."""
    for _ in range(CLOCK_REQUESTS):
        ask(broker, "POST", "/v1/clock", change)
        change.pop("advance_ms", None)
        change.setdefault("freeze", True)


def gauge(broker: RunningBroker, name: str, **labels: str) -> float:
    """The sum of a metric's values over all series that have these labels."""
    assert broker.control_url is not None
    metrics = broker.control_url.rstrip("/") + "/metrics"
    with urllib.request.urlopen(metrics, timeout=PATIENCE_S) as answer:
        text = answer.read().decode()
    found = 0.0
    for series, value in re.findall(rf"^{name}{{(.*)}} (\S+)$", text, re.MULTILINE):
        if all(f'{label}="{wanted}"' in series for label, wanted in labels.items()):
            found += float(value)
    return found


def counted(broker: RunningBroker) -> int:
    """The number of connections that count against the broker's limits."""
    return int(gauge(broker, "minibroker_connections_counted"))


def wait_counted(broker: RunningBroker, expected: int) -> None:
    wait_until(lambda: counted(broker) == expected, f"{expected} connections to be counted")


def wait_for_listener_count(broker: RunningBroker, field: str, expected: int) -> None:
    """Wait until so many new connections are ``waiting`` or ``held``: time that is advanced
    before that would have passed before they arrived.
    """

    def found() -> int:
        listeners = ask(broker, "GET", "/v1/connections")["listeners"]
        return sum(int(listener[field]) for listener in listeners)

    wait_until(lambda: found() == expected, f"{expected} connections to be {field}")
