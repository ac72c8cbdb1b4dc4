"""Close connections whose TLS handshake or authentication takes too long.

Real time counts: on a frozen clock a half-open handshake would stay forever, and an advance of the
clock would end those of honest clients.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import trio

from minibroker.broker.metrics.definitions import CloseReason
from minibroker.broker.network.client_connection import ClientConnection, IdleConnections
from minibroker.runtime.clock import Clock

TLS_S: Final = 10.0
"""How long the TLS handshake may take, in real seconds."""

SASL_S: Final = 30.0
"""How long SASL authentication may take, in real seconds."""


class Handshakes:
    """Handshakes of one kind in progress in one processor."""

    def __init__(self, clock: Clock, limit_s: float, reason: CloseReason, text: str) -> None:
        """A late connection is closed for ``reason``, which ``text`` explains in the log."""
        self._clock = clock
        self._limit_s = limit_s
        self._reason = reason
        self._text = text
        self._started: IdleConnections[ClientConnection] = IdleConnections()
        self._has_handshakes = trio.Event()

    @contextmanager
    def track(self, client: ClientConnection) -> Iterator[None]:
        """Context in which the handshake of a client must complete."""
        self._started.use(client, self._clock.real_s())
        self._has_handshakes.set()
        try:
            yield
        finally:
            self.ended(client)

    def ended(self, client: ClientConnection) -> None:
        """Note that the handshake has ended."""
        self._started.forget(client)

    async def close_overdue(self) -> None:
        """Close overdue connections. Run until cancelled."""
        while True:
            oldest = self._started.oldest_use()
            if oldest is None:
                self._has_handshakes = trio.Event()
                await self._has_handshakes.wait()
                continue
            await self._clock.sleep_real(oldest + self._limit_s - self._clock.real_s())
            for client in self._started.idle_since(oldest):
                client.close(self._reason, self._text)
                self.ended(client)


def tls_handshakes(clock: Clock) -> Handshakes:
    """Return the tracker of TLS handshakes, with their time limit."""
    text = f"the TLS handshake was not completed within {TLS_S:g} s"
    return Handshakes(clock, TLS_S, CloseReason.TLS_FAILED, text)


def authentications(clock: Clock) -> Handshakes:
    """Return the tracker of SASL authentications, with their time limit."""
    text = f"the client was not authenticated within {SASL_S:g} s"
    return Handshakes(clock, SASL_S, CloseReason.AUTHENTICATION_FAILED, text)
