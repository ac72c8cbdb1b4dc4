"""Usage aggregation in Arrow: events to cells, then cells to the rows of each level.

Owns the sums of each level and the format in which partial sums are exchanged; it must never know
Spark, or the rules by which an event counts for a quota. Invariant: the figures depend neither on
the order of events nor on how they are partitioned, because only integers are added. Memory is
bounded by a chunk of events, and by the cells of a broker's time slice. Kafka has no counterpart.

All cells of a broker and a time slice are exchanged as one batch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from minibroker.pipeline import latencies
from minibroker.pipeline.cells import (
    CELL,
    MASK_BITS,
    MOST,
    PAIR_BITS,
    SUMS,
    added,
    cells_of,
    codes_of,
    combined,
    joined,
)
from minibroker.pipeline.compiled_functions import compiled
from minibroker.pipeline.exchange import chunks, packed, unpacked
from minibroker.pipeline.latencies import PERCENTILES
from minibroker.pipeline.ordering import ordered, pairs_of
from minibroker.pipeline.quota_amounts import Events, Ints
from minibroker.pipeline.quota_units import LEVELS, NAMES, QUOTAS

SLICE_S: Final = 60
"""Length of a time slice, whose cells are exchanged together; a longer interval replaces it."""
BATCH_BYTES: Final = 4 * 1024 * 1024
"""Size of the cells that are aggregated together: slices are collected until it is reached."""

TOTAL_SUMS: Final = pa.schema(
    [
        ("broker", pa.int32()),
        ("level", pa.string()),
        *((name, pa.string()) for name in NAMES),
        ("quota", pa.string()),
        ("start_us", pa.int64()),
        *((name, pa.int64()) for name in SUMS),
        ("throttle_max_ms", pa.int64()),
        *((name, pa.float64()) for name in MOST),
        *((f"p{percent}", pa.float64()) for percent in PERCENTILES),
        ("written", pa.int64()),
        ("dropped", pa.int64()),
    ]
)
PARTIAL_SUMS_DDL: Final = "broker int, slice_us bigint, size int, cells binary"
"""The Spark schema of partial sums."""

_MAX_AT: Final = len(SUMS)
"""The column of the maximum, behind the sums."""
_NO_ENTITY: Final = -1


def partial_sums(tables: Iterable[pa.Table], every_s: int) -> Iterator[pa.RecordBatch]:
    """Aggregate each chunk of events into cells; columns as in ``PARTIAL_SUMS_DDL``."""
    every_us = every_s * 1_000_000
    slice_us = every_us * max(1, SLICE_S // every_s)
    for table in chunks(tables):
        cells = cells_of(Events(table), every_us, slice_us)
        del table
        yield _serialized(cells, slice_us)


def total_sums(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Aggregate all cells, sorted by broker and slice, into rows of ``TOTAL_SUMS``."""
    for cells in _complete_slices(batches):
        yield from _Cells(cells).rows()


# Exchange of cells -----------------------------------------------------------------------------


def _serialized(cells: pa.RecordBatch, slice_us: int) -> pa.RecordBatch:
    """Serialize cells by broker and time slice."""
    brokers, starts_us = cells["broker"].to_numpy(), cells["start_us"].to_numpy()
    slices_us = starts_us - starts_us % slice_us
    changes = (np.diff(brokers) != 0) | (np.diff(slices_us) != 0)
    cuts = np.concatenate(([0], np.flatnonzero(changes) + 1))
    ends = np.append(cuts[1:], len(brokers))
    size, body = packed(cells.slice(at, end - at) for at, end in zip(cuts, ends, strict=True))
    return pa.RecordBatch.from_pydict(
        {
            "broker": pa.array(brokers[cuts].astype(np.int32)),
            "slice_us": slices_us[cuts],
            "size": size,
            "cells": body,
        }
    )


