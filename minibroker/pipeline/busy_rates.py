"""Rates of entities in their busy seconds, as a broker would have measured them.

Owns the sums of each second, the averages over a broker's quota window, and their percentiles; it
must never know Spark, or the rules that derive a quota from a rate. Invariant: the figures depend
neither on the order of events nor on how they are partitioned, because only integers are added and
all seconds of an entity at a broker are averaged in one place. Percentiles are exact. Kafka's
counterpart is ``Rate``, which forgets all seconds but the last.

First, tasks add up chunks of events by entity and second. Each entity at a broker belongs to one of
a number of parts, so that a part has about as many events however many there are in total; then
each part is averaged by itself. Time and memory grow with the events only.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from minibroker.pipeline.grouping import (
    Floats,
    Ints,
    added,
    chunks,
    coded,
    combined,
    interpolated,
    joined,
    numbered,
    packed,
    starts_of,
    unpacked,
)
from minibroker.pipeline.quota_amounts import (
    IP,
    LEVELS,
    NAMES,
    PER_EVENT,
    QUOTAS,
    UNITS,
    Events,
    Names,
)

EVENTS_PER_PART: Final = 1_000_000
PARTS_MIN: Final = 64
"""Enough to keep the cores busy although parts differ in size."""
PARTS_MAX: Final = 1024
"""Tables of more than a billion events have larger parts."""

SERIES: Final = pa.schema(
    [
        ("broker", pa.int32()),
        ("quota", pa.int64()),
        *((name, pa.string()) for name in NAMES),
        ("seconds", pa.list_(pa.int64())),
        ("amounts", pa.list_(pa.int64())),
        ("throttled", pa.list_(pa.int64())),
    ]
)
"""What an entity used of a quota, given by its index in ``QUOTAS``, in seconds since 1970 that
ascend. ``throttled`` is in ``PER_EVENT``. The names that the level doesn't have are null.
"""
PARTS_DDL: Final = "part int, size int, content binary"
"""The Spark schema of serialized series."""

RATES: Final = pa.schema(
    [
        ("broker", pa.int32()),
        ("quota", pa.string()),
        *((name, pa.string()) for name in NAMES),
        ("busy_s", pa.int64()),
        ("percentiles", pa.list_(pa.float64())),
        ("most", pa.float64()),
        ("throttled", pa.float64()),
    ]
)
"""By entity and broker: busy seconds, the rates at some percentiles, the maximum, and the number of
throttled requests.
"""
_SECOND_US: Final = 1_000_000
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)
_HALF_BITS: Final = np.uint64(32)
_NO_ENTITY: Final = -1

Windows = Mapping[str, tuple[int, int]]
"""By quota: minimum and maximum length of the broker's averaging window, in seconds."""


