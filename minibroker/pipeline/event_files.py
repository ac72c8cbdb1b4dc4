"""Writes events to Parquet files of the activity table: the work of one task.

Owns an event's place (hour and bucket), the order of a file's rows and their encoding, and the sets
of event sequences as spans, rows of (broker, first, last): which events a table contains, or a step
adds. It must never know the source, or what the table contains already. Invariants: an event's
place depends on the event alone, so two runs put it, and a duplicate of it, into the same folder;
every record is in a file, as events or, with a reason, among the malformed; a task's last row has
the counts and the sequences in its files. The bucket is Spark's own ``pmod(hash(user, client_id),
16)``, and for connection events ``pmod(hash(ip), 16)``. A set of spans contains at least the
sequences added to it, and more only if it would exceed ``SPANS_MAX`` otherwise: two disjoint sets
have no event in common, and overlapping ones must be compared event by event. A broker numbers its
events consecutively, so they are one span.

Workers return finished files, because rows and columns one by one cost several times as much: the
worker writes them itself if the table is on a disk, otherwise Spark does. Memory is that of
``ROWS_MAX`` events or ``RUN_BYTES_MAX``, twice.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, NamedTuple
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from minibroker.lab.activity.arrow_format import COLUMNS, SCHEMA, event_of, parts_of
from minibroker.lab.activity.events import FIELDS, ActivityKind, ActivityType
from minibroker.pipeline.activity_table import freeze_loaded_objects
from minibroker.pipeline.decoding import (
    Batch,
    Value,
    decode,
    malformed_rows,
    values_of,
    why_malformed,
    without_rows,
)
from minibroker.pipeline.errors import BadInput
from minibroker.pipeline.grouping import coded, joined, numbered, starts_of

SPANS_MAX: Final = 50_000
"""Spans of a stored set; above that, gaps are filled, the smallest first."""

NO_SPANS: Final = np.empty((0, 3), np.int64)


def spans_of(brokers: Any, sequences: Any) -> Any:
    """Spans of consecutive sequences; a repeated sequence is in two of them."""
    order = np.lexsort((sequences, brokers))
    brokers, sequences = brokers[order], sequences[order]
    if not len(order):
        return NO_SPANS
    ends = (np.diff(brokers) != 0) | (np.diff(sequences) != 1)
    first, last = np.append(True, ends), np.append(ends, True)
    return np.column_stack([brokers[first], sequences[first], sequences[last]])


def spans_overlap(spans: Any) -> bool:
    """Whether any sequence is in two spans."""
    spans = _sorted(spans)
    same = spans[1:, 0] == spans[:-1, 0]
    return bool((same & (spans[1:, 1] <= spans[:-1, 2])).any())


def merge_spans(spans: Any, most: int = SPANS_MAX) -> Any:
    """Merge spans; fill the smallest gaps if more than ``most`` spans would remain."""
    spans = _sorted(spans)
    if not len(spans):
        return spans
    # By the largest end so far of the broker, because a span may be inside another.
    begins = np.flatnonzero(np.diff(spans[:, 0], prepend=spans[0, 0] - 1))
    for begin, end in zip(begins, [*begins[1:], len(spans)], strict=True):
        np.maximum.accumulate(spans[begin:end, 2], out=spans[begin:end, 2])
    gaps = spans[1:, 1] - spans[:-1, 2] - 1
    gaps[spans[1:, 0] != spans[:-1, 0]] = np.iinfo(np.int64).max
    filled = 0
    if (gaps > 0).sum() >= most:
        filled = int(np.partition(gaps, len(gaps) - most)[len(gaps) - most])
    new = np.flatnonzero(np.append(True, gaps > filled))
    last = np.append(new[1:], len(spans)) - 1
    return np.column_stack([spans[new, 0], spans[new, 1], spans[last, 2]])


def _sorted(spans: Any) -> Any:
    return spans[np.lexsort((spans[:, 1], spans[:, 0]))]


def spans_to_json(spans: Any) -> dict[str, list[int]]:
    """Lists of alternating first and last sequences, by broker."""
    return {
        str(broker): spans[spans[:, 0] == broker, 1:].ravel().tolist()
        for broker in np.unique(spans[:, 0]).tolist()
    }


def spans_from_json(found: Mapping[str, list[int]]) -> Any:
    """The inverse of ``spans_to_json``."""
    parts = []
    for broker, flat in found.items():
        pairs = np.array(flat, np.int64).reshape(-1, 2)
        parts.append(np.insert(pairs, 0, int(broker), axis=1))
    return np.concatenate(parts) if parts else NO_SPANS


# Places ------------------------------------------------------------------------------------------

BUCKETS: Final = 16
"""Buckets of an hour. It can't change during a table's life, so it is no setting."""
HOUR_US: Final = 3_600_000_000
SORTED_BY: Final = ("user", "client_id", "time_us", "sequence", "broker")
"""Order of a file's rows. Equal time and sequence implies different brokers."""
QUARANTINED: Final = "quarantine"
"""The place of malformed events."""
COUNTED: Final = "counted"
"""The place of a task's counts, as JSON."""
ENTITIES_KEPT: Final = 65_536

