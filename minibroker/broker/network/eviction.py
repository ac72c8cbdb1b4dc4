"""Close connections whose requests arrive too slowly while others wait for their memory.

The shell around `RequestMemory.evict`. Real time counts: a frozen clock must not let a slow client
delay others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from minibroker.broker.metrics.definitions import CloseReason
from minibroker.broker.network.client_connection import ClientConnection
from minibroker.runtime.arena import ArenaPart
from minibroker.runtime.clock import Clock
from minibroker.runtime.request_memory import Claim

EVICTION_INTERVAL_S: Final = 0.25
"""How often claims are checked while others wait."""


async def evict_slow_claims(
    part: ArenaPart, clients: Mapping[int, ClientConnection], clock: Clock
) -> None:
    """Run until cancelled; ``clients`` are the open connections by their numbers."""

    def arrived(claim: Claim) -> int:
        reader = clients[claim.connection].reader
        assert reader is not None
        return reader.arrived()

    while True:
        await part.wait_contended()
        await clock.sleep_real(EVICTION_INTERVAL_S)
        now = clock.real_s()
        for claim in part.evict(now, arrived):
            assert claim.since is not None
            text = f"{claim.arrived} bytes of a request of {claim.size} had arrived in "
            text += f"{now - claim.since:.1f} s, and others wait for its memory"
            clients[claim.connection].close(CloseReason.SLOW_CLIENT, text)
