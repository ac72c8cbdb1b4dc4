"""The usage table: activity events aggregated by entity, quota and interval.

Owns the sums of each level, the percentiles of latencies, the format in which partial sums are
exchanged, and the columns of the table; it must never know the rules by which an event counts for a
quota, or where the figures go. Invariant: the figures depend neither on the order of events nor on
how they are partitioned, because only integers are added; dropped events are reported next to
written ones. Memory is bounded by a chunk of events, and by the cells of a broker's time slice.
Kafka measures the same in ``ClientQuotaManager`` and ``RequestMetrics``, but does not keep it.

A sampled event represents ``1 / sample`` events. Each event counts on several levels: for the whole
broker, for its user, for its client-id and for both together, or for its address, so that quotas
can be planned for a level that has none yet. Requests without a client-id count for the broker and
the user only, because no client-id quota applies to them.

A cell is a broker, interval, user, client-id and address; the figures of every level follow from
the cells alone, so events are read once. All cells of a broker and a time slice are exchanged as
one batch. Latencies are rounded to three digits, so percentiles are off by half a percent at most,
and a latency is a small number.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from minibroker.pipeline import quota_amounts
from minibroker.pipeline.activity_table import Scan, scan_frame
from minibroker.pipeline.grouping import (
    Ints,
    added,
    chunks,
    coded,
    combined,
    interpolated,
    joined,
    largest,
    numbered,
    packed,
    starts_of,
    unpacked,
)
from minibroker.pipeline.quota_amounts import LEVELS, NAMES, PER_EVENT, QUOTAS, UNITS, Events

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SLICE_S: Final = 60
"""Length of a time slice, whose cells are exchanged together; a longer interval replaces it."""
BATCH_BYTES: Final = 4 * 1024 * 1024
"""Size of the cells that are aggregated together: slices are collected until it is reached."""

SUMS: Final = ("events", "amount", "requests", "errors", "throttled", "throttle_ms")
MOST: Final = ("measured", "bound")
"""Maxima over the events that the broker checked at the level; nan if there are none."""
COUNT: Final = pa.struct(
    [
        ("quota", pa.int64()),
        ("level", pa.int64()),
        *((name, pa.int64()) for name in (*SUMS, "throttle_max_ms")),
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
        ("latencies", pa.list_(pa.int32())),
    ]
)
"""``written`` and ``dropped`` count all events, also those that count for no quota. A latency is
the number of a latency and, above it, the mask of the quotas for which its event counts.
"""

BITS: Final = 14
"""Bits of a latency's number."""
NO_LATENCY: Final = (1 << BITS) - 1
MASK_BITS: Final = len(QUOTAS)
"""Size of the mask of the quotas for which an event counts."""
PERCENTILES: Final = (50, 95, 99)

TOTAL_SUMS: Final = pa.schema(
    [
        ("broker", pa.int32()),
        ("level", pa.string()),
        *((name, pa.string()) for name in NAMES),
        ("quota", pa.string()),
        ("start_us", pa.int64()),
        *((name, pa.int64()) for name in (*SUMS, "throttle_max_ms")),
        *((name, pa.float64()) for name in MOST),
        *((f"p{percent}", pa.float64()) for percent in PERCENTILES),
        ("written", pa.int64()),
        ("dropped", pa.int64()),
    ]
)
PARTIAL_SUMS_DDL: Final = "broker int, slice_us bigint, size int, content binary"
"""The Spark schema of partial sums."""

_DIGITS: Final = 1000
_STEPS: Final = 10 ** np.arange(1, 14)
_A_STEP: Final = _DIGITS - _DIGITS // 10
"""Numbers of latencies for each power of ten."""


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


# Events to cells -------------------------------------------------------------------------------