_MASK: Final = 0xFFFFFFFF
_SEED: Final = 42


def place_of(hour: int, bucket: int) -> str:
    """The name of an hour (since 1970) and a bucket, like 2026-11-20-14.07."""
    day = np.datetime64(hour, "h").astype("datetime64[h]")
    return f"{str(day).replace('T', '-')}.{bucket:02d}"


def folder_of(place: str) -> str:
    """The activity table's folder for a place, ignoring any suffix after its bucket."""
    hour, bucket = place.split(".")[:2]
    return f"hour={hour}/bucket={bucket}"


@lru_cache(ENTITIES_KEPT)
def bucket_of(*columns: str | None) -> int:
    """The bucket of some strings; nulls are skipped."""
    state = _SEED
    for column in columns:
        if column is not None:
            state = _murmur(column.encode(), state)
    return (state - (1 << 32) if state >> 31 else state) % BUCKETS


def _murmur(data: bytes, state: int) -> int:
    """Spark's variant of Murmur3: trailing bytes are mixed one by one, as signed integers."""
    whole = len(data) // 4 * 4
    words = [int.from_bytes(data[at : at + 4], "little") for at in range(0, whole, 4)]
    for word in (*words, *(int.from_bytes(bytes((b,)), "little", signed=True)
                           for b in data[whole:])):  # fmt: skip
        mixed = (word * 0xCC9E2D51) & _MASK
        mixed = ((mixed << 15 | mixed >> 17) & _MASK) * 0x1B873593 & _MASK
        state ^= mixed
        state = ((state << 13 | state >> 19) * 5 + 0xE6546B64) & _MASK
    state ^= len(data)
    state = (state ^ state >> 16) * 0x85EBCA6B & _MASK
    state = (state ^ state >> 13) * 0xC2B2AE35 & _MASK
    return state ^ state >> 16


# Sorting -----------------------------------------------------------------------------------------


class SortedRun(NamedTuple):
    """The events of a run by place."""

    places: dict[str, pa.Table]
    """The events of each place, in the order of its file."""
    spans: Any
    """Rows of (broker, first, last): the sequences of the kept events, unsorted."""


