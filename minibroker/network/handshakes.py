"""Close connections whose TLS handshake takes too long.

Real time counts: on a frozen clock a half-open handshake would stay forever, and an advance of the
clock would end those of honest clients.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import trio

from minibroker.network.client import Client
from minibroker.network.idle import IdleOrder
from minibroker.observability.definitions import CloseReason
from minibroker.runtime.clock import Clock

HANDSHAKE_S: Final = 10.0
"""How long a client may take until TLS is agreed, in real seconds."""


class Handshakes:
    """Those under way in one processor."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began: IdleOrder[Client] = IdleOrder()
        self._some = trio.Event()

    @contextmanager
    def under_way(self, client: Client) -> Iterator[None]:
        """Within this the handshake of a client must end."""
        self._began.use(client, self._clock.real_s())
        self._some.set()
        try:
            yield
        finally:
            self._began.forget(client)

    async def close_late(self) -> None:
        """Run until cancelled."""
        while True:
            oldest = self._began.oldest_use()
            if oldest is None:
                self._some = trio.Event()
                await self._some.wait()
                continue
            await self._clock.sleep_real(oldest + HANDSHAKE_S - self._clock.real_s())
            for client in self._began.idle_since(oldest):
                text = f"TLS was not agreed within {HANDSHAKE_S:g} s"
                client.close(CloseReason.TLS_FAILED, text)
                self._began.forget(client)
