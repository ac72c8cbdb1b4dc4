"""A complete broker of tasks whose listeners authenticate, and its clients."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from minibroker.broker.metrics.definitions import CLOSED, CloseReason
from minibroker.broker.network.client_connection import ClientConnection
from minibroker.broker.network.quota_stage import RequestCost
from minibroker.broker.network.request_handler import RequestHandler
from minibroker.broker.network.tls import TlsStream
from minibroker.broker.security.principal import Introduction, Principal
from minibroker.broker.settings import Settings
from minibroker.launch.tasks import TaskBroker
from minibroker.runtime.arena import Block
from minibroker.runtime.clock import SimulatedClock
from minibroker.runtime.stream import MemoryStream
from minibroker_protocol.messages.api_versions import ApiVersionsRequest
from tests.broker.network.certificates import keystore
from tests.simulation.client import SimulatedClient

HELLO = ApiVersionsRequest(client_software_name="me", client_software_version="1")


def by_host(introduction: Introduction) -> Principal:
    """Names clients by their addresses, as ``principal.builder.class`` of a test's broker."""
    return Principal("User", introduction.client_host)


class SecuredBroker:
    """The broker, and how to reach a listener of it."""

    def __init__(self, broker: TaskBroker, clock: SimulatedClock) -> None:
        self.broker = broker
        self.wall_ms = clock.wall_ms
        self.known: dict[str, Principal] = {}
        self.asked: set[int] = set()
        """Keys of all requests of authenticated clients."""

    async def dial(self, listener: str, host: str = "127.0.0.1") -> MemoryStream:
        return await self.broker.sources[listener].connect(host)

    async def connect(
        self, listener: str, context: ssl.SSLContext | None = None
    ) -> SimulatedClient:
        """A client; with TLS if a context is given."""
        inner = await self.dial(listener)
        if context is None:
            return SimulatedClient(inner)
        stream = TlsStream(inner, context, server_side=False)
        await stream.handshake()
        return SimulatedClient(stream)

    def principal(self, listener: str) -> Principal:
        """Return the principal of the last request of a listener, as APIs see it."""
        return self.known[listener]

    async def closed(self, reason: CloseReason) -> list[str]:
        """The listeners of which connections were closed for a reason."""
        await trio.sleep(1)  # Failures are answered late.
        return [
            labels[0]
            for name in self.broker.role_names
            for (metric, labels), count in self.broker.environment(name)
            .metrics.snapshot()
            .counters.items()
            if metric == CLOSED.name and labels[1] == reason
            for _ in range(int(count))
        ]


@asynccontextmanager
async def secured(directory: Path, mock: MockClock, *pairs: str) -> AsyncIterator[SecuredBroker]:
    """A running broker with the server's certificate in ``directory``."""
    given = [f"ssl.keystore.location={keystore(directory)}", *pairs]
    clock = SimulatedClock(mock)
    broker = TaskBroker(Settings.from_sources(pairs=given), directory, clock=clock, seed=1)
    at = SecuredBroker(broker, clock)
    real = RequestHandler.start_now

    def noting(
        self: RequestHandler, client: ClientConnection, body: bytes | Block
    ) -> RequestCost | Awaitable[None]:
        start = body if isinstance(body, bytes) else bytes(body.view[:2])
        at.asked.add(int.from_bytes(start[:2], "big"))
        at.known[client.caller.listener] = client.caller.principal
        return real(self, client, body)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RequestHandler, "start_now", noting)
        async with trio.open_nursery() as nursery:
            await nursery.start(broker.run)
            yield at
            await broker.stop()
