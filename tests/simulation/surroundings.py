"""What the actors of one simulated run share.

Owns the broker under test, its clock, the history and the transcript. It must never know an actor.
Invariant: everything random comes from the seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Final

import trio

from minibroker.launch.tasks import TaskBroker
from minibroker.runtime.clock import SimulatedClock
from tests.simulation.checked_history import OperationLog
from tests.simulation.client import SimulatedClient
from tests.simulation.history import History
from tests.simulation.share_history import ShareHistory

LISTENER: Final = "PLAINTEXT"
TWO_OF_EACH: Final = ("num.network.threads=2", "num.io.threads=2")
"""Settings of a broker with two network processors and two I/O workers."""

TOPICS: Final = {"a": 3, "b": 2}
GROUP: Final = "g"
"""The consumer group that reads ``TOPICS``."""
MIXED_GROUP: Final = "mixed"
"""Another one, with members of both protocols."""


class World:
    """State that the actors of one run share."""

    def __init__(self, broker: TaskBroker, clock: SimulatedClock, seed: int) -> None:
        self.broker = broker
        self.clock = clock
        self.seed = seed
        self.wall_ms = clock.wall_ms
        self.history = History()
        self.shares = ShareHistory()
        """What members of the share group got."""
        self.operations = OperationLog()
        """What transactional clients do, for the checker."""
        self.transcript: list[str] = []
        self.counts: Counter[str] = Counter()
        """How often each rare path was taken."""
        self.has_rules = False
        """Whether fault rules may change responses, or leave requests without them."""
        self.moment = ""
        """The rare path of a kill now, by its name."""
        self.moment_reached = trio.Event()
        """Set, and replaced, when a client sends a request during which a kill is worth trying."""
        self._extended: set[trio.CancelScope] = set()
        self.faults_ended = False
        """Whether no further faults are injected."""
        self.may_end = False
        """Whether endless actors may end."""
        self.topics = TOPICS
        self.partitions = [(topic, index) for topic in TOPICS for index in range(TOPICS[topic])]
        self._clients = count(1)

    def record(self, who: str, what: str) -> None:
        """Add a line to the transcript."""
        self.transcript.append(f"{trio.current_time():.6f} {who} {what}")

    def reach_moment(self, path: str) -> None:
        """Wake those that wait for moments at which to kill; ``path`` names such a kill."""
        self.moment = path
        self.moment_reached.set()
        self.moment_reached = trio.Event()

    @contextmanager
    def extended(self, scope: trio.CancelScope) -> Iterator[None]:
        """Extend the deadline by each time by which the clock is advanced."""
        self._extended.add(scope)
        try:
            yield
        finally:
            self._extended.remove(scope)

    def advance(self, milliseconds: float) -> None:
        """Advance the clock."""
        for scope in self._extended:
            scope.deadline += milliseconds / 1000
        self.clock.advance(milliseconds)

    def kill(self, name: str) -> None:
        """Kill a process."""
        self.shares.kill()
        self.broker.kill(name)

    async def connect(self, name: str) -> SimulatedClient:
        """Open a connection."""
        stream = await self.broker.sources[LISTENER].connect()
        return SimulatedClient(stream, f"{name}-{next(self._clients)}")
