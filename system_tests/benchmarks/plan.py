"""The measures of a run by name, and the collected figures.

Owns the names that `--only` takes, the order of measures and their amounts, and the time of a run;
it starts no peer. Invariant: a measure that fails or has no time left is a note, never a figure.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, ParamSpec

from system_tests.benchmarks import (
    group_members,
    groups,
    growth,
    large_batches,
    measures,
    report,
    share_records,
    small,
    transactions,
)
from system_tests.benchmarks.measures import Figures
from system_tests.benchmarks.peers import Peer

P = ParamSpec("P")

START, FIXTURE, MEMORY, IDLE = "start", "fixture", "memory", "idle-connections"
SESSIONS, COMPACTION = "fetch-sessions", "compaction"
CONNECTIONS, STORM, ADDRESSES, COSTS, RESET, SNAPSHOTS = (
    "connections",
    "storm",
    "addresses",
    "costs",
    "reset",
    "snapshots",
)
GROWTH: Final = (
    ("growth-connections", growth.connections),
    ("growth-partitions", growth.partitions),
    ("growth-size", growth.sizes),
    ("growth-batch", growth.batches),
)
SMALL_PER_LARGE: Final = 3
"""So many 100-byte records are produced in place of one of 1,000 bytes."""


class Repeated(NamedTuple):
    """A measure of a running peer. `lasting` is one of peers that keep everything, and what
    `warms_up` is run before the first round.
    """

    what: str
    measure: Callable[[Peer], Figures]
    lasting: bool = False
    warms_up: bool = False

    def peers(self, running: Sequence[Peer]) -> list[Peer]:
        return [peer for peer in running if peer.keeps_everything or not self.lasting]


def repeated(records: int, *, grows: bool) -> list[Repeated]:
    """Return the measures of a round, in order."""
    found = [
        Repeated("throughput", partial(measures.throughput, records=records), warms_up=True),
        Repeated(
            "small-throughput",
            partial(measures.small_throughput, records=records * SMALL_PER_LARGE),
        ),
        *(
            Repeated(f"producers-{count}", partial(small.producers, count=count), warms_up=True)
            for count in small.PRODUCERS
        ),
        Repeated("latency", partial(measures.one_at_a_time, count=3000), warms_up=True),
        Repeated("pinned", partial(small.one_pinned, count=3000)),
        Repeated("end-to-end", partial(small.end_to_end, count=1500), lasting=True),
        Repeated("polls", partial(small.polls, count=3000), lasting=True),
        Repeated("transactions", transactions.commits, lasting=True),
        Repeated("beside-transactions", transactions.beside, lasting=True),
        Repeated("large-batches", large_batches.neighbor, lasting=True),
        Repeated("group", partial(groups.group_requests, count=2000)),
        *(
            Repeated(
                f"{kind.name}-members", partial(group_members.many_members, kind=kind), lasting=True
            )
            for kind in group_members.KINDS
        ),
        Repeated("share-records", share_records.acknowledged, lasting=True),
        Repeated("metadata", partial(measures.metadata, count=2000), lasting=True),
    ]
    if grows:
        found += [Repeated(name, measure, lasting=True) for name, measure in GROWTH]
    return found


OF_RUNNING_PEERS: Final = (
    MEMORY,
    IDLE,
    SESSIONS,
    *(each.what for each in repeated(1, grows=True)),
    COMPACTION,
    RESET,
    SNAPSHOTS,
)
NAMES: Final = (START, FIXTURE, *OF_RUNNING_PEERS, CONNECTIONS, STORM, ADDRESSES, COSTS)
"""What `--only` takes."""


def grows(folder: Path | None, only: Collection[str]) -> bool:
    """Whether growth is measured: if it is drawn or chosen by name."""
    return folder is not None or not {name for name, _ in GROWTH}.isdisjoint(only)


class Session:
    """Collects figures and notes of the wanted measures until time is up."""

    def __init__(self, time_max_s: float, only: Collection[str] = ()) -> None:
        self._end = time.monotonic() + time_max_s
        self._only = frozenset(only)
        self.runs: report.Runs = defaultdict(lambda: defaultdict(list))
        self.notes: list[str] = []

    def wants(self, *names: str) -> bool:
        """Whether any of these measures is part of the run."""
        return not self._only or not self._only.isdisjoint(names)

    def chosen(self, rounds: Sequence[Repeated]) -> list[Repeated]:
        return [each for each in rounds if self.wants(each.what)]

    def warm_up(self, rounds: Sequence[Repeated]) -> list[Repeated]:
        """Return what is run before: the measures for that, or all if they were chosen."""
        return [each for each in self.chosen(rounds) if each.warms_up or self._only]

    def measure(
        self, peer: str, what: str, measure: Callable[P, Figures], *of: P.args, **by: P.kwargs
    ) -> None:
        """Take one measure of one peer; what goes wrong becomes a note."""
        if not self.wants(what):
            return
        if time.monotonic() > self._end:
            self.note(f"time was up before {what} of {peer}")
            return
        if sys.stderr.isatty():
            print(f"  {what}: {peer}".ljust(70), end="\r", file=sys.stderr, flush=True)
        try:
            figures = measure(*of, **by)
        except Exception as failure:  # noqa: BLE001 (the clients' errors have no common ancestor)
            self.note(f"{what} of {peer}: {failure!r}")
            return
        for name, figure in figures.items():
            self.runs[name][peer].append(figure)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
