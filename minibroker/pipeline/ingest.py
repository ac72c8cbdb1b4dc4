"""Sources of raw events, read step by step into a table: a data directory or a live broker.

Owns the reading of segment files (complete batches, in pieces of a bounded size), the size of a
step and the progress in its source; it must never know what a step does with the records.
Invariant: a step's progress and its output are committed together, so a killed run resumes after
its last complete step; a piece starts and ends at a batch boundary, so pieces can be read anywhere
and in any order. A batch that is still being written is left for the next run, and a damaged one is
reported as one fault. A data directory's progress is offsets in the table's last commit; a broker's
is Spark's checkpoint, and the commit stores its last batch.
"""

from __future__ import annotations

import json
import mmap
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, pairwise, zip_longest
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from minibroker.broker.log.checkpoint import read_topic_id
from minibroker.broker.log.paths import LOG, offset_file, offsets_of, parse_directory
from minibroker.broker.settings import ACTIVITY_ENABLE
from minibroker.lab.activity.events import TOPIC
from minibroker.pipeline.cluster_access import ClusterAccess, ReachableTopic
from minibroker.pipeline.errors import BadInput, PipelineError
from minibroker.pipeline.event_files import OUTPUT_DDL, EventWriter, Where
from minibroker.pipeline.session import COMMITTED, OFFSETS, connector_missing
from minibroker.pipeline.table import Counts, Table
from minibroker_protocol.errors import DecodeError
from minibroker_protocol.records import (
    BatchHeader,
    iter_batches,
    iter_records,
    parse_batch_header,
    verify_crc,
)
from minibroker_protocol.types import Uuid, uuid_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

# Segment files -----------------------------------------------------------------------------------

PIECE_BYTES: Final = 16 << 20
"""Read into memory at once; a larger batch is a piece of its own."""
RAW_MAX: Final = 1024
"""Bytes kept of a damaged batch."""


class SegmentBatch(NamedTuple):
    """The records of a batch."""

    values: list[bytes | None]
    offsets: list[int]


class Damaged(NamedTuple):
    """A batch that can't be read."""

    offset: int
    data: bytes
    """At most ``RAW_MAX`` bytes of it."""
    reason: str


class SegmentPiece(NamedTuple):
    """Consecutive batches of one file."""

    path: str
    topic: str
    partition: int
    start: int
    end: int
    """Positions in the file."""
    next_offset: int
    """Where to continue after it."""

    @property
    def size(self) -> int:
        return self.end - self.start


def partitions(data_dir: str, topic: str = TOPIC) -> dict[int, str]:
    """The topic's partitions and their folders. Raises BadInput if there are none."""
    try:
        names = sorted(os.listdir(data_dir))
    except OSError as error:
        raise BadInput(f"{data_dir} cannot be read: {error.strerror}") from error
    parsed = {name: parse_directory(name) for name in names}
    found = {at[1]: os.path.join(data_dir, name) for name, at in parsed.items()
             if at is not None and at[0] == topic}  # fmt: skip
    if not found:
        raise BadInput(
            f"{data_dir} has no topic {topic}: check that it is a broker's data directory and that"
            f" the broker has {ACTIVITY_ENABLE.name}=true"
        )
    return found


def topic_id_of(data_dir: str, topic: str = TOPIC) -> Uuid | None:
    """The id of the topic in the data directory; None if it is unknown."""
    return next(map(read_topic_id, partitions(data_dir, topic).values()))


def pieces(
    data_dir: str,
    progress: Mapping[str, int],
    *,
    topic: str = TOPIC,
    piece_bytes: int = PIECE_BYTES,
) -> Iterator[SegmentPiece]:
    """Pieces to read, starting at the offsets in ``progress``.

    Partitions alternate, because they grow in parallel: pieces read together are of the same hours.
    """
    each = [
        _of_partition(number, folder, progress.get(str(number), 0), topic, piece_bytes)
        for number, folder in partitions(data_dir, topic).items()
    ]
    for turn in zip_longest(*each):
        yield from (piece for piece in turn if piece is not None)


def _of_partition(
    partition: int, folder: str, offset: int, topic: str, piece_bytes: int
) -> Iterator[SegmentPiece]:
    bases = offsets_of(folder, LOG)
    if bases and offset > bases[-1] and offset > _log_end(folder, bases):
        offset = 0  # The log was replaced; duplicates are recognized by their keys.
    for base, following in pairwise([*bases, None]):
        assert base is not None
        if following is None or following > offset:
            path = offset_file(folder, base, LOG)
            yield from _pieces(path, (topic, partition), offset, following, piece_bytes)


def _log_end(folder: str, bases: list[int]) -> int:
    with _mapped(offset_file(folder, bases[-1], LOG)) as data:
        end = bases[-1]
        for _, header in _whole(data, 0):
            end = header.next_offset
        return end


