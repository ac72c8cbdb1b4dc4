"""When each group must be looked at next.

Owns one deadline for each group, in order. It must never know why a group has a deadline, or read a
clock. Invariant: a group is due at or before its earliest deadline, and the memory is bounded by
the number of groups, however often their deadlines move. Kafka's counterpart is ``SystemTimer``.
"""

from __future__ import annotations

import heapq
import math

from minibroker.broker.groups.limits import EXTRA_TIMERS_MAX, TIMERS_PER_GROUP_MAX


class GroupTimers:
    """The next deadline of each group. A timer that fires too early is harmless."""

    def __init__(self) -> None:
        self._entries: list[tuple[float, str]] = []
        self._scheduled: dict[str, float] = {}

    def __len__(self) -> int:
        """Number of entries, with those that were replaced."""
        return len(self._entries)

    @property
    def next(self) -> float:
        """A time before which no group is due; infinite without groups."""
        return self._entries[0][0] if self._entries else math.inf

    def schedule(self, group_id: str, deadline: float | None) -> bool:
        """Note a deadline; return whether it is the next one of all groups."""
        scheduled = self._scheduled.get(group_id)
        if deadline is None or (scheduled is not None and scheduled <= deadline):
            return False
        self._scheduled[group_id] = deadline
        heapq.heappush(self._entries, (deadline, group_id))
        if len(self._entries) > TIMERS_PER_GROUP_MAX * len(self._scheduled) + EXTRA_TIMERS_MAX:
            self._entries = [(at, each) for each, at in self._scheduled.items()]
            heapq.heapify(self._entries)
        return self._entries[0][0] == deadline

    def take_due(self, now: float) -> str | None:
        """Remove and return a group that is due; None if there is none."""
        while self._entries and self._entries[0][0] <= now:
            deadline, group_id = heapq.heappop(self._entries)
            if self._scheduled.get(group_id) == deadline:  # Not replaced by another one.
                del self._scheduled[group_id]
                return group_id
        return None

    def forget(self, group_id: str) -> None:
        """Remove the deadline of a group."""
        self._scheduled.pop(group_id, None)

    def clear(self) -> None:
        """Remove all deadlines."""
        self._entries.clear()
        self._scheduled.clear()
