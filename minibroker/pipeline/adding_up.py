"""Usage added up in Arrow: rows of events become rows of entities, first each part, then the whole.

Owns the sums, and the percentiles of what is not sampled but counted; it must never know Spark, nor
what a quota counts. Invariant: whatever the rows' order and however they are cut into parts, the
figures are the same, as only whole numbers are added; memory is that of a chunk and of
the largest entity's latencies. Brokers keep histograms for this, in ``RequestMetrics``.

A part tells of an entity and interval in one row: its sums, and as bytes its latencies in order,
each with how often it was seen. That is a tenth of the rows that a table of latencies would have,
which makes the difference between seconds and minutes in what Spark does with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
Floats = np.ndarray[tuple[int], np.dtype[np.float64]]

CHUNK_ROWS: Final = 200_000
CHUNK_BYTES: Final = 64 * 1024 * 1024
"""Rows that are looked at together, as many as there are before one of these is reached."""

SUMS: Final = ("events", "amount", "requests", "errors", "throttled", "throttle_ms")
MOST: Final = ("throttle_max_ms", "measured", "bound")
"""Of these the largest counts; null where there was none."""

LATENCIES: Final = "latencies"
"""Pairs of 64 bits: microseconds, and how many events took them."""

_PAIR_BYTES: Final = 16
_CODES_MAX: Final = 2**62


def parts(
    batches: Iterable[pa.RecordBatch], levels: Mapping[str, Sequence[str]], keys: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """One row an entity of each of ``levels``, for each chunk of rows.

    A level's entities are told apart by its names, which none of them lacks, and by ``keys``.
    """
    names = sorted({name for wanted in levels.values() for name in wanted})
    for table in _chunks(batches):
        codes = {name: _codes(table[name]) for name in (*keys, *names)}
        latency = table["latency_us"].fill_null(-1).to_numpy()
        counted_at = table["counted_at"].to_numpy(zero_copy_only=False)
        columns = {name: table[name].fill_null(0).to_numpy() for name in SUMS}
        most = {name: table[name].cast(pa.float64()).to_numpy() for name in MOST}
        for level, wanted in levels.items():
            there = np.ones(len(table), bool)
            for name in wanted:
                there &= table[name].is_valid().to_numpy()
            rows = np.flatnonzero(there)
            if not len(rows):
                continue
            key = _joined([codes[name][rows] for name in (*keys, *wanted)])
            order = np.lexsort((latency[rows], key))
            rows, key = rows[order], key[order]
            first = _firsts(key)
            told = {name: table[name].take(rows[first]) for name in (*keys, *wanted)}
            # What a broker measured and held somebody to is that of the level it counted by.
            own = counted_at[rows] == level
            largest = {
                "throttle_max_ms": most["throttle_max_ms"][rows],
                "measured": np.where(own, most["measured"][rows], np.nan),
                "bound": np.where(own, most["bound"][rows], np.nan),
            }
            yield _batch(
                {
                    **{name: pa.nulls(len(first), pa.string()) for name in names},
                    **told,
                    "level": pa.array([level] * len(first)),
                    **{name: np.add.reduceat(columns[name][rows], first) for name in SUMS},
                    **{name: _largest(values, first) for name, values in largest.items()},
                    LATENCIES: _packed(latency[rows], columns["events"][rows], key, first),
                },
            )


def whole(
    batches: Iterable[pa.RecordBatch], keys: Sequence[str], percents: Sequence[int]
) -> Iterator[pa.RecordBatch]:
    """One row an entity from the rows of all parts, which come in the order of ``keys``."""
    rest: pa.Table | None = None
    for chunk in _chunks(batches):
        table = chunk if rest is None else pa.concat_tables([rest, chunk]).combine_chunks()
        first = _firsts(_joined([_codes(table[name]) for name in keys]))
        # More of the last entity may come with the next chunk.
        rest = table.slice(first[-1])
        if len(first) > 1:
            yield _finished(table.slice(0, first[-1]), first[:-1], keys, percents)
    if rest is not None:
        yield _finished(rest, np.zeros(1, np.int64), keys, percents)


def _finished(
    table: pa.Table, first: Ints, keys: Sequence[str], percents: Sequence[int]
) -> pa.RecordBatch:
    numbers = {name: table[name].to_numpy() for name in SUMS}
    most = {name: table[name].cast(pa.float64()).to_numpy() for name in MOST}
    found = _percentiles(_together(table[LATENCIES]), first, percents)
    return _batch(
        {
            **{name: table[name].take(first) for name in keys},
            **{name: np.add.reduceat(numbers[name], first) for name in SUMS},
            **{name: _largest(most[name], first) for name in MOST},
            **{f"p{percent}": found[at] for at, percent in enumerate(percents)},
        },
    )


def _percentiles(packed: pa.Array, first: Ints, percents: Sequence[int]) -> list[pa.Array]:
    """Between the two nearest of an entity's latencies, as SQL's ``percentile`` has it."""
    _, offsets, data = packed.buffers()
    ends = np.frombuffer(offsets, np.int32)[packed.offset : packed.offset + len(packed) + 1]
    sizes = np.diff(ends) // _PAIR_BYTES
    pairs = np.frombuffer(data, np.int64, 2 * int(sizes.sum()), int(ends[0])).reshape(-1, 2)
    of_row = np.zeros(len(packed), np.int64)
    of_row[first] = 1
    entity = np.repeat(np.cumsum(of_row) - 1, sizes)
    order = np.lexsort((pairs[:, 0], entity))
    latency, seen = pairs[order, 0], pairs[order, 1]
    reached = np.cumsum(seen)
    totals = np.zeros(len(first), np.int64)
    np.add.at(totals, entity, pairs[:, 1])
    before = np.cumsum(totals) - totals
    some = totals > 0
    result = []
    for percent in percents:
        position = (totals - 1) * (percent / 100)
        low, high = np.floor(position), np.ceil(position)
        at_low, at_high = (
            latency[np.searchsorted(reached, (before + step.astype(np.int64))[some], "right")]
            for step in (low, high)
        )
        position, low, high = position[some], low[some], high[some]
        between = (high - position) * at_low + (position - low) * at_high
        value = np.full(len(first), np.nan)
        value[some] = np.where(low == high, at_low, between)
        result.append(_nullable(value))
    return result


def _chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
        if rows >= CHUNK_ROWS or size >= CHUNK_BYTES:
            yield pa.Table.from_batches(held).combine_chunks()
            held, rows, size = [], 0, 0
    if held:
        yield pa.Table.from_batches(held).combine_chunks()


def _codes(column: pa.ChunkedArray) -> Ints:
    """A number for each different value; one for null, too."""
    encoded = _together(column).dictionary_encode(null_encoding="encode")
    codes: Ints = encoded.indices.to_numpy().astype(np.int64)
    return codes


def _joined(codes: Sequence[Ints]) -> Ints:
    """A number for each different combination."""
    whole, span = np.zeros(len(codes[0]), np.int64), 1
    for each in codes:
        size = int(each.max()) + 1
        if span * size >= _CODES_MAX:
            whole = np.unique(whole, return_inverse=True)[1].astype(np.int64)
            span = int(whole.max()) + 1
        whole = whole * size + each
        span *= size
    return whole


def _firsts(key: Ints) -> Ints:
    """Where another key begins, of keys that lie together."""
    found: Ints = np.flatnonzero(np.concatenate(([True], key[1:] != key[:-1])))
    return found


def _packed(latency: Ints, events: Ints, key: Ints, first: Ints) -> pa.Array:
    """The latencies of each key as bytes, alike ones together; of rows in their order."""
    alike = np.concatenate(([True], (key[1:] != key[:-1]) | (latency[1:] != latency[:-1])))
    starts = np.flatnonzero(alike)
    pairs = np.empty((len(starts), 2), np.int64)
    pairs[:, 0] = latency[starts]
    # Without a latency, as connections are, an event is none here.
    pairs[:, 1] = np.where(pairs[:, 0] < 0, 0, np.add.reduceat(events, starts))
    offsets = np.append(np.searchsorted(starts, first), len(starts)) * _PAIR_BYTES
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(first), [None, pa.py_buffer(offsets), pa.py_buffer(pairs)]
    ).cast(pa.binary())


def _largest(values: Floats, first: Ints) -> pa.Array:
    return _nullable(np.fmax.reduceat(values, first))


def _nullable(values: Floats) -> pa.Array:
    return pa.array(values, from_pandas=True)


def _batch(columns: Mapping[str, Any]) -> pa.RecordBatch:
    arrays = {}
    for name, column in columns.items():
        if isinstance(column, pa.ChunkedArray):
            arrays[name] = _together(column)
        else:
            arrays[name] = pa.array(column) if isinstance(column, np.ndarray) else column
    return pa.RecordBatch.from_pydict(arrays)


def _together(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
