"""Stalls of honest clients, and how much of each the broker is to blame for.

Owns the arithmetic over what probes measured; it knows no sockets and no processes. A stall is
blamed on the broker after three deductions: how late the client's own process was scheduled, how
long the processes that served it waited for a processor of a busy machine, and all of it if a fault
hit one of these processes meanwhile. The invariant: a sample is never blamed for more than it took.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

STALL_MAX_S: Final = 1.0
"""How long the broker may keep an honest client waiting, whatever others do."""

SLOW_S: Final = 0.3
"""Samples of requests that took longer are kept; a stall takes much longer."""

ALL: Final = frozenset[str]()
"""The processes of a fault that hits each of them."""


class Sample(NamedTuple):
    """A request of an honest client that took long, or failed. Times are of the monotonic clock."""

    started: float
    ended: float
    request: str
    processes: tuple[str, ...]
    """The processes that serve the request, e.g. processor-0 and worker-1; empty if unknown."""
    late_s: float
    """How late the client's own process was scheduled while it waited."""
    queued_s: float
    """How long the serving processes waited for a processor."""
    error: str = ""

    @property
    def took_s(self) -> float:
        return self.ended - self.started

    @property
    def blamed_s(self) -> float:
        """What remains for the broker."""
        return max(0.0, self.took_s - max(0.0, self.late_s) - max(0.0, self.queued_s))

    def __str__(self) -> str:
        serving = ", ".join(self.processes) or "unknown processes"
        outcome = f", then {self.error}" if self.error else ""
        return (
            f"{self.request} of {serving} took {self.took_s:.2f} s ({self.late_s:.2f} s late in "
            f"the client, {self.queued_s:.2f} s queued for a processor){outcome}"
        )


class Fault(NamedTuple):
    """A time in which processes were killed or could not work; ``ALL`` means each of them."""

    started: float
    ended: float
    processes: frozenset[str] = ALL

    def excuses(self, sample: Sample) -> bool:
        """Whether it hit a process that serves the sample while that waited."""
        if sample.ended < self.started or self.ended < sample.started:
            return False
        return (
            not self.processes or not sample.processes or bool(self.processes & {*sample.processes})
        )


def unexcused(samples: Iterable[Sample], faults: Iterable[Fault]) -> list[Sample]:
    """The samples during which no fault hit a process that served them."""
    known = list(faults)
    return [sample for sample in samples if not any(fault.excuses(sample) for fault in known)]


def stalls(samples: Iterable[Sample]) -> list[Sample]:
    """Samples that the broker kept waiting for longer than it may."""
    return [sample for sample in samples if sample.blamed_s > STALL_MAX_S]


def failures(samples: Iterable[Sample]) -> list[Sample]:
    """Samples that ended with an error."""
    return [sample for sample in samples if sample.error]
