"""Recent connection events, merged from all processes.

Owns one numbered sequence of events. It must never know what they mean. Pure. Invariant: an event
is added once, however often its process reports it, and keeps its number; numbers are consecutive,
also after a restart of the controller. Kafka has no equivalent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

from minibroker.admission.connection_events import (
    HAPPENINGS_MAX,
    REFUSALS_MAX,
    Happening,
    Lately,
    Refusal,
)

T = TypeVar("T")


class _Seen(NamedTuple):
    life: int = 0
    happened: int = 0
    refused: int = 0


class Chronicle:
    """The recent connection events and rejections of a broker, oldest first."""

    def __init__(self, life: int) -> None:
        """``life`` is the controller's incarnation: a later one has higher numbers."""
        self._next = life << 32
        self._seen: dict[str, _Seen] = {}
        self.happenings: deque[tuple[int, Happening]] = deque(maxlen=HAPPENINGS_MAX)
        self.refusals: deque[Refusal] = deque(maxlen=REFUSALS_MAX)

    def take(self, told: Mapping[str, Lately], until: float) -> None:
        """Add the new events of these reports, which were requested at ``until`` or later.

        Later events are added next time: other processes may not have reported earlier ones yet,
        and a consequence must not be listed before its cause.
        """
        happenings: list[Happening] = []
        refusals: list[Refusal] = []
        for process, lately in told.items():
            seen = self._seen.get(process, _Seen())
            if seen.life > lately.life:
                continue  # The answers to two concurrent requests arrived in reverse order.
            if seen.life < lately.life:
                seen = _Seen(lately.life)
            settled = [each for each in lately.happenings if each.at <= until]
            happened = lately.happened - len(lately.happenings) + len(settled)
            happenings += _newest(settled, happened - seen.happened)
            turned = [each for each in lately.refusals if each.happening.at <= until]
            refused = lately.refused - len(lately.refusals) + len(turned)
            refusals += _newest(turned, refused - seen.refused)
            self._seen[process] = _Seen(
                lately.life, max(happened, seen.happened), max(refused, seen.refused)
            )
        # Events of one process keep their order, after those of earlier processes: sorting
        # is stable.
        for happening in sorted(happenings, key=lambda each: each.at):
            self.happenings.append((self._next, happening))
            self._next += 1
        self.refusals.extend(sorted(refusals, key=lambda each: each.happening.at))


def _newest(kept: Sequence[T], new: int) -> Sequence[T]:
    return kept[-new:] if new > 0 else ()
