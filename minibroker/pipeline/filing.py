"""Raw events to files of the activity table: what tasks do, half of it before Spark's shuffle.

Owns the way of events from records of a topic to finished files by hour and bucket; it must never
know sources, or what the table holds already. Invariant: every record is in a file, as an event or,
with a reason, among the malformed; of two events of a step with the same broker and sequence one
is. Events travel through Spark as whole Arrow tables, and leave the workers as finished files,
because rows and columns one by one cost several times as much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import pyarrow as pa

from minibroker.pipeline.columns import parse
from minibroker.pipeline.layout import COUNTED, QUARANTINED, file_bytes, split

PARSED_ROWS: Final = 8_192
"""Records that are read together, if they come in smaller batches."""
TABLE_ROWS: Final = 100_000
"""Events that a task collects before it files them by place."""

PLACED: Final = "place string, content binary"
_PLACED: Final = pa.schema([("place", pa.string()), ("content", pa.binary())])
FOOTER: Final = b"PAR1"
"""The last bytes of every Parquet file."""

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
"""The columns of the quarantine: why, where it came from, when it was found, and what came."""


def file_events(
    source: str, now_ms: int
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A task's first half: raw records (topic, partition, offset, value, damage) to tables of
    events of one place each, written down as bytes.
    """

    def filed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        waiting: list[pa.Table] = []
        records = 0
        for batch in _together(batches):
            records += batch.num_rows
            table, faults = _parse(batch)
            if faults:
                yield _placed(QUARANTINED, _quarantine(batch, faults, source, now_ms))
            waiting.append(table)
            if sum(table.num_rows for table in waiting) >= TABLE_ROWS:
                yield from _by_place(waiting)
                waiting = []
        yield from _by_place(waiting)
        yield _row(COUNTED, str(records).encode())

    return filed


def _together(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(batch.num_rows for batch in waiting) >= PARSED_ROWS:
            yield pa.concat_batches(waiting)
            waiting = []
    if waiting:
        yield pa.concat_batches(waiting)


def _parse(batch: pa.RecordBatch) -> tuple[pa.Table, list[tuple[int, str]]]:
    damaged = batch["damage"]
    if damaged.null_count == len(damaged):
        return parse(batch["value"])
    faults = [(row, text) for row, text in enumerate(damaged.to_pylist()) if text is not None]
    rows = [row for row in range(len(damaged)) if not damaged[row].is_valid]
    parsed = parse(batch["value"].take(pa.array(rows, pa.int64())))
    return parsed.table, faults + [(rows[row], text) for row, text in parsed.faults]


def _quarantine(
    batch: pa.RecordBatch, faults: list[tuple[int, str]], source: str, now_ms: int
) -> pa.Table:
    part = batch.take(pa.array([row for row, _ in faults], pa.int64()))
    count = len(faults)
    columns = [
        pa.array([reason for _, reason in faults]),
        pa.repeat(source, count),
        part["topic"],
        part["partition"],
        part["offset"],
        pa.repeat(pa.scalar(now_ms, pa.int64()), count),
        part["value"],
    ]
    return pa.Table.from_arrays(columns, schema=QUARANTINE)


def _by_place(tables: list[pa.Table]) -> Iterator[pa.RecordBatch]:
    if any(table.num_rows for table in tables):
        for place, table in split(pa.concat_tables(tables).combine_chunks()):
            yield _placed(place, table)


def _placed(place: str, table: pa.Table) -> pa.RecordBatch:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return _row(place, sink.getvalue().to_pybytes())


def _row(place: str, content: bytes) -> pa.RecordBatch:
    columns = [pa.array([place]), pa.array([content], pa.binary())]
    return pa.RecordBatch.from_arrays(columns, schema=_PLACED)


def pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A task's second half: all tables of a place to the bytes of one file, but the last four."""
    places: dict[str, list[pa.Table]] = {}
    counted: list[int] = []
    for batch in batches:
        for place, content in zip(batch["place"], batch["content"], strict=True):
            if place.as_py() == COUNTED:
                counted.append(int(content.as_py()))
            else:
                table = pa.ipc.open_stream(content.as_buffer()).read_all()
                places.setdefault(place.as_py(), []).append(table)
    for place, tables in places.items():
        content = file_bytes(place, pa.concat_tables(tables))
        yield _row(place, content[: -len(FOOTER)])
    if counted:
        yield _row(COUNTED, str(sum(counted)).encode())