def _pieces(
    path: str, place: tuple[str, int], offset: int, following: int | None, piece_bytes: int
) -> Iterator[SegmentPiece]:
    with _mapped(path) as data:
        start, end, next_offset = -1, 0, offset
        for position, header in _whole(data, 0):
            if header.last_offset < offset:
                continue
            if start < 0:
                start = position
            elif position + header.size - start > piece_bytes:
                yield SegmentPiece(path, *place, start, end, next_offset)
                start = position
            end, next_offset = position + header.size, header.next_offset
        if following is not None and end < len(data):
            # A sealed segment contains only batches: the reader reports what the rest is.
            start, end, next_offset = max(start, 0), len(data), following
        if start >= 0:
            yield SegmentPiece(path, *place, start, end, next_offset)


def _whole(data: Any, position: int) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of each batch, up to the first incomplete or invalid one."""
    view = memoryview(data)
    try:
        for at, header in iter_batches(view[position:]):
            yield position + at, header
    except DecodeError:
        return
    finally:
        view.release()


class _mapped:  # noqa: N801 - a context manager, used as `open` is
    """A memory-mapped file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._map: mmap.mmap | None = None

    def __enter__(self) -> mmap.mmap | bytes:
        with open(self._path, "rb") as file:
            if not os.fstat(file.fileno()).st_size:
                return b""
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return self._map

    def __exit__(self, *_: object) -> None:
        if self._map is not None:
            self._map.close()


def read(piece: SegmentPiece) -> Iterator[SegmentBatch | Damaged]:
    """Read the batches of a piece."""
    data = _content(piece)
    position, offset = 0, -1
    while position < len(data):
        try:
            header = parse_batch_header(data, position)
            if header.size > len(data) - position:
                raise DecodeError(f"a batch of {header.size} bytes is truncated", position)
        except DecodeError as error:
            yield _damaged(piece, position, offset, data[position:], str(error))
            return
        batch = data[position : position + header.size]
        try:
            if not header.is_control:
                yield _batch(batch)
        except DecodeError as error:
            yield _damaged(piece, position, header.base_offset, batch, str(error))
        position += header.size
        offset = header.next_offset


def _content(piece: SegmentPiece) -> memoryview:
    try:
        with open(piece.path, "rb") as file:
            file.seek(piece.start)
            return memoryview(file.read(piece.size))
    except FileNotFoundError as error:
        why = (
            "was removed by retention while it was read: run this again"
            if os.path.isdir(os.path.dirname(piece.path))
            else "does not exist on this worker: all workers must reach it under the same path"
        )
        raise BadInput(f"{piece.path} {why}") from error


def _batch(batch: memoryview) -> SegmentBatch:
    if not verify_crc(batch):
        raise DecodeError("its CRC is wrong", 0)
    records = list(iter_records(batch))
    return SegmentBatch([record.value for record in records], [record.offset for record in records])


def _damaged(
    piece: SegmentPiece, position: int, offset: int, data: memoryview, reason: str
) -> Damaged:
    where = f"batch at byte {piece.start + position} of {piece.path}: {reason}"
    return Damaged(offset, bytes(data[:RAW_MAX]), where)


# Sources -----------------------------------------------------------------------------------------

TASK_BYTES: Final = 512 << 20
"""Segment bytes read by a task. A step has a task for each core, and is repeated if killed."""
LEAST_BYTES: Final = 8 << 20
"""Minimum size of a task, if there are several."""
STEP_RECORDS: Final = 100_000
"""Records of a live broker in a step, for the same reason. In Arrow's format that is more than the
whole topic, because a record has up to 1,000 events.
"""
TRIGGER: Final = "10 seconds"
CHECKPOINTS: Final = "_checkpoints"
FILED: Final = "minibroker-filed"

OnStep = Callable[[Counts], None]
"""Called with the counts after each step."""


def now_ms() -> int:
    """Wall time."""
    return time.time_ns() // 1_000_000


class EventFilesSource(DataSource):
    """A data directory's events, filed by place in parallel while they are read.

    Options: ``tasks``, the pieces of each task as JSON; ``found_ms``, the time for the quarantine;
    ``into``, the folder for the files, or empty if Spark writes them.
    """

    @classmethod
    def name(cls) -> str:
        return FILED

    def schema(self) -> str:
        return OUTPUT_DDL

    def reader(self, schema: object) -> EventFilesReader:  # noqa: ARG002
        return EventFilesReader(dict(self.options))


