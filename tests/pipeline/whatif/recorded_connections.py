"""A simulated broker with a connection rate, and the activity events that it would record.

Owns a client's connections, and how late the broker checks them again; the decisions are those of
``connections.limits``. Invariant: nothing here is taken from the replay.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any

from minibroker.broker.connections.limits import ConnectionRateLimits, ConnectionRates
from minibroker.lab.activity.events import ConnectionStep
from tests.pipeline.whatif.activity import connection_row

IP = "10.0.0.1"
BY_RATE = "ip_connection_creation_rate"
A, _, H, M, R, _ = ConnectionStep


class RecordedConnections:
    """The events of a simulated broker, and what it decided after a time."""

    def __init__(self, rate: float, late_ms: Callable[[], int], seed: int) -> None:
        self._rates = ConnectionRates(["any"], 11, 1000)
        self._rates.limits = ConnectionRateLimits(ips={IP: rate})
        self._late_ms, self._chance = late_ms, random.Random(seed)
        self.rows: list[dict[str, Any]] = []
        self.delays: list[tuple[int, int]] = []
        self.refused: list[int] = []

    def run(self, seconds: int, every_ms: int, pause_ms: int = 0) -> None:
        """One client that connects again when it is served, but not more often than ``every_ms``;
        it pauses once, after 31 seconds.
        """
        happen = [(50_000, 0, False)]
        while happen:
            ms, number, again = heapq.heappop(happen)
            if again:
                admitted = self._rates.admit_delayed("any", IP, ms)
                self._note(ms, number, M if admitted else R, None if admitted else BY_RATE)
                if not admitted:
                    self.refused.append(number)
            else:
                self._note(ms, number, A)
                delay_ms = self._rates.record_ip("any", IP, ms)
                if delay_ms:
                    self._note(ms, number, H, None, delay_ms)
                    self.delays.append((number, delay_ms))
                    heapq.heappush(happen, (ms + delay_ms + self._late_ms(), number, True))
                    continue
            next_ms = ms + every_ms + self._chance.randrange(2)
            if next_ms >= 81_000:
                next_ms, pause_ms = next_ms + pause_ms, 0
            if next_ms < 50_000 + seconds * 1000:
                heapq.heappush(happen, (next_ms, number + 1, False))

    def _note(
        self,
        ms: int,
        number: int,
        step: ConnectionStep,
        reason: str | None = None,
        delay_ms: int | None = None,
    ) -> None:
        row = connection_row(len(self.rows), ms, number, IP, happened=step, reason=reason)
        self.rows.append(row | {"delay_ms": delay_ms})
