"""Events aggregated by cell: broker, interval, user, client-id and address.

Owns the first phase of aggregation, the only one that looks at each event; it must never know
Spark, or the rules by which an event counts for a quota. Invariant: cells of different parts of the
events add up to the cells of all of them, because only integers are added; memory is bounded by the
events of one call.

The figures of every level follow from the cells alone, so events are never read again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from minibroker.pipeline import latencies
from minibroker.pipeline.compiled_functions import compiled
from minibroker.pipeline.ordering import ordered, pairs_of
from minibroker.pipeline.quota_amounts import PER_EVENT, Counted, Events, Ints
from minibroker.pipeline.quota_units import LEVELS, NAMES, QUOTAS

SUMS: Final = ("events", "amount", "requests", "errors", "throttled", "throttle_ms")
MOST: Final = ("measured", "bound")
"""Maxima over the events that the broker checked at the level; nan if there are none."""
COUNT: Final = pa.struct(
    [
        ("quota", pa.int64()),
        ("level", pa.int64()),
        *((name, pa.int64()) for name in SUMS),
        ("throttle_max_ms", pa.int64()),
        *((name, pa.float64()) for name in MOST),
    ]
)
"""What counts for a quota, given by its index in ``QUOTAS``. ``level`` is the index in ``LEVELS``
of the level at which the broker checked the events, or -1.
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
"""``written`` and ``dropped`` count all events, also those that count for no quota. A latency is
packed into one integer with the mask of its quotas and the number of its occurrences.
"""

MASK_BITS: Final = len(QUOTAS)
"""Size of the bit mask of the quotas for which an event counts."""
PAIR_BITS: Final = latencies.BITS + MASK_BITS
"""Bits of a latency and its quota mask; the bits above hold the number of occurrences."""
_PLACES: Final = len(LEVELS) + 1
"""One for each level, and one for events without a level."""
_NO_INTS: Final = np.empty(0, np.int64)
_NO_FLOATS: Final = np.empty(0, np.float64)
_NO_FLAGS: Final = np.empty(0, np.bool_)

SIZE_MAX: Final = 1 << 20
"""Largest range of a key's component; larger ones are renumbered densely."""
KEYS_MAX: Final = 1 << 62
"""Largest range of a combined key, which is renumbered too."""


def cells_of(events: Events, every_us: int, slice_us: int) -> pa.RecordBatch:
    """Aggregate at least one event into cells; columns as in ``CELL``.

    Cells of a broker and a time slice are adjacent; a slice contains complete intervals.
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
    """(the index of one event for each cell, the cell of each event)."""
    names = events.names()
    when = joined([intervals - intervals.min(), events.brokers - events.brokers.min()])
    rows, found = pairs_of(when, joined([names[name].numbers for name in NAMES]))
    order = np.lexsort((intervals[rows] // in_slice, events.brokers[rows]))
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    return rows[order], places[found]


def joined(codes: Sequence[Ints]) -> Ints:
    """Combine codes: one non-negative integer for each distinct combination."""
    whole, span = np.zeros(len(codes[0]), np.int64), 1
    for code in codes:
        each, size = _compact(code) if int(code.max()) >= SIZE_MAX else (code, int(code.max()) + 1)
        if span * size >= KEYS_MAX:
            whole, span = _compact(whole)
        whole = whole * size + each
        span *= size
    return whole


def _compact(codes: Ints) -> tuple[Ints, int]:
    """The codes renumbered without gaps, and the number of distinct ones."""
    values, found = np.unique(codes, return_inverse=True)
    return found.astype(np.int64), len(values)


def codes_of(column: pa.ChunkedArray) -> Ints:
    """A number for each different value from 1 on, and 0 for null."""
    codes = combined(column).dictionary_encode().indices.fill_null(-1).to_numpy()
    found: Ints = codes.astype(np.int64) + 1
    return found


def combined(column: pa.ChunkedArray) -> pa.Array:
    """The column in one piece."""
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def added(cells: Ints, count: int, values: Ints) -> Ints:
    """The sum of each cell's values."""
    found = np.zeros(count, np.int64)
    np.add.at(found, cells, values)
    return found


# Counts by quota --------------------------------------------------------------------------------


class _Rows(NamedTuple):
    """Rows of ``COUNT`` for one quota."""

    places: Ints
    """Cell index times ``_PLACES``, plus the level's index + 1."""
    sums: Any
    """Two-dimensional: a column for each of ``SUMS``, and one for the longest throttle."""
    most: Any


class _Counts:
    """Builds the ``counts`` column quota by quota."""

    def __init__(self, events: Events, cells: Ints, count: int, masks: Ints) -> None:
        """``masks`` is an output: the mask of the quotas for which each event counts."""
        self._events, self._cells, self._count, self._masks = events, cells, count, masks
        self._seen = events.seen
        self._weights = events.for_all(PER_EVENT)
        self._failed = events.failed
        self._slots = np.full(count * _PLACES, -1, np.int32)
        self._quotas: list[Ints] = []
        self._rows: list[_Rows] = []

    def add(self, number: int, counted: Counted) -> None:
        """Add the events that count for the quota with index ``number`` in ``QUOTAS``."""
        size = int(np.count_nonzero(counted.where))
        rows = _Rows(
            np.empty(size, np.int64),
            np.zeros((size, len(SUMS) + 1), np.int64),
            np.full((size, len(MOST)), np.nan),
        )
        throttled_ms = counted.throttled_ms
        found = _add_up(
            self._cells, counted.where, _NO_INTS if counted.level is None else counted.level,
            self._seen, self._events.for_all(counted.amount), self._weights,
            _NO_FLAGS if counted.begins is None else counted.begins, self._failed,
            throttled_ms,
            self._events.for_all(throttled_ms) if throttled_ms.any() else throttled_ms,
            _NO_FLOATS if counted.measured is None else counted.measured,
            _NO_FLOATS if counted.bound is None else counted.bound,
            self._masks, number, self._slots, *rows,
        )  # fmt: skip
        self._rows.append(_Rows(*(each[:found] for each in rows)))
        self._quotas.append(np.full(found, number))

    def lists(self) -> pa.ListArray:
        """The counts of each cell."""
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
    cells: Any, where: Any, own: Any, seen: Any, amounts: Any, weights: Any, begins: Any,
    failed: Any,
    throttled_ms: Any, all_throttled_ms: Any, measured: Any, bound: Any,
    masks: Any, quota: Any, slots: Any, places: Any, sums: Any, most: Any,
) -> int:  # fmt: skip
    """Fill ``places``, ``sums`` and ``most``; return the number of rows.

    ``slots`` has an entry for each cell and level, all -1 before and after the call. ``own``,
    ``begins``, ``measured`` and ``bound`` may be empty.
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
        if len(begins) == 0 or begins[row]:
            sums[at, 2] += weights[row]
        if failed[row]:
            sums[at, 3] += weights[row]
        if throttled_ms[row] > 0:
            sums[at, 4] += weights[row]
            sums[at, 5] += all_throttled_ms[row]
            sums[at, 6] = max(sums[at, 6], throttled_ms[row])
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
    """Merge equal keys in place, counting them; return the number of distinct keys.

    ``ends`` comes in zeroed; from its second entry on it receives the end of each cell's keys.
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