class EventFilesReader(DataSourceReader):
    """One read of a data directory's events."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._source, self._found_ms = options["path"], int(options["found_ms"])
        self._tasks, self._into = json.loads(options["tasks"]), options["into"] or None

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(task) for task in self._tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        writer = EventWriter(self._source, self._found_ms, self._into)
        for piece in (SegmentPiece(*values) for values in partition.value):
            for batch in read(piece):
                if isinstance(batch, Damaged):
                    place = piece.topic, piece.partition, batch.offset
                    yield from writer.add_damaged(batch.reason, place, batch.data)
                else:
                    yield from writer.add(batch.values, _where(piece, batch.offsets))
        yield from writer.finish()


def _where(piece: SegmentPiece, offsets: list[int]) -> Where:
    return lambda number: (piece.topic, piece.partition, offsets[number])


def ingest_directory(table: Table, data_dir: str, on_step: OnStep) -> Counts:
    """Ingest the records of a data directory that were not read before."""
    table.spark.dataSource.register(EventFilesSource)
    data_dir = os.path.abspath(data_dir)  # Workers have other working directories.
    topic = topic_id_of(data_dir)
    # Offsets are valid for one topic id only; a wiped broker has another.
    source = f"directory {data_dir}" + ("" if topic is None else f", topic {uuid_text(topic)}")
    read: dict[str, int] = dict(table.progress.get(source, {}))
    total = Counts()
    tasks = table.spark.sparkContext.defaultParallelism
    for tasks_pieces in steps(pieces(data_dir, read), tasks):
        options = {
            "tasks": json.dumps(tasks_pieces),
            "found_ms": str(now_ms()),
            "into": table.make_output_folder() or "",
        }
        output = table.spark.read.format(FILED).options(**options).load(data_dir)
        for piece in chain.from_iterable(tasks_pieces):
            read[str(piece.partition)] = piece.next_offset
        counts = table.commit_output(output, {source: dict(read)})
        total += counts
        on_step(counts)
    return total


def steps(found: Iterable[SegmentPiece], tasks: int) -> Iterator[list[list[SegmentPiece]]]:
    """Group pieces into steps, and each step into tasks of about the same size."""
    step: list[SegmentPiece] = []
    size = 0
    for piece in found:
        if step and size + piece.size > tasks * TASK_BYTES:
            yield _distributed(step, size, tasks)
            step, size = [], 0
        step.append(piece)
        size += piece.size
    if step:
        yield _distributed(step, size, tasks)


def _distributed(step: list[SegmentPiece], size: int, tasks: int) -> list[list[SegmentPiece]]:
    """Distribute a step's pieces over tasks; a small step has few, as each task creates files."""
    tasks = min(tasks, max(size // LEAST_BYTES, 1))
    shares: list[list[SegmentPiece]] = [[] for _ in range(tasks)]
    before = 0
    for piece in step:
        shares[(before + piece.size // 2) * tasks // size].append(piece)
        before += piece.size
    return [share for share in shares if share]


def skip_deleted(table: Table, broker: ClusterAccess, topic: ReachableTopic) -> int:
    """Count the records that the broker deleted before they were read.

    Spark would request them forever, so its checkpoint is deleted if there are any: it starts from
    the beginning again, and duplicates are recognized by their keys.
    """
    place = _place(broker, topic)
    done = [int(name) for name in table.files.names(f"{place}/{COMMITTED}") if name.isdigit()]
    if not done:
        return 0
    # Spark's file: its version, its settings, and a line for each source.
    offsets = table.files.read(f"{place}/{OFFSETS}/{max(done)}").splitlines()[-1]
    read: dict[str, int] = json.loads(offsets)[TOPIC]
    deleted = sum(
        max(start - read.get(str(partition), start), 0) for partition, start in topic.starts.items()
    )
    if deleted:
        table.files.delete(place)
    return deleted


def _place(broker: ClusterAccess, topic: ReachableTopic) -> str:
    """The checkpoint of a topic. It includes the topic id, because Spark doesn't notice that a
    topic was re-created.
    """
    return f"{CHECKPOINTS}/{broker.bootstrap.replace(':', '-').replace(',', '_')}-{topic.id}"


def ingest_broker(
    table: Table, broker: ClusterAccess, topic: ReachableTopic, on_step: OnStep, *, follow: bool
) -> StreamingQuery:
    """Start ingesting a live broker's records, with ``follow`` also future ones; doesn't wait."""
    from pyspark.errors import PySparkException

    spark = table.spark
    options = {
        **broker.read_options(),
        "subscribe": TOPIC,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(STEP_RECORDS),
    }
    place = _place(broker, topic)

    def step(batch: DataFrame, number: int) -> None:
        # A deleted checkpoint restarts at batch 0, but with another query id.
        query = str(spark.sparkContext.getLocalProperty("sql.streaming.queryId"))
        done = table.progress.get(place)
        if done is not None and done["query"] == query and number <= done["batch"]:
            return
        progress: dict[str, Any] = {place: {"query": query, "batch": number}}
        on_step(table.step(batch, broker.bootstrap, progress, now_ms=now_ms()))

    try:
        stream = spark.readStream.format("kafka").options(**options).load()
    except PySparkException as error:
        if "Failed to find data source: kafka" not in str(error):
            raise
        raise PipelineError(connector_missing(os.environ)) from error
    records = stream.selectExpr("topic", "partition", "offset", "value")
    writer = records.writeStream.foreachBatch(step).option(
        "checkpointLocation", table.files.path(place)
    )
    if follow:
        return writer.trigger(processingTime=TRIGGER).start()
    return writer.trigger(availableNow=True).start()