def cells_of(events: Events, every_us: int, slice_us: int) -> pa.RecordBatch:
    """Aggregate at least one event into cells; columns as in ``CELL``.

    Cells of a broker and a time slice are adjacent; a slice contains complete intervals.
    """
    intervals = events.times_us // every_us
    names = events.names()
    rows, cells = numbered(
        joined([intervals, events.brokers, *(names[name].numbers for name in NAMES)])
    )
    order = np.lexsort((intervals[rows] // (slice_us // every_us), events.brokers[rows]))
    rows, cells = rows[order], np.argsort(order)[cells]
    masks = np.zeros(len(events), np.int64)
    columns = [
        events.brokers[rows],
        intervals[rows] * every_us,
        *(names[name].texts.take(pa.array(names[name].numbers[rows])) for name in NAMES),
        added(cells, len(rows), events.seen),
        added(cells, len(rows), events.dropped),
        _counts(events, cells, len(rows), masks),
        _latencies(events, cells, len(rows), masks),
    ]
    return pa.RecordBatch.from_arrays([pa.array(each) for each in columns], schema=CELL)


def _counts(events: Events, cells: Ints, count: int, masks: Ints) -> pa.ListArray:
    """The counts of each cell; ``masks`` receives the quotas for which each event counts."""
    weights, failed = events.for_all(PER_EVENT), events.failed
    found = []
    for number, counted in enumerate(events.counted()):
        rows = np.flatnonzero(counted.where)
        masks[rows] |= 1 << number
        levels = np.full(len(rows), -1) if counted.level is None else counted.level[rows]
        heads, groups = numbered(cells[rows] * (len(LEVELS) + 1) + levels + 1)
        begins = True if counted.begins is None else counted.begins
        throttled_ms = counted.throttled_ms
        sums = (
            events.seen,
            events.for_all(counted.amount),
            np.where(begins, weights, 0),
            np.where(failed, weights, 0),
            np.where(throttled_ms > 0, weights, 0),
            events.for_all(throttled_ms),
        )
        longest_ms = np.zeros(len(heads), np.int64)
        np.maximum.at(longest_ms, groups, throttled_ms[rows])
        columns = [
            cells[rows][heads],
            np.full(len(heads), number),
            levels[heads],
            *(added(groups, len(heads), values[rows]) for values in sums),
            longest_ms,
        ]
        for values in (counted.measured, counted.bound):
            known = np.full(len(heads), np.nan)
            if values is not None:
                known = largest(groups, len(heads), values[rows])
            columns.append(known)
        found.append(columns)
    of_cells, *merged = (np.concatenate(each) for each in zip(*found, strict=True))
    order = np.argsort(of_cells, kind="stable")
    structs = pa.StructArray.from_arrays(
        [pa.array(each[order]) for each in merged], fields=list(COUNT)
    )
    starts = starts_of(of_cells[order], count)
    return pa.ListArray.from_arrays(pa.array(starts.astype(np.int32)), structs)


def _latencies(events: Events, cells: Ints, count: int, masks: Ints) -> pa.ListArray:
    numbers = rounded(events.latencies_us)
    rows = np.flatnonzero(events.seen & (numbers != NO_LATENCY) & (masks != 0))
    bits = BITS + MASK_BITS
    keys = np.sort(cells[rows] << bits | masks[rows] << BITS | numbers[rows])
    starts = starts_of(keys >> bits, count)
    values = (keys & (1 << bits) - 1).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(starts.astype(np.int32)), pa.array(values))


# Exchange of cells -----------------------------------------------------------------------------


def _serialized(cells: pa.RecordBatch, slice_us: int) -> pa.RecordBatch:
    """Serialize cells by broker and time slice."""
    brokers, starts_us = cells["broker"].to_numpy(), cells["start_us"].to_numpy()
    slices_us = starts_us - starts_us % slice_us
    changes = (np.diff(brokers) != 0) | (np.diff(slices_us) != 0)
    cuts = np.concatenate(([0], np.flatnonzero(changes) + 1))
    keys = {"broker": brokers[cuts].astype(np.int32), "slice_us": slices_us[cuts]}
    return packed(keys, cells, cuts)


def _complete_slices(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Deserialize cells, complete slices at a time, up to the size limit."""
    pending: list[pa.RecordBatch] = []
    size = 0
    for _, slice_cells in itertools.groupby(unpacked(batches, CELL), itemgetter(0)):
        for _, cells in slice_cells:
            pending.append(cells)
            size += cells.nbytes
        if size >= BATCH_BYTES:
            yield pa.Table.from_batches(pending)
            pending, size = [], 0
    if pending:
        yield pa.Table.from_batches(pending)


# Cells to rows ---------------------------------------------------------------------------------


class _Cells:
    """The cells of some brokers and time slices; a cell may occur several times."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table = table.combine_chunks()
        self._brokers, self._starts_us = table["broker"].to_numpy(), table["start_us"].to_numpy()
        heads, self._moments = numbered(joined([self._brokers, self._starts_us]))
        """Number of each cell's (broker, interval)."""
        self._names = {name: coded(table[name]) for name in NAMES}
        self._event_counts = [
            added(self._moments, len(heads), table[name].to_numpy())[self._moments]
            for name in ("written", "dropped")
        ]
        counts, latencies = combined(table["counts"]), combined(table["latencies"])
        self._cell_of_count = _places(counts)
        self._quotas, self._levels, *figures = (
            each.to_numpy() for each in counts.flatten().flatten()
        )
        self._sums, self._most = figures[: len(SUMS) + 1], figures[len(SUMS) + 1 :]
        pairs, cells = latencies.flatten().to_numpy().astype(np.int64), _places(latencies)
        of_quotas = [np.flatnonzero(pairs >> BITS + at & 1) for at in range(MASK_BITS)]
        self._latencies = [(cells[rows], pairs[rows] & NO_LATENCY) for rows in of_quotas]
        """By quota: cells and numbers."""

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Aggregate the cells at each level; columns as in ``TOTAL_SUMS``."""
        for level, (name, names) in enumerate(LEVELS.items()):
            heads, entities = self._entities(names)
            found = self._added(level, name, heads, entities)
            if len(found):
                yield found

    def _entities(self, names: Sequence[str]) -> tuple[Ints, Ints]:
        """(the index of one cell for each entity, the entity of each cell or -1)."""
        codes = [self._names[name][0] for name in names]
        there = [self._names[name][0] < len(self._names[name][1]) for name in names]
        cells = np.flatnonzero(np.logical_and.reduce([self._moments >= 0, *there]))
        found = np.full(len(self._table), -1, np.int64)
        heads, found[cells] = numbered(joined([self._moments, *codes])[cells])
        return cells[heads], found

    def _added(self, level: int, level_name: str, heads: Ints, entities: Ints) -> pa.RecordBatch:
        """The rows of a level: one for each entity and quota for which anything was counted.

        The rates that brokers measured and their bounds count only at the level at which the broker
        checked them.
        """
        of_counts = entities[self._cell_of_count]
        there = np.flatnonzero(of_counts >= 0)
        used, groups = numbered(of_counts[there] * len(QUOTAS) + self._quotas[there])
        places = (of_counts * len(QUOTAS) + self._quotas)[there][used]
        own = self._levels[there] == level
        *sums, longest_ms = (values[there] for values in self._sums)
        most_ms = np.zeros(len(used), np.int64)
        np.maximum.at(most_ms, groups, longest_ms)
        cells = heads[places // len(QUOTAS)]
        columns = [
            self._brokers[cells].astype(np.int32),
            pa.repeat(level_name, len(used)),
            *(
                combined(self._table[name]).take(pa.array(cells))
                if name in LEVELS[level_name]
                else pa.nulls(len(used), pa.string())
                for name in NAMES
            ),
            pa.array(QUOTAS, pa.string()).take(pa.array(places % len(QUOTAS))),
            self._starts_us[cells],
            *(added(groups, len(used), values) for values in sums),
            most_ms,
            *(largest(groups[own], len(used), values[there][own]) for values in self._most),
            *self._percentiles(len(heads) * len(QUOTAS), entities)[:, places],
            *(each[cells] for each in self._event_counts),
        ]
        arrays = [pa.array(each, from_pandas=True) for each in columns]
        return pa.RecordBatch.from_arrays(arrays, schema=TOTAL_SUMS)

    def _percentiles(self, size: int, entities: Ints) -> Any:
        """The percentiles of each entity and quota."""
        keys = []
        for quota, (cells, numbers) in enumerate(self._latencies):
            places = entities[cells] * len(QUOTAS) + quota
            found = places << BITS | numbers
            keys.append(found[places >= 0])
        every = np.sort(np.concatenate(keys))
        return percentiles(every & NO_LATENCY, starts_of(every >> BITS, size))


def _places(lists: pa.ListArray) -> Ints:
    """The row index of each value of a list column."""
    found: Ints = np.repeat(np.arange(len(lists)), np.diff(lists.offsets.to_numpy()))
    return found


# Latencies -------------------------------------------------------------------------------------


def rounded(us: Ints) -> Ints:
    """Numbers of latencies, rounded to three significant digits, in the order of latencies."""
    steps = np.searchsorted(_STEPS * (_DIGITS // 10), us, "right")
    unit = np.append(1, _STEPS)[steps]
    found: Ints = np.where(us < 0, NO_LATENCY, steps * _A_STEP + (us + unit // 2) // unit)
    return found


def latency_of(numbers: Ints) -> Ints:
    """The latencies of numbers."""
    steps = np.maximum(numbers - _DIGITS // 10, 0) // _A_STEP
    found: Ints = (numbers - steps * _A_STEP) * np.append(1, _STEPS)[steps]
    return found


def percentiles(numbers: Ints, starts: Ints) -> Any:
    """A row for each of ``PERCENTILES``, with a value for each span between two ``starts``; nan for
    an empty span. Within a span ``numbers`` ascend. Interpolated like SQL's ``percentile``.
    """
    counts = np.diff(starts)
    spans = np.flatnonzero(counts)
    found = np.full((len(PERCENTILES), len(counts)), np.nan)
    for row, percent in zip(found, PERCENTILES, strict=True):
        row[spans] = interpolated(
            starts[spans], counts[spans], percent / 100, lambda at: latency_of(numbers[at])
        )
    return found


# The usage table ---------------------------------------------------------------------------------


class Kept(NamedTuple):
    """A column of the usage table, with its Spark type."""

    name: str
    type: str
    unit: str
    meaning: str


COLUMNS: Final = (
    Kept("broker", "int", "", "`broker.id`"),
    Kept("level", "string", "",
         "the kind of entity: `broker`, `user`, `client`, `user+client` or `ip`"),
    Kept("user", "string", "", "name of the authenticated user; null on other levels"),
    Kept("client_id", "string", "", "client-id of the requests; null on other levels"),
    Kept("ip", "string", "", "IP address of the client; null on other levels"),
    Kept("quota", "string", "",
         "name of the quota: `producer_byte_rate`, `consumer_byte_rate`, "
         "`request_percentage`, `controller_mutation_rate` or `connection_creation_rate`"),
    Kept("start", "timestamp", "UTC", "start of the interval, inclusive"),
    Kept("seconds", "int", "s", "length of the interval"),
    Kept("used", "double", "bytes, percent-seconds, partitions, connections",
         "total usage, without rejected changes and bytes that a throttled fetch did not return"),
    Kept("rate", "double", "as the quota", "`used` per second, averaged over the interval"),
    Kept("rate_max", "double", "as the quota",
         "the highest rate that the broker measured for this entity; null if it measured on "
         "another level or not at all"),
    Kept("bound", "double", "as the quota",
         "the quota in force for this entity, the highest if it changed; null if there is none, "
         "and for IP addresses"),
    Kept("requests", "double", "", "number of requests, or of connections for an IP address"),
    Kept("errors", "double", "", "number of failed requests, or of rejected connections"),
    Kept("throttled", "double", "", "number of requests or connections that this quota throttled"),
    Kept("throttle_ms", "double", "ms", "total throttle time"),
    Kept("throttle_max_ms", "int", "ms", "longest throttle"),
    *(Kept(f"latency_p{share}_ms", "double", "ms", f"{share}th percentile of the latency")
      for share in PERCENTILES),
    Kept("events", "bigint", "", "number of events, without extrapolation of samples"),
    Kept("dropped", "bigint", "",
         "number of events that the broker could not write in this interval"),
    Kept("coverage", "double", "0 to 1",
         "share of the broker's events that were written in this interval"),
)  # fmt: skip
"""All columns of the usage table, in their order."""
_TABLE: Final = ", ".join(f"{column.name} {column.type}" for column in COLUMNS)
_UTC: Final = pa.timestamp("us", "UTC")


def usage(events: DataFrame, every_s: int) -> DataFrame:
    """The usage table of ``events``, as in `usage_by`."""
    return usage_by(partial(scan_frame, events), every_s)


def usage_by(scan: Scan, every_s: int) -> DataFrame:
    """The usage table of all events of a scan, in intervals aligned to 1970.

    Entities have no row for an interval in which they did nothing. A broker that only dropped
    events in an interval has a row without requests.
    """
    add_up = partial(partial_sums, every_s=every_s)
    return _together(scan(add_up, PARTIAL_SUMS_DDL), every_s)


def _together(parts: DataFrame, every_s: int) -> DataFrame:
    def whole(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return (_final_columns(found, every_s) for found in total_sums(batches))

    key = ("broker", "slice_us")
    return parts.repartition(*key).sortWithinPartitions(*key).mapInArrow(whole, _TABLE)


def _final_columns(found: pa.RecordBatch, every_s: int) -> pa.RecordBatch:
    """Convert sums to the columns of the usage table. Done here because Spark would need another
    pass over all rows.
    """
    ints = {name: found[name].to_numpy() for name in (*SUMS, "written", "dropped")}
    units = np.array([UNITS.get(quota, 1) for quota in QUOTAS])
    quotas = pc.index_in(found["quota"], pa.array(QUOTAS)).to_numpy()
    used = ints["amount"] / units[quotas]
    made = {
        "start": found["start_us"].cast(_UTC),
        "seconds": np.full(len(found), every_s, np.int32),
        "used": used,
        "rate": used / every_s,
        "rate_max": found["measured"],
        "throttle_ms": ints["throttle_ms"].astype(np.float64),
        "throttle_max_ms": found["throttle_max_ms"].cast(pa.int32()),
        "coverage": ints["written"] / (ints["written"] + ints["dropped"]),
        **{
            name: ints[name] / quota_amounts.PER_EVENT
            for name in ("requests", "errors", "throttled")
        },
        **{f"latency_p{share}_ms": pc.divide(found[f"p{share}"], 1000) for share in PERCENTILES},
    }
    return pa.RecordBatch.from_pydict(
        {
            name: made[name] if name in made else found[name]
            for name in (each.name for each in COLUMNS)
        }
    )