def part_count(events: int) -> int:
    """The number of parts for so many events."""
    return min(PARTS_MAX, max(PARTS_MIN, -(-events // EVENTS_PER_PART)))


def serialized_series(
    tables: Iterable[pa.Table], level: str, parts: int
) -> Iterator[pa.RecordBatch]:
    """The series of each chunk of events by part; columns as in ``PARTS_DDL``."""
    for table in chunks(tables):
        series = series_of(Events(table), level)
        if len(series):
            yield _by_part(series, parts)


def rates_of_parts(
    batches: Iterable[pa.RecordBatch], windows: Windows, percentiles: Sequence[float]
) -> Iterator[pa.RecordBatch]:
    """Columns as in ``RATES``, from all series, sorted by part."""
    for _, rows in itertools.groupby(unpacked(batches, SERIES), itemgetter(0)):
        series = pa.Table.from_batches(series for _, series in rows)
        yield rates_of(series, windows, percentiles)


def rates_of(series: pa.Table, windows: Windows, percentiles: Sequence[float]) -> pa.RecordBatch:
    """Columns as in ``RATES``, from at least one series and all of its entities."""
    seconds = busy_seconds(series)
    rates = average(seconds, windows)
    # NumPy sorts complex numbers by their real part first.
    heads, ascending = seconds.heads, np.sort(seconds.entities + 1j * rates).imag
    starts = starts_of(seconds.entities, len(heads))
    quotas = seconds.quotas
    unit = np.array([UNITS.get(quota, 1) for quota in QUOTAS])[quotas]
    busy_s = np.diff(starts)
    at = [
        interpolated(starts[:-1], busy_s, each / 100, ascending.__getitem__) / unit
        for each in percentiles
    ]
    offsets = pa.array(np.arange(0, len(heads) * len(at) + 1, len(at), dtype=np.int32))
    columns = [
        series["broker"].to_numpy()[heads],
        pa.array(QUOTAS).take(pa.array(quotas)),
        *(combined(series[name].take(heads)) for name in NAMES),
        busy_s,
        pa.ListArray.from_arrays(offsets, pa.array(np.stack(at, axis=1).ravel())),
        ascending[starts[1:] - 1] / unit,
        added(seconds.entities, len(heads), seconds.throttled) / PER_EVENT,
    ]
    found = pa.RecordBatch.from_arrays([pa.array(each) for each in columns], schema=RATES)
    return found.filter(pc.greater(found["most"], 0))


# Sums of each second ---------------------------------------------------------------------------


class _Entities(NamedTuple):
    """The entities of a level at their brokers."""

    names: Sequence[pa.Array]
    """The columns ``NAMES`` of each entity."""
    brokers: Ints
    of_events: Ints
    """The entity of each event, or ``_NO_ENTITY``."""


def series_of(events: Events, level: str) -> pa.Table:
    """The series of all entities of a level of users and clients, and of all addresses."""
    names, weights = events.names(), events.for_all(PER_EVENT)
    levels = [_entities(names, events.brokers, LEVELS[each]) for each in (level, IP)]
    found = []
    for counted in events.counted():
        where = counted.where & events.seen
        amounts = events.for_all(counted.amount)
        throttled = np.where(counted.throttled_ms > 0, weights, 0)
        for entities in levels:
            rows = np.flatnonzero(where & (entities.of_events >= 0))
            times_s = events.times_us[rows] // _SECOND_US
            used = (entities.of_events[rows], times_s, amounts[rows], throttled[rows])
            found.append(_series(entities, counted.quota, _added_up(_Seconds(*used))))
    return pa.Table.from_batches(found, schema=SERIES)


def _entities(names: Mapping[str, Names], brokers: Ints, wanted: Collection[str]) -> _Entities:
    """The entities that have the names ``wanted``, which are at least one."""
    rows = np.flatnonzero(np.logical_and.reduce([names[name].there for name in wanted]))
    of_events = np.full(len(brokers), _NO_ENTITY, np.int64)
    first, of_events[rows] = numbered(
        joined([brokers[rows], *(names[name].numbers[rows] for name in wanted)])
    )
    heads = rows[first]
    columns = [
        names[name].texts.take(pa.array(names[name].numbers[heads]))
        if name in wanted
        else pa.nulls(len(heads), pa.string())
        for name in NAMES
    ]
    return _Entities(columns, brokers[heads], of_events)


class _Seconds(NamedTuple):
    """What entities used, and when."""

    entities: Ints
    seconds: Ints
    amounts: Ints
    throttled: Ints


def _added_up(used: _Seconds) -> _Seconds:
    """One row for each entity and second with usage, in this order."""
    if not len(used.entities):
        return used
    moments = joined([used.entities, used.seconds])
    order = np.argsort(moments)
    starts = np.flatnonzero(np.diff(moments[order], prepend=-1))
    entities, seconds = used.entities[order], used.seconds[order]
    amounts, throttled = (np.add.reduceat(each[order], starts) for each in used[2:])
    kept = (amounts != 0) | (throttled != 0)
    return _Seconds(entities[starts][kept], seconds[starts][kept], amounts[kept], throttled[kept])


def _series(entities: _Entities, quota: str, used: _Seconds) -> pa.RecordBatch:
    starts = np.flatnonzero(np.diff(used.entities, prepend=_NO_ENTITY))
    of_series = used.entities[starts]
    offsets = pa.array(np.append(starts, len(used.seconds)).astype(np.int32))
    columns = [
        pa.array(entities.brokers[of_series].astype(np.int32)),
        pa.array(np.full(len(starts), QUOTAS.index(quota))),
        *(column.take(pa.array(of_series)) for column in entities.names),
        *(pa.ListArray.from_arrays(offsets, pa.array(each)) for each in used[1:]),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SERIES)


# Exchange of series ----------------------------------------------------------------------------


def _by_part(series: pa.Table, parts: int) -> pa.RecordBatch:
    of_series = _parts(series, parts)
    order = np.argsort(of_series, kind="stable")
    starts = starts_of(of_series[order], parts)
    [whole] = series.take(order).combine_chunks().to_batches()
    filled = np.flatnonzero(np.diff(starts))
    return packed({"part": filled.astype(np.int32)}, whole, starts[filled])


def _parts(series: pa.Table, parts: int) -> Ints:
    """The part of each series: a hash of the entity and its broker, the same in every process."""
    hashed = series["broker"].to_numpy().astype(np.uint64)
    for name in NAMES:
        numbers, names = coded(series[name])
        texts = [zlib.crc32(text.encode()) for text in names.to_pylist()]
        hashed = hashed * _MIX ^ np.array([*texts, 0], np.uint64)[numbers]
    found: Ints = ((hashed * _MIX >> _HALF_BITS) % np.uint64(parts)).astype(np.int64)
    return found


# Averages --------------------------------------------------------------------------------------


class BusySeconds(NamedTuple):
    """The seconds in which an entity used a quota at a broker, by entity and time."""

    heads: Ints
    """The index of one series of each entity and quota."""
    quotas: Ints
    """The index in ``QUOTAS``, of each entity."""
    entities: Ints
    """The index in ``heads``, of each second."""
    seconds: Ints
    amounts: Ints
    throttled: Ints


def busy_seconds(series: pa.Table) -> BusySeconds:
    """Merge the series of each entity and quota."""
    quotas, brokers = series["quota"].to_numpy(), series["broker"].to_numpy().astype(np.int64)
    heads, of_series = numbered(
        joined([*(coded(series[name])[0] for name in NAMES), quotas, brokers])
    )
    lists = [combined(series[name]) for name in ("seconds", "amounts", "throttled")]
    seconds, amounts, throttled = (each.flatten().to_numpy() for each in lists)
    entities = np.repeat(of_series, lists[0].value_lengths().to_numpy())
    merged = _added_up(_Seconds(entities, seconds, amounts, throttled))
    return BusySeconds(heads, quotas[heads], *merged)


def average(seconds: BusySeconds, windows: Windows) -> Floats:
    """The rate in each busy second: the higher of the averages over the two windows."""
    # Seconds of all entities in one order, far enough apart that no window spans two of them.
    first_s = int(seconds.seconds.min(initial=0))
    span_s = int(seconds.seconds.max(initial=0)) - first_s + max(map(max, windows.values())) + 1
    moments = seconds.entities * span_s + (seconds.seconds - first_s)
    sums = np.append(0, np.cumsum(seconds.amounts))
    rates = np.zeros(len(moments))
    for longest in (False, True):
        lengths_s = np.array([windows[quota][longest] for quota in QUOTAS])[seconds.quotas]
        of_rows = lengths_s[seconds.entities]
        before = np.searchsorted(moments, moments - of_rows, "right")
        rates = np.maximum(rates, (sums[1:] - sums[before]) / of_rows)
    return rates
