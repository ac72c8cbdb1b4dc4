"""Events of several processes in one order: that of their times.

Owns the events that wait until nobody is likely to tell of earlier ones; it must never read a
clock, nor know what an event is but that it begins with its time. Invariant: each event that was
added is taken once; of those taken together the times never go back, and events of the same time
keep the order in which their sender told them. Kafka has one process, whose threads share a queue.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Sequence
from operator import itemgetter
from typing import Final, Generic, NamedTuple, TypeVar

from minibroker.activity.events import Event

Sender = TypeVar("Sender", bound=Hashable)

_TIME: Final = itemgetter(0)


class Taken(NamedTuple, Generic[Sender]):
    """Events in order, and how many of them are whose."""

    events: list[Event]
    counts: dict[Sender, int]


class Merger(Generic[Sender]):
    """The events that wait. How many there may be is for whoever lets senders send."""

    def __init__(self) -> None:
        self._waiting: dict[Sender, list[Event]] = {}

    def __len__(self) -> int:
        """How many wait."""
        return sum(map(len, self._waiting.values()))

    def add(self, sender: Sender, events: Sequence[Event]) -> None:
        """A sender told these."""
        self._waiting.setdefault(sender, []).extend(events)

    def take(self, until_us: float) -> Taken[Sender]:
        """The events up to and with a time, which wait no more."""
        taken = Taken[Sender]([], {})
        for sender, events in list(self._waiting.items()):
            events.sort(key=_TIME)  # nearly in order as they are
            count = bisect_right(events, until_us, key=_TIME)
            if count:
                taken.events.extend(events[:count])
                taken.counts[sender] = count
                del events[:count]
            if not events:
                del self._waiting[sender]
        taken.events.sort(key=_TIME)
        return taken
