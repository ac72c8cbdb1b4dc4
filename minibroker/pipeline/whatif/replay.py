"""Replays batches of events under several proposals, as a task of a job does.

Owns the state between batches and the results; it must never know Spark or a file. Invariant: in
the open loop only counters, statistics and senders are kept, so memory doesn't grow with the number
of events; the result doesn't depend on the batches, if senders that share a counter are in one
replay and batches are in order of time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from minibroker.lab.activity.events import ActivityKind
from minibroker.pipeline.whatif.addresses import Addresses, Arrival, Arrivals
from minibroker.pipeline.whatif.columns import (
    FETCHES,
    KINDS,
    REQUEST,
    Answers,
    Ends,
    Flags,
    Floats,
    Ints,
    Longs,
    Minutes,
    Pending,
    Requests,
    Senders,
    Sharing,
    Tally,
    more_pending,
    new_answers,
    new_minutes,
    new_pending,
    new_tally,
    of_kind,
    requests_of,
)
from minibroker.pipeline.whatif.counters import compiled, end_minutes, more_counters, new_counters
from minibroker.pipeline.whatif.open_loop import open_loop, room, walk_times
from minibroker.pipeline.whatif.proposal import Components, Counting, Proposal, Shares
from minibroker.pipeline.whatif.rows import OutcomeRows
from minibroker.pipeline.whatif.simulate import (
    SimulationState,
    request_chain_of,
    simulate,
)

MINUTES_MAX: Final = 100_000
"""Capacity for throttled minutes in the closed loop, in addition to one per request: a request that
is retried endlessly may be throttled for years, and later minutes are omitted.
"""


@dataclass
class _Run:
    """The state of one proposal."""

    shares: Shares
    words: Floats
    pending: Pending
    tally: Tally
    ends: Ends

    def grow(self, groups: int, rows: int) -> None:
        """Add capacity for new senders and for a batch of ``rows`` requests."""
        counters = self.shares.counters
        if counters > len(self.words):
            self.words = more_counters(self.words, counters)
        wanted = max(0, rows - room(self.pending))
        if wanted or counters + 1 > len(self.pending.head):
            self.pending = more_pending(self.pending, wanted, counters)
        if groups > len(self.tally):
            fresh = groups - len(self.tally)
            self.tally = np.concatenate((self.tally, new_tally(fresh)))
            self.ends = np.concatenate((self.ends, np.zeros((fresh, 3), np.int64)))


class Replay:
    """Replays the same events under all proposals; ``closed`` selects the loop."""

    def __init__(
        self,
        proposals: Sequence[Proposal],
        counting: Counting,
        *,
        closed: bool = False,
        answers: bool = False,
    ) -> None:
        """With ``answers``, decisions are collected until the caller clears them: on requests in
        ``answered``, on connections in the ``decided`` of each of ``addresses``.
        """
        self.senders = Senders()
        self.counting = counting
        self.closed = closed
        self.answered: list[tuple[Proposal, Requests, Answers]] = []
        self._answers = answers
        self._terms = counting.terms(closed=closed)
        self._components = Components()
        samples = counting.quota_window_num
        self._runs = [
            _Run(
                Shares(proposal, counting),
                new_counters(0, samples),
                new_pending(),
                new_tally(0),
                np.zeros((0, 3), np.int64),
            )
            for proposal in proposals
        ]
        self.arrivals = Arrivals(self.senders.lives, counting.window_ms)
        self.addresses = [
            Addresses(proposal, counting, answers=answers)
            for proposal in proposals
            if answers or proposal.limits_addresses
        ]
        self._kept: list[Requests] = []
        self._rows = OutcomeRows(closed=closed)

    def feed(self, events: pa.Table) -> None:
        """Replay the next batch: events of any kind, in any order."""
        connections = of_kind(events, ActivityKind.CONNECTION)
        if self.addresses and len(connections):
            self._arrive(self.arrivals.add(connections))
        seen = of_kind(events, ActivityKind.REQUEST)
        if not len(seen):
            return
        requests = requests_of(seen, self.senders, delays=self.counting.delays)
        self._meet()
        if self.closed or self.counting.delays:
            # Decisions change the time of later requests, so all of them are needed at once.
            self._kept.append(requests)
        else:
            self._open(in_order(requests, self.components()))

    def _arrive(self, arrivals: Sequence[Arrival]) -> None:
        brokers = self.senders.lives.brokers()
        for addresses in self.addresses:
            addresses.feed(arrivals, brokers)

    def _meet(self) -> None:
        for sender in self.senders.all[len(self._components.senders) :]:
            keys = [key for run in self._runs for key in run.shares.add(sender)]
            self._components.add(sender, keys)

    def _open(self, requests: Requests) -> None:
        rows = len(requests.ms)
        times = by_time(requests)
        fetches = int(np.count_nonzero(requests.flags & FETCHES))  # Their bytes may be given back.
        for run in self._runs:
            run.grow(len(self.senders.all), rows + fetches)
            minutes = new_minutes(rows + len(self.senders.all) * len(KINDS))
            answers = new_answers(rows if self._answers else 0)
            worked = self._walk_times(run, requests, times, answers)
            open_loop(
                requests, run.shares.sharing(), run.words, run.pending, run.tally, minutes, answers,
                self._terms, worked,
            )  # fmt: skip
            self._keep(run, requests, minutes, answers)

    def _walk_times(
        self, run: _Run, requests: Requests, times: Longs | None, answers: Answers
    ) -> Longs:
        """The throttle time due to worked time, by row; ``times`` are the rows in the order of
        their time checks, or None if that is the same order.
        """
        rows, sharing = len(requests.ms), run.shares.sharing()
        worked = np.zeros(rows, np.int64)
        if not (sharing.counter[:, REQUEST] >= 0).any():
            return worked
        in_turn, found = requests, answers
        if times is not None:
            in_turn, found = pick(requests, times), new_answers(rows if self._answers else 0)
        walk_times(in_turn, sharing, run.words, run.pending, run.tally, found, self._terms, worked)
        if times is None:
            return worked
        if self._answers:
            answers.type_throttles[times, REQUEST] = found.type_throttles[:, REQUEST]
            answers.rate[times, REQUEST] = found.rate[:, REQUEST]
        by_row = np.empty_like(worked)
        by_row[times] = worked
        return by_row

    def settle(self) -> None:
        """Replay the kept events: no more will follow for the senders seen so far."""
        if not self._kept:
            return
        requests = Requests(*(np.concatenate(columns) for columns in zip(*self._kept, strict=True)))
        self._kept.clear()
        rows = len(requests.ms)
        for run in self._runs:
            run.grow(len(self.senders.all), 0)
            minutes = new_minutes(rows + MINUTES_MAX)
            answers = new_answers(rows if self._answers else 0)
            stage = SimulationState(
                requests, request_chain_of(requests, self._terms),
                run.shares.sharing(), run.words, run.tally, minutes, run.ends, answers, self._terms,
            )  # fmt: skip
            simulate(stage)
            self._keep(run, requests, minutes, answers)

    def _keep(self, run: _Run, requests: Requests, minutes: Minutes, answers: Answers) -> None:
        proposal = run.shares.proposal
        self._rows.minutes(proposal, self.senders.all, minutes)
        if self._answers:
            self.answered.append((proposal, requests, answers))

    def components(self) -> list[int]:
        """The component of each sender."""
        return self._components.roots()

    def sharing(self, proposal: int) -> Sharing:
        """Counters and bounds under one of the proposals."""
        return self._runs[proposal].shares.sharing()

    def finished_rows(self) -> Iterator[pa.RecordBatch]:
        """The rows of the outcome that are final, each once."""
        return self._rows.take()

    def hour(self) -> Iterator[pa.RecordBatch]:
        """The rows of all minutes, after the last event of an hour."""
        self._end_minutes()
        return self._rows.take()

    def _end_minutes(self) -> None:
        for run in self._runs:
            run.grow(len(self.senders.all), 0)
            last = new_minutes(run.tally.shape[0] * len(KINDS))
            end_minutes(run.tally, last)
            self._rows.minutes(run.shares.proposal, self.senders.all, last)

    def end(self) -> Iterator[pa.RecordBatch]:
        """The remaining rows; the replay can't be used any more."""
        self.settle()
        self._end_minutes()
        for run in self._runs:
            self._rows.tallies(run.shares, self.senders.all, run.tally, run.ends)
        self._arrive(self.arrivals.rest())
        for addresses in self.addresses:
            addresses.settle(self.senders.lives.brokers())
            self._rows.addresses(addresses)
        return self._rows.take()


