"""Round robin over processors with free slots, for new connections.

Pure: events in (a slot was freed, a processor joined or left), decisions out (which processor).
Invariant: a processor has at most ``SLOTS`` connections that it has not taken yet, and is passed
over only while it is full or disconnected. KIP-402; Kafka's ``Acceptor.assignNewConnection`` and
``Processor.newConnections``.
"""

from __future__ import annotations

from typing import Final

SLOTS: Final = 20
"""New connections that wait for one processor (Kafka's ``ConnectionQueueSize``)."""


class Slots:
    """Free slots by processor."""

    def __init__(self, processors: int, slots: int = SLOTS) -> None:
        self._slots = slots
        self._free: list[int | None] = [None] * processors
        self._lowest = [slots] * processors
        self._turn = 0

    def joined(self, processor: int) -> None:
        """Add a processor that has started: all of its slots are free."""
        self._free[processor] = self._slots

    def left(self, processor: int) -> None:
        """Remove a processor that died, with the connections in its slots."""
        self._free[processor] = None

    def freed(self, processor: int, taken: int = 1) -> None:
        """Free the slots of ``taken`` connections that a processor took from its queue."""
        free = self._free[processor]
        if free is None or free + taken > self._slots:
            raise ValueError(f"processor {processor} freed a slot that was not in use")
        self._free[processor] = free + taken

    def take(self) -> int | None:
        """Return the processor that gets the next connection, or None if all are full or dead.

        Each attempt advances the turn, as in Kafka, so a full processor loses its turn.
        """
        for _ in self._free:
            processor = self._turn
            self._turn = (processor + 1) % len(self._free)
            free = self._free[processor]
            if free:
                self._free[processor] = free - 1
                self._lowest[processor] = min(self._lowest[processor], free - 1)
                return processor
        return None

    def used(self, processor: int) -> int:
        """Number of connections that wait for a processor."""
        free = self._free[processor]
        return 0 if free is None else self._slots - free

    def peak(self, processor: int) -> int:
        """Largest number of connections that ever waited for a processor."""
        return self._slots - self._lowest[processor]
