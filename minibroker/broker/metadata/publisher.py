"""Tracks which processes have applied which update, so that a response can wait for all.

Owns the numbers that subscribers have acknowledged. It must never send anything or wait. Invariant:
`Publisher.complete` never decreases, and no subscriber is behind it. A dead subscriber blocks
nothing, because a restarted process starts with a complete image. Like Kafka's controller, which
waits for ``UpdateMetadata`` responses.
"""

from __future__ import annotations

from collections.abc import Mapping

from minibroker.broker.metadata.image import Update


class Publisher:
    """Numbers published by one controller, and what each subscriber has acknowledged."""

    def __init__(self, number: int = 0) -> None:
        """Begin after update ``number``, with no subscriber."""
        self._newest = number
        self._complete = number
        self._acknowledged: dict[str, int] = {}

    @property
    def newest(self) -> int:
        """The number of the newest update that was published."""
        return self._newest

    @property
    def complete(self) -> int:
        """The number up to which every subscriber has applied all updates."""
        return self._complete

    @property
    def behind(self) -> Mapping[str, int]:
        """Number of updates that each subscriber has not acknowledged yet."""
        return {name: self._newest - number for name, number in self._acknowledged.items()}

    def join(self, subscriber: str) -> None:
        """Add a subscriber that gets the newest image, which counts as acknowledged."""
        self._acknowledged[subscriber] = self._newest
        self._settle()

    def leave(self, subscriber: str) -> None:
        """Remove a subscriber, if it exists; nothing waits for it any more."""
        self._acknowledged.pop(subscriber, None)
        self._settle()

    def publish(self, update: Update) -> tuple[str, ...]:
        """Count an update and return its recipients; updates must come in order."""
        if update.number != self._newest + 1:
            raise ValueError(f"update {update.number} cannot follow update {self._newest}")
        self._newest = update.number
        self._settle()
        return tuple(self._acknowledged)

    def acknowledge(self, subscriber: str, number: int) -> None:
        """Note that a subscriber has the image of ``number`` or a later one."""
        known = self._acknowledged.get(subscriber)
        if known is None:
            return  # It left before its response arrived.
        if number > self._newest:
            raise ValueError(f"{subscriber} acknowledged {number}, the newest is {self._newest}")
        self._acknowledged[subscriber] = max(known, number)
        self._settle()

    def _settle(self) -> None:
        self._complete = min(self._acknowledged.values(), default=self._newest)