# The order in which counters see requests: by ordinal, then by sequence. Requests of different
# brokers have none. A batch in this order, like most of a table's files, is not copied.


def in_order(requests: Requests, components: Sequence[int]) -> Requests:
    """Sort requests as needed; ``components`` has the component of each group."""
    of_group = np.array(components, np.int32)
    bad = np.zeros(len(of_group), np.bool_)
    _look(requests.order, requests.sequence, requests.group, of_group, bad)
    if not bad.any():
        return requests
    row_is_bad = bad[of_group[requests.group]]
    rows = np.flatnonzero(row_is_bad)
    mended = rows[np.lexsort((requests.sequence[rows], requests.order[rows]))]
    order = np.concatenate((np.flatnonzero(~row_is_bad), mended))
    return pick(requests, order)


def by_time(requests: Requests) -> Longs | None:
    """The rows in the order of their time checks, or None if it is the same order."""
    if np.array_equal(requests.time_order, requests.order):
        return None
    found: Longs = np.lexsort((requests.sequence, requests.time_order))
    return found


def pick(requests: Requests, rows: Longs) -> Requests:
    """Some rows, in the given order."""
    columns: Any = (column[rows] for column in requests)
    return Requests(*columns)


@compiled
def _look(order: Longs, sequence: Longs, group: Ints, of_group: Ints, bad: Flags) -> None:
    """Flag components in which a row comes before an earlier one."""
    last = np.full(len(of_group), -(2**62), np.int64)
    last_sequence = np.full(len(of_group), -1, np.int64)
    for row in range(len(order)):
        component = of_group[group[row]]
        if order[row] < last[component] or (
            order[row] == last[component] and sequence[row] < last_sequence[component]
        ):
            bad[component] = True
        last[component] = order[row]
        last_sequence[component] = sequence[row]
