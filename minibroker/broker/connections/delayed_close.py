"""Decides when rejected connections are closed: at once, or delayed during a connection storm.

Owns the delayed connections and how many may be closed per tick. It must never know why a
connection was rejected, close one, or read a clock: the caller calls ``tick`` every ``TICK_S``.
Invariant: each connection that was added is returned for closing exactly once, in order unless
there was no room for it; in a storm, ``AT_ONCE`` connections are closed at once and then ``PER_S``
per second. Applies KIP-612's delayed close of addresses that exceed their rate to all rejected
connections: a client that reconnects as soon as it is disconnected must wait, and so reconnects
less often.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

AT_ONCE: Final = 256
"""Rejected connections that are closed at once before a storm: more than in normal use."""

PER_S: Final = 1000
"""Delayed connections closed per second: about 5 % of what one process can accept and close."""

TICK_S: Final = 0.004
"""Time between two ticks: few connections per tick, so that no other connection waits for them."""

ADMIT_INTERVAL_S: Final = 0.001
"""Time between two admitted connections in a storm: longer than either takes to process."""

STORM_S: Final = 1.0
"""A storm ends so long after the last rejection. It starts when a close is delayed.

Few connections are rejected while admission is slow, so there may be no delayed ones for a while.
"""

DELAYED_MAX: Final = 1000
"""Delayed connections at a time; further ones are closed at once.

Closing the oldest ones instead would cost as much, and would free the slots of clients that
reconnect endlessly.
"""

C = TypeVar("C")


class DelayedCloses(Generic[C]):
    """Delayed connections of one process, of ``sharing`` processes that accept."""

    def __init__(self, sharing: int = 1) -> None:
        self._between_s = ADMIT_INTERVAL_S * sharing
        self._per_tick = max(1, round(PER_S * TICK_S / sharing))
        self._may_close = AT_ONCE
        self._storm_ticks = 0
        self._delayed: deque[C] = deque()
        self._most_delayed = 0

    def add(self, connection: C) -> bool:
        """Add a rejected connection. True: close it now; False: it is delayed."""
        if self._may_close == 0 or self.is_storm:
            self._storm_ticks = round(STORM_S / TICK_S)
        if self._may_close > 0:
            self._may_close -= 1
            return True
        if len(self._delayed) >= DELAYED_MAX:
            return True
        self._delayed.append(connection)
        self._most_delayed = max(self._most_delayed, len(self._delayed))
        return False

    def tick(self) -> Iterator[C]:
        """Return the connections to close now; call it every ``TICK_S``."""
        self._storm_ticks = max(0, self._storm_ticks - 1)
        self._may_close = min(self._may_close + self._per_tick, AT_ONCE)
        while self._may_close > 0 and self._delayed:
            self._may_close -= 1
            yield self._delayed.popleft()

    def take_all(self) -> Iterator[C]:
        """Remove and return all delayed connections, to be closed at once."""
        while self._delayed:
            yield self._delayed.popleft()

    @property
    def is_storm(self) -> bool:
        """Whether connections are being rejected faster than they may be closed."""
        return self._storm_ticks > 0

    @property
    def pause_s(self) -> float:
        """Pause after an admitted connection in seconds; 0 unless there is a storm."""
        return self._between_s if self.is_storm else 0.0

    @property
    def are_idle(self) -> bool:
        """Whether further ticks would change nothing."""
        return self._may_close == AT_ONCE and not self.is_storm

    @property
    def delayed(self) -> int:
        """Number of delayed connections."""
        return len(self._delayed)

    @property
    def most_delayed(self) -> int:
        """Largest number of connections that were ever delayed."""
        return self._most_delayed
