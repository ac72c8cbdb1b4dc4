"""Usage added up in Arrow: events become rows of entities, first each part, then the whole.

Owns the sums, the percentiles, and how parts travel; it must never know Spark, nor what of an event
counts for which quota. Invariant: whatever the events' order and however they are cut into parts,
the figures are the same, as only whole numbers are added; memory is that of a chunk of events, and
of a slice of time of one broker. Brokers keep histograms for this, in ``RequestMetrics``.

A part tells of an entity, quota and interval in one row: its sums, and its latencies, each with how
often it was seen. All rows of a broker and a slice of time travel together, as the bytes of one
batch, since Spark takes its time by the row.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from minibroker.pipeline.counting import PER_EVENT, Counted, Events, Flags, Floats, Ints
from minibroker.pipeline.quantities import BROKER, LEVELS, NAMES, QUOTAS

CHUNK_ROWS: Final = 262_144
CHUNK_BYTES: Final = 128 * 1024 * 1024
"""Events that are looked at together, as many as there are before one of these is reached."""
SLICE_S: Final = 60
"""Of time, whose rows travel together; an interval if that is longer."""

KEPT: Final = len(QUOTAS)
"""In place of a quota's number, of the broker's row that tells which events there are of an
interval: ``events`` that were written, and as ``amount`` those that were not.
"""
SUMS: Final = ("events", "amount", "requests", "errors", "throttled", "throttle_ms")
MOST: Final = ("throttle_max_ms", "measured", "bound")
"""Of these the largest counts; nan where there was none."""
PERCENTILES: Final = (50, 95, 99)

PART: Final = pa.schema(
    [
        ("level", pa.int64()),
        ("quota", pa.int64()),
        ("start_us", pa.int64()),
        *((name, pa.string()) for name in NAMES),
        *((name, pa.int64()) for name in SUMS),
        *((name, pa.float64()) for name in MOST),
        ("latencies", pa.list_(pa.int64())),
    ]
)
"""Of a part. A latency and how often it was seen are one number."""
WHOLE: Final = pa.schema(
    [
        ("broker", pa.int32()),
        ("level", pa.string()),
        *((name, pa.string()) for name in NAMES),
        ("quota", pa.string()),
        ("start_us", pa.int64()),
        *((name, pa.int64()) for name in SUMS),
        *((name, pa.float64()) for name in MOST),
        *((f"p{percent}", pa.float64()) for percent in PERCENTILES),
        ("written", pa.int64()),
        ("dropped", pa.int64()),
    ]
)
_OF_SPARK: Final = {
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float64(): "double",
    pa.string(): "string",
}
FOUND: Final = ", ".join(f"{field.name} {_OF_SPARK[field.type]}" for field in WHOLE)
"""The same for Spark."""
SENT: Final = "broker int, slice_us bigint, rows binary"
"""How parts travel, for Spark."""

_BROKER: Final = list(LEVELS).index(BROKER)
_LATENCY_BITS: Final = 14
_NO_LATENCY: Final = (1 << _LATENCY_BITS) - 1
_COUNT_BITS: Final = 63 - _LATENCY_BITS
_COUNT_MAX: Final = (1 << _COUNT_BITS) - 1
KEYS_MAX: Final = 1 << _COUNT_BITS
"""So that a key and a latency are one number, too."""
SIZE_MAX: Final = 1 << 24
"""Of a part of a key; larger ones are numbered anew."""


def parts(tables: Iterable[pa.Table], every_s: int) -> Iterator[pa.RecordBatch]:
    """Columns as ``SENT`` says, for each chunk of events."""
    for table in _chunks(tables):
        yield _sent(_Part(Events(table), every_s * 1_000_000), every_s)


def whole(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Columns as in ``WHOLE`` from all parts, which come in the order of broker and slice."""
    for (broker, _), those in itertools.groupby(_travelled(batches), itemgetter(0)):
        rows = [pa.ipc.read_record_batch(part.as_buffer(), PART) for _, part in those]
        yield _finished(broker, pa.Table.from_batches(rows))


