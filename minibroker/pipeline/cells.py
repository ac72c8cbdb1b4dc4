"""Events added up by cell: those of one broker, interval, user, client-id and address.

Owns the first half of adding up, in which every event is looked at; it must never know Spark, nor
what of an event counts for which quota. Invariant: cells that are told twice, of parts of the same
events, add up to what they would be together, as only whole numbers are added; memory is that of
the events that are given at once.

Every level's figures follow from cells alone, so no event has to be looked at again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from minibroker.pipeline import latencies
from minibroker.pipeline.counting import PER_EVENT, Counted, Events, Ints
from minibroker.pipeline.ordering import ordered, pairs_of
from minibroker.pipeline.quantities import LEVELS, NAMES, QUOTAS
from minibroker.pipeline.words import compiled

SUMS: Final = ("events", "amount", "requests", "errors", "throttled", "throttle_ms")
MOST: Final = ("measured", "bound")
"""Of these the largest counts, of events that the broker counted by the level; nan if none was."""
COUNT: Final = pa.struct(
    [
        ("quota", pa.int64()),
        ("level", pa.int64()),
        *((name, pa.int64()) for name in SUMS),
        ("throttle_max_ms", pa.int64()),
        *((name, pa.float64()) for name in MOST),
    ]
)
"""What counted for a quota, by the place in ``QUOTAS``, of events that the broker counted by the
level with this place in ``LEVELS``, or by none: -1.
"""
CELL: Final = pa.schema(
    [
        ("broker", pa.int64()),
        ("start_us", pa.int64()),
        *((name, pa.string()) for name in NAMES),
        ("written", pa.int64()),
        ("dropped", pa.int64()),
        ("counts", pa.list_(COUNT)),
        ("latencies", pa.list_(pa.int64())),
    ]
)
"""``written`` and ``dropped`` are of all events, also of those that count for nothing. A latency
is one number with the quotas that it counts for, and how often it was seen.
"""

MASK_BITS: Final = len(QUOTAS)
"""Which quotas something counts for, a bit for each."""
PAIR_BITS: Final = latencies.BITS + MASK_BITS
"""Of a latency and its quotas; how often they were seen is above."""
_PLACES: Final = len(LEVELS) + 1
"""Of levels, and of none."""
_NO_INTS: Final = np.empty(0, np.int64)
_NO_FLOATS: Final = np.empty(0, np.float64)

SIZE_MAX: Final = 1 << 20
"""Of a part of a key; larger ones are numbered anew."""
KEYS_MAX: Final = 1 << 62
"""Of a key, likewise."""


def cells_of(events: Events, every_us: int, slice_us: int) -> pa.RecordBatch:
    """Columns as in ``CELL``; there is at least one event. Cells of a broker and a slice of time,
    which holds whole intervals, lie together.
    """
    intervals = events.times_us // every_us
    rows, cells = _numbered(events, intervals, slice_us // every_us)
    count = len(rows)
    masks = np.zeros(len(events), np.int64)
    counts = _Counts(events, cells, count, masks)
    for number, counted in enumerate(events.counted()):
        counts.add(number, counted)
    names = events.names()
    columns = [
        events.brokers[rows],
        intervals[rows] * every_us,
        *(names[name].texts.take(pa.array(names[name].numbers[rows])) for name in NAMES),
        added(cells, count, events.seen.astype(np.int64)),
        added(cells, count, events.dropped),
        counts.lists(),
        _latencies(events, cells, count, masks),
    ]
    return pa.RecordBatch.from_arrays([pa.array(each) for each in columns], schema=CELL)


def _numbered(events: Events, intervals: Ints, in_slice: int) -> tuple[Ints, Ints]:
    """(an event of each cell, the cell of each event)."""
    names = events.names()
    when = joined([intervals - intervals.min(), events.brokers - events.brokers.min()])
    rows, found = pairs_of(when, joined([names[name].numbers for name in NAMES]))
    order = np.lexsort((intervals[rows] // in_slice, events.brokers[rows]))
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    return rows[order], places[found]


def joined(codes: Sequence[Ints]) -> Ints:
    """A number for each different combination; none is below zero."""
    whole, span = np.zeros(len(codes[0]), np.int64), 1
    for code in codes:
        each, size = _compact(code) if int(code.max()) >= SIZE_MAX else (code, int(code.max()) + 1)
        if span * size >= KEYS_MAX:
            whole, span = _compact(whole)
        whole = whole * size + each
        span *= size
    return whole


def _compact(codes: Ints) -> tuple[Ints, int]:
    """The same with none left out, and how many there are."""
    values, found = np.unique(codes, return_inverse=True)
    return found.astype(np.int64), len(values)


def added(cells: Ints, count: int, values: Ints) -> Ints:
    """The sum of each cell's values."""
    found = np.zeros(count, np.int64)
    np.add.at(found, cells, values)
    return found


# What counts for quotas -----------------------------------------------------------------------


class _Rows(NamedTuple):
    """Of one quota, as in ``COUNT``; by row."""

    places: Ints
    """The cell's number, times ``_PLACES``, and the level's place, from 1 on."""
    sums: Any
    """Of two dimensions, as the largest and how long somebody was held at most behind them."""
    most: Any


