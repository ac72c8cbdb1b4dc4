"""Writes raw events to files of the activity table: the work of one task.

Owns the conversion of a topic's records to files by hour and bucket; it must never know the source,
or what the table contains already. Invariant: every record is in a file, as an event or, with a
reason, among the malformed; a task's last row has the counts and the sequences in its files.
Workers return finished files, because rows and columns one by one cost several times as much: the
worker writes them itself if the table is on a disk, otherwise Spark does. Memory is that of one
``EventRun``, which the process's next task reuses.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final
from uuid import uuid4

import numpy as np
import pyarrow as pa

from minibroker.pipeline.arranging import arrange
from minibroker.pipeline.columns import EventRun, Raw, bytes_in, bytes_of, pieces
from minibroker.pipeline.encoding.footer import MAGIC
from minibroker.pipeline.errors import BadInput
from minibroker.pipeline.layout import COUNTED, QUARANTINED
from minibroker.pipeline.parquet import Encoder, file_bytes
from minibroker.pipeline.sequence_spans import NO_SPANS, spans_to_json
from minibroker.pipeline.simd_words import SLACK
from minibroker.pipeline.workers import settle_in

PLACED: Final = "place string, file string, content binary"
"""A finished file: its place and number within the task, and either its name or its content."""
_PLACED: Final = pa.schema(
    [("place", pa.string()), ("file", pa.string()), ("content", pa.binary())]
)
FOOTER: Final = MAGIC
"""The last bytes of every Parquet file; the content in a row omits them."""
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

_spare: list[tuple[EventRun, Encoder]] = []


class Filer:
    """Files one task's events. Yields rows as in ``PLACED``; unusable after ``end``.

    With ``into``, an existing folder, files are written to a subfolder for each place.
    """

    def __init__(self, source: str, now_ms: int, into: str | None) -> None:
        settle_in()
        if into is not None and not os.path.isdir(into):
            raise BadInput(
                f"{into} does not exist on this worker: all workers must reach the table under"
                " the same path"
            )
        self._source, self._now_ms, self._into = source, now_ms, into
        self._run, self._encoder = _spare.pop() if _spare else (EventRun(), Encoder())
        self._faults: list[tuple[Any, ...]] = []
        self._faulty_bytes = 0
        self._records = self._events = self._malformed = self._files = 0
        self._spans = NO_SPANS

    def take(self, raw: Raw, where: Where) -> Iterator[pa.RecordBatch]:
        """Add records; ``where`` locates the malformed ones."""
        for part, first in pieces(raw):
            size = bytes_in(part)
            if not self._run.has_room(len(part.sizes), size):
                yield from self._file(size)
            self._records += len(part.sizes)
            for number, reason in self._run.read(part):
                yield from self.fault(reason, where(first + number), bytes_of(part, number))

    def damaged(
        self, reason: str, where: tuple[str, int, int], raw: bytes | None
    ) -> Iterator[pa.RecordBatch]:
        """Add a fault in place of unreadable records."""
        self._records += 1
        yield from self.fault(reason, where, raw)

    def fault(
        self, reason: str, where: tuple[str, int, int], raw: bytes | None
    ) -> Iterator[pa.RecordBatch]:
        """Report that an added record is malformed."""
        self._faults.append((reason, self._source, *where, self._now_ms, raw))
        self._faulty_bytes += len(raw or b"")
        self._malformed += 1
        if len(self._faults) >= FAULTS_MAX or self._faulty_bytes >= FAULTY_BYTES_MAX:
            yield self._quarantine()

    def end(self) -> Iterator[pa.RecordBatch]:
        """Write the remaining files, and yield the counts."""
        if self._faults:
            yield self._quarantine()
        yield from self._file(0)
        _spare.append((self._run, self._encoder))
        counted = {
            "records": self._records,
            "events": self._events,
            "malformed": self._malformed,
            "held": spans_to_json(self._spans),
        }
        yield _row(COUNTED, None, json.dumps(counted).encode())

    def _file(self, size: int) -> Iterator[pa.RecordBatch]:
        """Write the collected events to files, and make room for strings of ``size`` bytes."""
        if self._run.count:
            arranged = arrange(self._run)
            for place, rows in arranged.places.items():
                yield self._written(place, self._encoder.file(self._run, rows))
                self._events += len(rows)
            # Not joined, so that an event in two runs is detected.
            self._spans = np.concatenate([self._spans, arranged.spans])
        self._run.clear(size)

    def _quarantine(self) -> pa.RecordBatch:
        columns = [
            pa.array(values, field.type)
            for values, field in zip(zip(*self._faults, strict=True), QUARANTINE, strict=True)
        ]
        self._faults, self._faulty_bytes = [], 0
        table = pa.Table.from_arrays(columns, schema=QUARANTINE)
        return self._written(QUARANTINED, file_bytes(table))

    def _written(self, place: str, content: bytes) -> pa.RecordBatch:
        self._files += 1
        place = f"{place}.{self._files}"
        if self._into is None:
            return _row(place, None, content[: -len(FOOTER)])
        # A retried task uses other names; only files that a task reports count.
        folder, file = folder_aside(self._into, place), f"{uuid4().hex}.parquet"
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, file), "xb") as out:
            out.write(content)
        return _row(place, file, None)


def folder_aside(into: str, place: str) -> str:
    """The folder of a place's files, named as Spark names it."""
    return f"{into}/place={place}"


def _row(place: str, file: str | None, content: bytes | None) -> pa.RecordBatch:
    values = zip((place, file, content), _PLACED.types, strict=True)
    columns = [pa.array([value], kind) for value, kind in values]
    return pa.RecordBatch.from_arrays(columns, schema=_PLACED)


def file_events(
    source: str, now_ms: int, into: str | None
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A task over rows of (topic, partition, offset, value)."""

    def filed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        filer = Filer(source, now_ms, into)
        for batch in batches:
            yield from filer.take(raw_of(batch["value"]), _where(batch))
        yield from filer.end()

    return filed


def _where(batch: pa.RecordBatch) -> Where:
    topics, partitions, offsets = (batch[name] for name in ("topic", "partition", "offset"))
    return lambda row: (topics[row].as_py(), partitions[row].as_py(), offsets[row].as_py())


def raw_of(values: pa.Array) -> Raw:
    """Convert an array of binaries to bytes with readable slack at the end."""
    ends = np.frombuffer(values.buffers()[1], np.int32, len(values) + 1, values.offset * 4)
    ends = ends.astype(np.int64)
    sizes = np.diff(ends)
    if values.null_count:
        sizes[values.is_null().to_numpy(zero_copy_only=False)] = -1
    content = values.buffers()[2] or b""
    data = np.empty(int(ends[-1] - ends[0]) + SLACK, np.uint8)
    data[:-SLACK] = np.frombuffer(content, np.uint8)[ends[0] : ends[-1]]
    return Raw(data, ends[:-1] - ends[0], sizes)