def _complete_slices(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Deserialize cells, complete slices at a time, up to the size limit."""
    pending: list[pa.RecordBatch] = []
    size = 0
    for _, slice_cells in itertools.groupby(_received(batches), itemgetter(0)):
        for _, cells in slice_cells:
            pending.append(pa.ipc.read_record_batch(cells, CELL))
            size += cells.size
        if size >= BATCH_BYTES:
            yield pa.Table.from_batches(pending)
            pending, size = [], 0
    if pending:
        yield pa.Table.from_batches(pending)


def _received(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[tuple[int, int], pa.Buffer]]:
    for batch in batches:
        brokers, slices_us, sizes, cells = batch.columns
        keys = zip(brokers.to_pylist(), slices_us.to_pylist(), strict=True)
        yield from zip(keys, unpacked(sizes, cells), strict=True)


# Aggregation ------------------------------------------------------------------------------------


class _Pairs(NamedTuple):
    """Latencies in ascending order, with their cells and quotas."""

    cells: Ints
    masks: Ints
    numbers: Ints
    counts: Ints


class _Cells:
    """The cells of some brokers and time slices; a cell may occur several times."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table = table.combine_chunks()
        brokers, starts_us = table["broker"].to_numpy(), table["start_us"].to_numpy()
        self._brokers, self._starts_us = brokers, starts_us
        self._moments = pairs_of(brokers - brokers.min(), starts_us)[1]
        """Index of each cell's (broker, interval)."""
        self._names = [codes_of(table[name]) for name in NAMES]
        self._event_counts = [
            self._sum_by_moment(table[name].to_numpy()) for name in ("written", "dropped")
        ]
        counts = combined(table["counts"])
        self._cell_of_count = _places(counts)
        fields = [each.to_numpy() for each in counts.flatten().flatten()]
        self._quotas, self._levels = fields[:2]
        self._sums = np.stack(fields[2 : 3 + len(SUMS)], axis=1)
        self._most = np.stack(fields[3 + len(SUMS) :], axis=1)
        self._pairs = _in_order(combined(table["latencies"]))

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Aggregate the cells at each level; columns as in ``TOTAL_SUMS``."""
        for level, names in enumerate(LEVELS.values()):
            heads, entities = self._entities(names)
            found = self._added(level, heads, entities)
            if len(found):
                yield found

    def _sum_by_moment(self, values: Ints) -> Ints:
        """Sum ``values`` over each cell's (broker, interval)."""
        by_cell: Ints = added(self._moments, int(self._moments.max()) + 1, values)[self._moments]
        return by_cell

    def _entities(self, names: Sequence[str]) -> tuple[Ints, Ints]:
        """(the index of one cell for each entity, the entity of each cell or -1)."""
        codes = [self._names[NAMES.index(name)] for name in names]
        has_names = np.ones(len(self._table), np.bool_)
        for code in codes:
            has_names &= code > 0
        cells = np.flatnonzero(has_names)
        found = np.full(len(self._table), _NO_ENTITY, np.int64)
        if not len(cells):
            return cells, found
        keys = joined([code[cells] for code in codes]) if codes else np.zeros_like(cells)
        heads, found[cells] = pairs_of(self._moments[cells], keys)
        return cells[heads], found

    def _added(self, level: int, heads: Ints, entities: Ints) -> pa.RecordBatch:
        """The rows of a level: one for each entity and quota for which anything was counted."""
        size = len(heads) * len(QUOTAS)
        sums = np.zeros((size, self._sums.shape[1]), np.int64)
        most = np.full((size, len(MOST)), np.nan)
        counted = np.zeros(size, np.bool_)
        _add_up(
            entities[self._cell_of_count], self._quotas, self._levels, level, self._sums,
            self._most, counted, sums, most,
        )  # fmt: skip
        rows = np.flatnonzero(counted)
        cells = heads[rows // len(QUOTAS)]
        names = list(LEVELS.values())[level]
        columns = [
            self._brokers[cells].astype(np.int32),
            pa.repeat(list(LEVELS)[level], len(rows)),
            *(
                self._table[name].take(cells).combine_chunks()
                if name in names
                else pa.nulls(len(rows), pa.string())
                for name in NAMES
            ),
            pa.array(QUOTAS, pa.string()).take(pa.array(rows % len(QUOTAS))),
            self._starts_us[cells],
            *sums[rows].T,
            *most[rows].T,
            *self._percentiles(size, entities)[:, rows],
            *(each[cells] for each in self._event_counts),
        ]
        arrays = [pa.array(each, from_pandas=True) for each in columns]
        return pa.RecordBatch.from_arrays(arrays, schema=TOTAL_SUMS)

    def _percentiles(self, size: int, entities: Ints) -> Any:
        pairs = self._pairs
        entity_of = entities[pairs.cells]
        starts = np.zeros(size + 1, np.int64)
        _measure(entity_of, pairs.masks, starts)
        numbers, counts = np.empty((2, int(starts[-1])), np.int64)
        _spread(
            entity_of, pairs.masks, pairs.numbers, pairs.counts, starts[:-1].copy(), numbers, counts
        )
        return latencies.percentiles(numbers, counts, starts)


@compiled
def _add_up(
    entities: Any, quotas: Any, levels: Any, level: Any, sums: Any, most: Any, counted: Any,
    found: Any, largest: Any,
) -> None:  # fmt: skip
    """Add up cells by entity and quota.

    The rates that brokers measured and their bounds count only at the level at which the broker
    checked them.
    """
    for row in range(len(entities)):
        if entities[row] < 0:
            continue
        at = entities[row] * MASK_BITS + quotas[row]
        counted[at] = True
        for column in range(_MAX_AT):
            found[at, column] += sums[row, column]
        found[at, _MAX_AT] = max(found[at, _MAX_AT], sums[row, _MAX_AT])
        if levels[row] == level:
            for column in range(largest.shape[1]):
                value, before = most[row, column], largest[at, column]
                if value > before or math.isnan(before):
                    largest[at, column] = value


@compiled
def _measure(entities: Any, masks: Any, starts: Any) -> None:
    """Compute where the latencies of each entity and quota start; ``starts`` comes in zeroed."""
    for row in range(len(entities)):
        if entities[row] >= 0:
            for quota in range(MASK_BITS):
                starts[entities[row] * MASK_BITS + quota + 1] += masks[row] >> quota & 1
    for at in range(1, len(starts)):
        starts[at] += starts[at - 1]


@compiled
def _spread(
    entities: Any, masks: Any, numbers: Any, counts: Any, ends: Any, found: Any, counted: Any
) -> None:
    """Distribute latencies to their entity and quota, keeping their order.

    ``ends`` comes in as the start of each group and leaves as its end.
    """
    for row in range(len(entities)):
        if entities[row] < 0:
            continue
        for quota in range(MASK_BITS):
            if masks[row] >> quota & 1:
                at = entities[row] * MASK_BITS + quota
                found[ends[at]], counted[ends[at]] = numbers[row], counts[row]
                ends[at] += 1


def _in_order(lists: pa.ListArray) -> _Pairs:
    pairs = lists.flatten().to_numpy()
    numbers = pairs & latencies.NO_LATENCY
    order = ordered(np.arange(len(pairs)), numbers, latencies.NUMBERS)[0]
    pairs = pairs[order]
    masks = pairs >> latencies.BITS & (1 << MASK_BITS) - 1
    return _Pairs(_places(lists)[order], masks, numbers[order], pairs >> PAIR_BITS)


def _places(lists: pa.ListArray) -> Ints:
    """The row index of each value of a list column."""
    found: Ints = np.repeat(np.arange(len(lists)), np.diff(lists.offsets.to_numpy()))
    return found
