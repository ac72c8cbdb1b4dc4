"""Sources of raw events, read step by step into a table: a data directory or a live broker.

Owns the size of a step and the progress in its source; it must never know what a step does with the
records. Invariant: a step's progress and its output are committed together, so a killed run resumes
after its last complete step. A data directory's progress is offsets in the table's own ledger; a
broker's is Spark's checkpoint, and the ledger stores its last batch.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from minibroker.lab.activity.schema import TOPIC
from minibroker.pipeline.cluster_access import ClusterAccess
from minibroker.pipeline.errors import PipelineError
from minibroker.pipeline.event_writer import OUTPUT_DDL, EventWriter, Where
from minibroker.pipeline.hadoop import COMMITTED, OFFSETS
from minibroker.pipeline.segments import Damaged, SegmentPiece, pieces, read, topic_id_of
from minibroker.pipeline.session import connector_missing
from minibroker.pipeline.table import Counts, Table
from minibroker.pipeline.topic_lookup import ReachableTopic
from minibroker_protocol.types import uuid_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

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
