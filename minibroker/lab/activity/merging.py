"""Merges the events of several processes by time.

Owns the events that wait because earlier ones may still arrive. It must never read a clock, nor
know more of an event than that its first field is its time. Invariant: every added event is taken
exactly once, events that are taken together are sorted by time, and events of one sender with the
same time keep their order. Kafka has one process, whose threads share a queue.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Sequence
from operator import itemgetter
from typing import Final, Generic, NamedTuple, TypeVar

from minibroker.lab.activity.events import ActivityEvent

Sender = TypeVar("Sender", bound=Hashable)

_TIME: Final = itemgetter(0)


class Taken(NamedTuple, Generic[Sender]):
    """Sorted events, and their number by sender."""

    events: list[ActivityEvent]
    counts: dict[Sender, int]


class Merger(Generic[Sender]):
    """Waiting events. The caller bounds their number."""

    def __init__(self) -> None:
        self._waiting: dict[Sender, list[ActivityEvent]] = {}

    def __len__(self) -> int:
        """Number of waiting events."""
        return sum(map(len, self._waiting.values()))

    def add(self, sender: Sender, events: Sequence[ActivityEvent]) -> None:
        """Add the events of a sender."""
        self._waiting.setdefault(sender, []).extend(events)

    def take(self, until_us: float) -> Taken[Sender]:
        """Remove and return the events up to a time, inclusive."""
        taken = Taken[Sender]([], {})
        for sender, events in list(self._waiting.items()):
            events.sort(key=_TIME)  # almost sorted already
            count = bisect_right(events, until_us, key=_TIME)
            if count:
                taken.events.extend(events[:count])
                taken.counts[sender] = count
                del events[:count]
            if not events:
                del self._waiting[sender]
        taken.events.sort(key=_TIME)
        return taken
