"""What happened to connections lately, put together from the processes that saw it.

Owns one row of happenings, numbered for all who ask; never what they mean. Pure. Invariant: a
happening is taken once, however often its process is asked, and has the same number ever after;
numbers grow by one, also over lives of the controller. Nothing of Kafka's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

from minibroker.network.happenings import (
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
    """The last happenings and refusals of a broker, oldest first."""

    def __init__(self, life: int) -> None:
        """``life`` is that of who keeps it: a later one numbers higher."""
        self._next = life << 32
        self._seen: dict[str, _Seen] = {}
        self.happenings: deque[tuple[int, Happening]] = deque(maxlen=HAPPENINGS_MAX)
        self.refusals: deque[Refusal] = deque(maxlen=REFUSALS_MAX)

    def take(self, told: Mapping[str, Lately], until: float) -> None:
        """Adds what is new in what these processes tell, asked at ``until`` or later.

        What came after is left for the next time: others may not have told of it yet, and what
        followed from it must not stand before it.
        """
        happenings: list[Happening] = []
        refusals: list[Refusal] = []
        for process, lately in told.items():
            seen = self._seen.get(process, _Seen())
            if seen.life > lately.life:
                continue  # Two who asked at once were answered in the other order.
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
        # What one process saw stays in its order, and behind what those before it saw: sorting
        # is stable.
        for happening in sorted(happenings, key=lambda each: each.at):
            self.happenings.append((self._next, happening))
            self._next += 1
        self.refusals.extend(sorted(refusals, key=lambda each: each.happening.at))


def _newest(kept: Sequence[T], new: int) -> Sequence[T]:
    return kept[-new:] if new > 0 else ()