class _Counts:
    """In the making, quota by quota."""

    def __init__(self, events: Events, cells: Ints, count: int, masks: Ints) -> None:
        """``masks`` is filled in: which quotas each event counts for."""
        self._events, self._cells, self._count, self._masks = events, cells, count, masks
        self._seen = events.seen
        self._weights = events.for_all(PER_EVENT)
        self._failed = events.failed
        self._slots = np.full(count * _PLACES, -1, np.int32)
        self._quotas: list[Ints] = []
        self._rows: list[_Rows] = []

    def add(self, number: int, counted: Counted) -> None:
        """What counts for a quota of ``QUOTAS``."""
        size = int(np.count_nonzero(counted.where))
        rows = _Rows(
            np.empty(size, np.int64),
            np.zeros((size, len(SUMS) + 1), np.int64),
            np.full((size, len(MOST)), np.nan),
        )
        held_ms = counted.held_ms
        found = _add_up(
            self._cells, counted.where, _NO_INTS if counted.level is None else counted.level,
            self._seen, self._events.for_all(counted.amount), self._weights, self._failed,
            held_ms, self._events.for_all(held_ms) if held_ms.any() else held_ms,
            _NO_FLOATS if counted.measured is None else counted.measured,
            _NO_FLOATS if counted.bound is None else counted.bound,
            self._masks, number, self._slots, *rows,
        )  # fmt: skip
        self._rows.append(_Rows(*(each[:found] for each in rows)))
        self._quotas.append(np.full(found, number))

    def lists(self) -> pa.ListArray:
        """Those of each cell."""
        places, sums, most = (np.concatenate(each) for each in zip(*self._rows, strict=True))
        cells = places // _PLACES
        order, starts = ordered(np.arange(len(cells)), cells, self._count)
        columns = [
            np.concatenate(self._quotas)[order],
            places[order] % _PLACES - 1,
            *sums[order].T,
            *most[order].T,
        ]
        arrays = [pa.array(np.ascontiguousarray(each)) for each in columns]
        rows = pa.StructArray.from_arrays(arrays, fields=list(COUNT))
        return pa.ListArray.from_arrays(pa.array(starts.astype(np.int32)), rows)


@compiled
def _add_up(
    cells: Any, where: Any, own: Any, seen: Any, amounts: Any, weights: Any, failed: Any,
    held_ms: Any, all_held_ms: Any, measured: Any, bound: Any,
    masks: Any, quota: Any, slots: Any, places: Any, sums: Any, most: Any,
) -> int:  # fmt: skip
    """Fill ``places``, ``sums`` and ``most``; returns how many rows there are.

    ``slots`` has a place for each cell and level and is full of -1, also afterwards. Of ``own``,
    ``measured`` and ``bound`` there may be none.
    """
    count = 0
    for row in range(len(cells)):
        if not where[row]:
            continue
        masks[row] |= np.int64(1) << quota
        level = own[row] if len(own) else np.int64(-1)
        place = cells[row] * _PLACES + level + 1
        at = slots[place]
        if at < 0:
            at = count
            slots[place] = at
            places[at] = place
            count += 1
        sums[at, 0] += seen[row]
        sums[at, 1] += amounts[row]
        sums[at, 2] += weights[row]
        if failed[row]:
            sums[at, 3] += weights[row]
        if held_ms[row] > 0:
            sums[at, 4] += weights[row]
            sums[at, 5] += all_held_ms[row]
            sums[at, 6] = max(sums[at, 6], held_ms[row])
        if len(measured) and (measured[row] > most[at, 0] or math.isnan(most[at, 0])):
            most[at, 0] = measured[row]
        if len(bound) and (bound[row] > most[at, 1] or math.isnan(most[at, 1])):
            most[at, 1] = bound[row]
    for at in range(count):
        slots[places[at]] = -1
    return count


# Latencies ------------------------------------------------------------------------------------


def _latencies(events: Events, cells: Ints, count: int, masks: Ints) -> pa.ListArray:
    numbers = latencies.rounded(events.latencies_us)
    rows = np.flatnonzero(events.seen & (numbers != latencies.NO_LATENCY) & (masks != 0))
    keys = cells[rows] << PAIR_BITS | masks[rows] << latencies.BITS | numbers[rows]
    keys.sort()
    ends = np.zeros(count + 1, np.int32)
    found = _count_alike(keys, ends)
    return pa.ListArray.from_arrays(pa.array(ends), pa.array(keys[:found]))


@compiled
def _count_alike(keys: Any, ends: Any) -> int:
    """Put what is alike together, in place of it; returns how many there are.

    ``ends`` is zero and gets where those of each cell end, from its second place on.
    """
    count = 0
    before = np.int64(-1)
    for at in range(len(keys)):
        key = keys[at]
        if key != before:
            before = key
            keys[count] = key & ((np.int64(1) << PAIR_BITS) - 1)
            count += 1
            ends[(key >> PAIR_BITS) + 1] = count
        keys[count - 1] += np.int64(1) << PAIR_BITS
    for cell in range(1, len(ends)):
        ends[cell] = max(ends[cell], ends[cell - 1])
    return count