def sort_run(events: pa.Table) -> SortedRun:
    """The events of a run, sorted within each place by ``layout.SORTED_BY``.

    Each column of texts has one dictionary.
    """
    brokers, sequences, times = (
        events[name].to_numpy() for name in ("broker", "sequence", "time_us")
    )
    brokers = brokers.astype(np.int64)
    entity_of, ranks, buckets = _entities(events)
    found, at = np.unique(times // HOUR_US, return_inverse=True)
    places = at * BUCKETS + buckets
    order = np.lexsort((brokers, sequences, times, ranks[entity_of], places))
    spans = spans_of(brokers, sequences)
    if spans_overlap(spans):
        kept, _ = numbered(joined([places, brokers, sequences]))
        order = order[np.isin(order, kept)]
        spans = spans_of(brokers[kept], sequences[kept])
    starts = starts_of(places[order], len(found) * BUCKETS)
    sorted_events = _taken(events, pa.array(order))
    return SortedRun(
        {
            place_of(int(found[place // BUCKETS]), place % BUCKETS): sorted_events[start:end]
            for place, (start, end) in enumerate(pairwise(starts))
            if end > start
        },
        spans,
    )


def _taken(events: pa.Table, order: pa.Array) -> pa.Table:
    """The rows in this order. Many columns contain nothing but nulls, which have no order."""
    columns = [
        pa.nulls(len(order), each.type) if each.null_count == len(each) else each.take(order)
        for each in events.columns
    ]
    return pa.Table.from_arrays(columns, schema=events.schema)


def _entities(events: pa.Table) -> tuple[Any, Any, Any]:
    """(the entity of each row, the sort rank of each entity, the bucket of each row)."""
    (users, user_names), (clients, client_names) = (
        _numbered(events[name]) for name in ("user", "client_id")
    )
    rows, entity_of = numbered(joined([users, clients]))
    names = [(user_names[users[row]], client_names[clients[row]]) for row in rows]
    ranks = np.empty(len(names), np.int64)
    ranks[sorted(range(len(names)), key=lambda at: [(n is not None, n) for n in names[at]])] = (
        np.arange(len(names))
    )
    buckets = np.array([bucket_of(*name) for name in names], np.int64)[entity_of]
    kinds, kind_names = _numbered(events["kind"])
    connection = str(ActivityKind.CONNECTION)
    if connection in kind_names:
        ips, addresses = _numbered(events["ip"])
        by_ip = np.array([bucket_of(ip) for ip in addresses], np.int64)
        of_connections = np.flatnonzero(kinds == kind_names.index(connection))
        buckets[of_connections] = by_ip[ips[of_connections]]
    return entity_of, ranks, buckets


def _numbered(column: pa.ChunkedArray) -> tuple[Any, list[str | None]]:
    """(the number of each row's text, the texts by number, of which the last is a null's)."""
    numbers, texts = coded(column)
    return numbers, [*texts.to_pylist(), None]


# Parquet -----------------------------------------------------------------------------------------

GROUP_ROWS: Final = 1 << 16
"""Rows of a row group."""

DICTIONARY_MAX: Final = 1000
"""Entries of a dictionary that is written although rows may not use all of them."""

_OF_EVENTS: Final[dict[str, Any]] = {
    "row_group_size": GROUP_ROWS,
    "use_dictionary": [name for name, part in COLUMNS.items() if part.type is ActivityType.TEXT],
    # Times and numbers of consecutive events differ little.
    "column_encoding": {
        name: "DELTA_BINARY_PACKED"
        for name, part in COLUMNS.items()
        if part.type in (ActivityType.INT, ActivityType.LONG)
    },
    # By which readers skip files.
    "write_statistics": ["version", "broker", "sequence", "time_us"],
}


def events_file(events: pa.Table) -> bytes:
    """A complete file with these events, in their order."""
    return _file(nested(events, _without_unused), **_OF_EVENTS)


def nested(
    events: pa.Table, text: Callable[[pa.Array], pa.Array] = lambda array: array
) -> pa.Table:
    """The table of events with a struct column for each quota check.

    ``text`` converts the columns of strings, which are dictionary-encoded.
    """
    columns: dict[str, pa.Array] = {}
    for field in FIELDS:
        parts = {part: events[name].combine_chunks() for name, part in parts_of(field)}
        arrays = [
            text(array) if part.type is ActivityType.TEXT else array
            for part, array in parts.items()
        ]
        if field.type is ActivityType.CHECK:
            names, lacking = [part.name for part in parts], arrays[0].is_null()
            columns[field.name] = pa.StructArray.from_arrays(arrays, names=names, mask=lacking)
        else:
            [columns[field.name]] = arrays
    return pa.table(columns)


def _without_unused(texts: pa.DictionaryArray) -> pa.DictionaryArray:
    """Remove texts that no row has, if there are many."""
    if len(texts.dictionary) <= DICTIONARY_MAX:
        return texts
    return texts.cast(pa.string()).dictionary_encode()


def faults_file(faults: pa.Table) -> bytes:
    """A complete file with records that are no events."""
    return _file(faults, write_statistics=False)


def _file(table: pa.Table, **options: Any) -> bytes:
    out = io.BytesIO()
    # Zstandard makes files 4 % smaller, but writing takes a quarter longer.
    pq.write_table(table, out, compression="lz4", store_schema=False, **options)
    return out.getvalue()


# Writing -----------------------------------------------------------------------------------------

OUTPUT_DDL: Final = "place string, file string, content binary"
"""A finished file: its place and number within the task, and either its name or its content."""
_OUTPUT: Final = pa.schema(
    [("place", pa.string()), ("file", pa.string()), ("content", pa.binary())]
)
FOOTER: Final = b"PAR1"
"""The last bytes of every Parquet file; the content in a row omits them."""
ROWS_MAX: Final = 500_000
RUN_BYTES_MAX: Final = 256 << 20
"""Events that are collected, and the size of their records, before files are written."""
FAULTS_MAX: Final = 10_000
FAULTY_BYTES_MAX: Final = 8 << 20
"""Size of the malformed records that are collected before a file is written."""

QUARANTINE: Final = pa.schema(
    [
        ("reason", pa.string()),
        ("source", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("found_ms", pa.int64()),
        ("raw", pa.binary()),
    ]
)
"""The columns of the quarantine: the reason, the source, when it was found, and the raw bytes."""

Where = Callable[[int], tuple[str, int, int]]
"""Maps a record's number to its topic, partition and offset."""


class EventWriter:
    """Files one task's events. Yields rows as in ``OUTPUT_DDL``; unusable after ``finish``.

    With ``into``, an existing folder, files are written to a subfolder for each place.
    """

    def __init__(self, source: str, now_ms: int, into: str | None) -> None:
        freeze_loaded_objects()
        if into is not None and not os.path.isdir(into):
            raise BadInput(
                f"{into} does not exist on this worker: all workers must reach the table under"
                " the same path"
            )
        self._source, self._now_ms, self._into = source, now_ms, into
        self._run: list[tuple[Batch, Where]] = []
        self._rows = self._bytes = 0
        self._faults: list[tuple[Any, ...]] = []
        self._faulty_bytes = 0
        self._records = self._events = self._malformed = self._files = 0
        self._spans = NO_SPANS

    def add(self, values: Sequence[Value], where: Where) -> Iterator[pa.RecordBatch]:
        """Add the values of records; ``where`` locates the malformed ones."""
        for found in decode(values):
            if isinstance(found, Batch):
                rows, size = len(found.events), found.size
                if self._rows + rows > ROWS_MAX or self._bytes + size > RUN_BYTES_MAX:
                    yield from self._file()
                self._run.append((found, where))
                self._records, self._rows = self._records + rows, self._rows + rows
                self._bytes += size
            else:
                self._records += 1
                yield from self.add_fault(found.reason, where(found.number), found.raw)

    def add_damaged(
        self, reason: str, where: tuple[str, int, int], raw: bytes | None
    ) -> Iterator[pa.RecordBatch]:
        """Add a fault in place of unreadable records."""
        self._records += 1
        yield from self.add_fault(reason, where, raw)

    def add_fault(
        self, reason: str, where: tuple[str, int, int], raw: bytes | None
    ) -> Iterator[pa.RecordBatch]:
        """Report that an added record is malformed."""
        self._faults.append((reason, self._source, *where, self._now_ms, raw))
        self._faulty_bytes += len(raw or b"")
        self._malformed += 1
        if len(self._faults) >= FAULTS_MAX or self._faulty_bytes >= FAULTY_BYTES_MAX:
            yield self._quarantine()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Write the remaining files, and yield the counts."""
        yield from self._file()
        if self._faults:
            yield self._quarantine()
        counted = {
            "records": self._records,
            "events": self._events,
            "malformed": self._malformed,
            "spans": spans_to_json(self._spans),
        }
        yield _row(COUNTED, None, json.dumps(counted).encode())

    def _file(self) -> Iterator[pa.RecordBatch]:
        """Write the collected events to files."""
        if not self._run:
            return
        events = pa.Table.from_batches([batch.events for batch, _ in self._run], SCHEMA)
        malformed = malformed_rows(events)
        if len(malformed):
            yield from self._quarantine_rows(events, malformed)
            events = without_rows(events, malformed)
        self._run.clear()
        self._rows = self._bytes = 0
        if not len(events):
            return
        sorted_run = sort_run(events.unify_dictionaries())
        for place, part in sorted_run.places.items():
            yield self._written(place, events_file(part))
            self._events += len(part)
        # Not joined, so that an event in two runs is detected.
        self._spans = np.concatenate([self._spans, sorted_run.spans])

    def _quarantine_rows(self, events: pa.Table, rows: Any) -> Iterator[pa.RecordBatch]:
        ends = np.cumsum([len(batch.events) for batch, _ in self._run])
        for row, which in zip(rows.tolist(), np.searchsorted(ends, rows, "right"), strict=True):
            batch, where = self._run[which]
            number = int(batch.numbers[row - int(ends[which])])  # Counted from its end.
            event = event_of(events.slice(row, 1).to_pylist()[0])
            yield from self.add_fault(
                why_malformed(event), where(number), json.dumps(event).encode()
            )

    def _quarantine(self) -> pa.RecordBatch:
        rows = [dict(zip(QUARANTINE.names, fault, strict=True)) for fault in self._faults]
        table = pa.Table.from_pylist(rows, QUARANTINE)
        self._faults, self._faulty_bytes = [], 0
        return self._written(QUARANTINED, faults_file(table))

    def _written(self, place: str, content: bytes) -> pa.RecordBatch:
        self._files += 1
        place = f"{place}.{self._files}"
        if self._into is None:
            return _row(place, None, content[: -len(FOOTER)])
        # A retried task uses other names; only files that a task reports count.
        folder, file = place_folder(self._into, place), f"{uuid4().hex}.parquet"
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, file), "xb") as out:
            out.write(content)
        return _row(place, file, None)


def place_folder(into: str, place: str) -> str:
    """The folder of a place's files, named as Spark names it."""
    return f"{into}/place={place}"


def _row(place: str, file: str | None, content: bytes | None) -> pa.RecordBatch:
    row = {"place": place, "file": file, "content": content}
    return pa.RecordBatch.from_pylist([row], _OUTPUT)


def write_events(
    source: str, now_ms: int, into: str | None
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A task over rows of (topic, partition, offset, value)."""

    def write_task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        writer = EventWriter(source, now_ms, into)
        for batch in batches:
            yield from writer.add(values_of(batch["value"]), _where(batch))
        yield from writer.finish()

    return write_task


def _where(batch: pa.RecordBatch) -> Where:
    topics, partitions, offsets = (batch[name] for name in ("topic", "partition", "offset"))
    return lambda row: (topics[row].as_py(), partitions[row].as_py(), offsets[row].as_py())
