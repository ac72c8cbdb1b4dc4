"""Writes events to files of the activity table: the work of one task.

Owns the conversion of a topic's records to files by hour and bucket; it must never know the source,
or what the table contains already. Invariant: every record is in a file, as events or, with a
reason, among the malformed; a task's last row has the counts and the sequences in its files.
Workers return finished files, because rows and columns one by one cost several times as much: the
worker writes them itself if the table is on a disk, otherwise Spark does. Memory is that of
``ROWS_MAX`` events or ``RUN_BYTES_MAX``, twice.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final
from uuid import uuid4

import numpy as np
import pyarrow as pa

from minibroker.lab.activity.arrow_format import SCHEMA, event_of
from minibroker.pipeline.decoding import (
    Batch,
    Value,
    decode,
    values_of,
    without_rows,
)
from minibroker.pipeline.errors import BadInput
from minibroker.pipeline.events import malformed_rows, why_malformed
from minibroker.pipeline.layout import COUNTED, QUARANTINED
from minibroker.pipeline.parquet import events_file, faults_file
from minibroker.pipeline.run_sorting import sort_run
from minibroker.pipeline.scan import freeze_loaded_objects
from minibroker.pipeline.sequence_spans import NO_SPANS, spans_to_json

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
        columns = [
            pa.array(values, field.type)
            for values, field in zip(zip(*self._faults, strict=True), QUARANTINE, strict=True)
        ]
        self._faults, self._faulty_bytes = [], 0
        table = pa.Table.from_arrays(columns, schema=QUARANTINE)
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
    values = zip((place, file, content), _OUTPUT.types, strict=True)
    columns = [pa.array([value], kind) for value, kind in values]
    return pa.RecordBatch.from_arrays(columns, schema=_OUTPUT)


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