def _travelled(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[tuple[int, int], Any]]:
    for batch in batches:
        brokers, slices_us, rows = batch.columns
        keys = zip(brokers.to_pylist(), slices_us.to_pylist(), strict=True)
        yield from zip(keys, rows, strict=True)


# Latencies ------------------------------------------------------------------------------------

_DIGITS: Final = 1000
"""Times are rounded to three digits before their percentiles are taken, so that these are off by
half a percent at most, and an entity keeps some thousand figures and not one an event.
"""
_STEPS: Final = 10 ** np.arange(1, 14)
_A_STEP: Final = _DIGITS - _DIGITS // 10
"""Roundings of one number of digits."""


def rounded(us: Ints) -> Ints:
    """Numbers in the order of latencies, the same for those that are alike in three digits."""
    steps = np.searchsorted(_STEPS * (_DIGITS // 10), us, "right")
    unit = np.append(1, _STEPS)[steps]
    found: Ints = np.where(us < 0, _NO_LATENCY, steps * _A_STEP + (us + unit // 2) // unit)
    return found


def latency_of(numbers: Ints) -> Ints:
    """The latencies that they stand for."""
    steps = np.maximum(numbers - _DIGITS // 10, 0) // _A_STEP
    found: Ints = (numbers - steps * _A_STEP) * np.append(1, _STEPS)[steps]
    return found


def percentiles(pairs: Ints, entities: Ints, count: int) -> list[Floats]:
    """Between the two nearest of an entity's latencies, as SQL's ``percentile`` has it."""
    order = np.argsort(entities << _LATENCY_BITS | pairs >> _COUNT_BITS)
    latency = latency_of(pairs[order] >> _COUNT_BITS)
    reached = np.cumsum(pairs[order] & _COUNT_MAX)
    totals = np.zeros(count, np.int64)
    np.add.at(totals, entities, pairs & _COUNT_MAX)
    before = np.cumsum(totals) - totals
    some = totals > 0
    result = []
    for percent in PERCENTILES:
        position = ((totals - 1) * (percent / 100))[some]
        low, high = np.floor(position), np.ceil(position)
        at_low, at_high = (
            latency[np.searchsorted(reached, before[some] + step.astype(np.int64), "right")]
            for step in (low, high)
        )
        between = (high - position) * at_low + (position - low) * at_high
        value = np.full(count, np.nan)
        value[some] = np.where(low == high, at_low, between)
        result.append(value)
    return result


# Parts ----------------------------------------------------------------------------------------


class _Rows(NamedTuple):
    """Of one level and quota, by entity and interval; ``first`` is an event of each."""

    level: int
    quota: int
    first: Ints
    sums: list[Ints]
    most: list[Floats]
    sizes: Ints
    pairs: Ints


class _Part:
    """Some events, added up."""

    def __init__(self, events: Events, every_us: int) -> None:
        self.events = events
        intervals = events.times_us // every_us
        self.starts_us = intervals * every_us
        self.latencies = rounded(events.latencies_us)
        self.entity = (intervals - intervals.min(), events.brokers - events.brokers.min())
        """Beside names, what tells rows apart."""
        self.names = events.names()
        self.rows = list(self._all())

    def _all(self) -> Iterator[_Rows]:
        events = self.events
        seen = events.seen.astype(np.int64)
        weights = events.for_all(PER_EVENT)
        failed = np.where(events.failed, weights, 0)
        orders = {level: self._ordered(names) for level, names in LEVELS.items()}
        keys, order = orders[BROKER]
        yield self._kept(keys[order], order)
        for number, counted in enumerate(events.counted()):
            held = np.where(counted.held_ms > 0, weights, 0)
            sums = [seen, events.for_all(counted.amount), weights, failed, held]
            sums.append(events.for_all(counted.held_ms))
            for at, (keys, order) in enumerate(orders.values()):
                rows = order[counted.where[order]]
                if len(rows):
                    yield self._added(at, number, keys[rows], rows, (counted, sums))

    def _ordered(self, names: Sequence[str]) -> tuple[Ints, Ints]:
        """A key for each event, latency and all, and those that have the names in its order."""
        numbers = [self.names[name].numbers for name in names]
        joined = _joined([*self.entity, *numbers]) << _LATENCY_BITS | self.latencies
        there = np.ones(len(self.events), np.bool_)
        for name in names:
            there &= self.names[name].there
        rows = np.flatnonzero(there)
        return joined, rows[np.argsort(joined[rows])]

    def _added(
        self,
        level: int,
        quota: int,
        keys: Ints,
        rows: Ints,
        counted: tuple[Counted, Sequence[Ints]],
    ) -> _Rows:
        """``keys`` and ``rows`` are of the level's events, in order."""
        first = _firsts(keys >> _LATENCY_BITS)
        of, sums = counted
        nothing = np.full(len(first), np.nan)
        most = [_largest(of.held_ms[rows].astype(np.float64), first)]
        # What a broker measured and held somebody to is that of the level it counted by.
        own = None if of.level is None else of.level[rows] == level
        for column in (of.measured, of.bound):
            if column is None or own is None or not own.any():
                most.append(nothing)
            else:
                most.append(_largest(np.where(own, column[rows], np.nan), first))
        return _Rows(
            level,
            quota,
            rows[first],
            [_added(column[rows], first) for column in sums],
            most,
            *_pairs(keys, sums[0][rows], first),
        )

    def _kept(self, keys: Ints, rows: Ints) -> _Rows:
        first = _firsts(keys >> _LATENCY_BITS)
        told = self.events.seen.astype(np.int64), self.events.dropped
        sums = [_added(column[rows], first) for column in told]
        nothing = np.zeros(len(first), np.int64)
        return _Rows(
            _BROKER,
            KEPT,
            rows[first],
            sums + [nothing] * (len(SUMS) - len(sums)),
            [np.full(len(first), np.nan)] * len(MOST),
            nothing,
            nothing[:0],
        )


def _pairs(keys: Ints, seen: Ints, first: Ints) -> tuple[Ints, Ints]:
    """(how many latencies each entity has, all of them with how often they were seen)."""
    starts = _firsts(keys)
    latency = keys[starts] & _NO_LATENCY
    pairs = latency << _COUNT_BITS | np.add.reduceat(seen, starts)
    there = latency != _NO_LATENCY
    reached = np.concatenate(([0], np.cumsum(there)))
    ends = np.append(np.searchsorted(starts, first), len(starts))
    return np.diff(reached[ends]), pairs[there]


def _sent(part: _Part, every_s: int) -> pa.RecordBatch:
    """The rows of a part, cut by broker and slice of time."""
    first = np.concatenate([rows.first for rows in part.rows])
    starts_us, brokers = part.starts_us[first], part.events.brokers[first]
    slice_us = every_s * max(1, SLICE_S // every_s) * 1_000_000
    slices_us = starts_us - starts_us % slice_us
    order = np.lexsort((slices_us, brokers))
    brokers, slices_us = brokers[order], slices_us[order]
    sizes = [len(rows.first) for rows in part.rows]
    columns = [
        np.repeat([rows.level for rows in part.rows], sizes)[order],
        np.repeat([rows.quota for rows in part.rows], sizes)[order],
        starts_us[order],
        *(_named(part, name, first, sizes).take(order) for name in NAMES),
        *(np.concatenate([rows.sums[at] for rows in part.rows])[order] for at in range(len(SUMS))),
        *(np.concatenate([rows.most[at] for rows in part.rows])[order] for at in range(len(MOST))),
        _lists(part.rows).take(order),
    ]
    batch = pa.RecordBatch.from_arrays([pa.array(each) for each in columns], schema=PART)
    changes = (np.diff(brokers) != 0) | (np.diff(slices_us) != 0)
    cuts = np.concatenate(([0], np.flatnonzero(changes) + 1))
    ends = np.append(cuts[1:], len(order))
    rows = [batch.slice(at, end - at).serialize() for at, end in zip(cuts, ends, strict=True)]
    return pa.RecordBatch.from_pydict(
        {
            "broker": pa.array(brokers[cuts].astype(np.int32)),
            "slice_us": slices_us[cuts],
            "rows": pa.array([memoryview(each) for each in rows], pa.binary()),
        }
    )


def _named(part: _Part, name: str, first: Ints, sizes: Sequence[int]) -> pa.Array:
    """The names of all rows, where their levels have them."""
    names = part.names[name]
    own = [name in list(LEVELS.values())[rows.level] for rows in part.rows]
    numbers = np.where(np.repeat(own, sizes), names.numbers[first], len(names.texts) - 1)
    return names.texts.take(numbers)


def _lists(rows: Sequence[_Rows]) -> pa.Array:
    ends = np.cumsum(np.concatenate([each.sizes for each in rows]))
    pairs = np.concatenate([each.pairs for each in rows])
    return pa.ListArray.from_arrays(np.append(0, ends).astype(np.int32), pairs)


# The whole ------------------------------------------------------------------------------------


def _finished(broker: int, table: pa.Table) -> pa.RecordBatch:
    """All rows of a broker and a slice of time."""
    table = table.combine_chunks()
    levels, quotas = table["level"].to_numpy(), table["quota"].to_numpy()
    starts_us, at = np.unique(table["start_us"].to_numpy(), return_inverse=True)
    kept = quotas == KEPT
    names = [_codes(table[name]) for name in NAMES]
    keys = _joined([at, levels * (KEPT + 1) + quotas, *names])
    order = np.argsort(keys, kind="stable")
    order = order[~kept[order]]
    first = _firsts(keys[order])
    heads = order[first]
    found = [table[name].to_numpy()[order] for name in (*SUMS, *MOST)]
    columns = [
        np.full(len(heads), broker, np.int32),
        pa.array(LEVELS, pa.string()).take(levels[heads]),
        *(_together(table[name]).take(heads) for name in NAMES),
        pa.array(QUOTAS, pa.string()).take(quotas[heads]),
        starts_us[at[heads]],
        *(_added(column, first) for column in found[: len(SUMS)]),
        *(_largest(column, first) for column in found[len(SUMS) :]),
        *_latencies(_together(table["latencies"]), order, first),
        *(_kept(table[name].to_numpy(), kept, at)[at[heads]] for name in SUMS[:2]),
    ]
    arrays = [pa.array(each, from_pandas=True) for each in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=WHOLE)


def _kept(counts: Ints, kept: Flags, intervals: Ints) -> Ints:
    """What of each interval there is."""
    found = np.zeros(int(intervals.max()) + 1, np.int64)
    np.add.at(found, intervals[kept], counts[kept])
    return found


def _latencies(lists: pa.Array, order: Ints, first: Ints) -> list[Floats]:
    entities = np.zeros(len(lists), np.int64)
    entities[order[first[1:]]] = 1
    entities[order] = np.cumsum(entities[order])
    sizes = np.diff(lists.offsets.to_numpy())
    return percentiles(lists.flatten().to_numpy(), np.repeat(entities, sizes), len(first))


# Together -------------------------------------------------------------------------------------


def _chunks(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Some at a time, as many as there are before one of the limits is reached."""
    held: list[pa.Table] = []
    rows = size = 0
    for table in tables:
        for at in range(0, len(table), CHUNK_ROWS):
            held.append(table.slice(at, CHUNK_ROWS))
            rows += len(held[-1])
            size += held[-1].nbytes
            if rows >= CHUNK_ROWS or size >= CHUNK_BYTES:
                yield pa.concat_tables(held)
                held, rows, size = [], 0, 0
    if held:
        yield pa.concat_tables(held)


def _codes(column: pa.ChunkedArray) -> Ints:
    """A number for each different value; one for null, too."""
    encoded = _together(column).dictionary_encode(null_encoding="encode")
    codes: Ints = encoded.indices.to_numpy().astype(np.int64)
    return codes


def _joined(codes: Sequence[Ints]) -> Ints:
    """A number for each different combination."""
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


def _firsts(keys: Ints) -> Ints:
    """Where another key begins, of keys that lie together."""
    return np.flatnonzero(np.diff(keys, prepend=keys[:1] - 1))


def _added(values: Ints, first: Ints) -> Ints:
    found: Ints = np.add.reduceat(values, first) if len(first) else values[:0]
    return found


def _largest(values: Floats, first: Ints) -> Floats:
    found: Floats = np.fmax.reduceat(values, first) if len(first) else values[:0]
    return found


def _together(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
