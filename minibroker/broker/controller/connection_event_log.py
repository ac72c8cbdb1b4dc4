"""Recent connection events, merged from all processes.

Owns one numbered sequence of events. It must never know what they mean. Pure. Invariant: an event
is added once, however often its process reports it, and keeps its number; numbers are consecutive,
also after a restart of the controller. Kafka has no equivalent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

from minibroker.broker.admission.connection_events import (
    EVENTS_MAX,
    REJECTIONS_MAX,
    ConnectionEvent,
    RecentConnectionEvents,
    Rejection,
)

T = TypeVar("T")


class _Seen(NamedTuple):
    incarnation: int = 0
    events_total: int = 0
    rejections_total: int = 0


class ConnectionEventLog:
    """The recent connection events and rejections of a broker, oldest first."""

    def __init__(self, incarnation: int) -> None:
        """``incarnation`` is the controller's: a later one numbers its events higher."""
        self._next = incarnation << 32
        self._seen: dict[str, _Seen] = {}
        self.events: deque[tuple[int, ConnectionEvent]] = deque(maxlen=EVENTS_MAX)
        self.rejections: deque[Rejection] = deque(maxlen=REJECTIONS_MAX)

    def take(self, reports: Mapping[str, RecentConnectionEvents], until: float) -> None:
        """Add the new events of these reports, which were requested at ``until`` or later.

        Later events are added next time: other processes may not have reported earlier ones yet,
        and a consequence must not be listed before its cause.
        """
        events: list[ConnectionEvent] = []
        rejections: list[Rejection] = []
        for process, report in reports.items():
            seen = self._seen.get(process, _Seen())
            if seen.incarnation > report.incarnation:
                continue  # The answers to two concurrent requests arrived in reverse order.
            if seen.incarnation < report.incarnation:
                seen = _Seen(report.incarnation)
            settled = [each for each in report.events if each.at <= until]
            events_total = report.events_total - len(report.events) + len(settled)
            events += _newest(settled, events_total - seen.events_total)
            rejected = [each for each in report.rejections if each.event.at <= until]
            rejections_total = report.rejections_total - len(report.rejections) + len(rejected)
            rejections += _newest(rejected, rejections_total - seen.rejections_total)
            self._seen[process] = _Seen(
                report.incarnation,
                max(events_total, seen.events_total),
                max(rejections_total, seen.rejections_total),
            )
        # Events of one process keep their order, after those of earlier processes: sorting
        # is stable.
        for event in sorted(events, key=lambda each: each.at):
            self.events.append((self._next, event))
            self._next += 1
        self.rejections.extend(sorted(rejections, key=lambda each: each.event.at))


def _newest(kept: Sequence[T], new: int) -> Sequence[T]:
    return kept[-new:] if new > 0 else ()
