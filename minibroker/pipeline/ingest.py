"""Sources of raw events, read step by step into a table: a data directory, or a live broker.

Owns how far a step goes and what it remembers of its source; it must never know what a step does
with the records. Invariant: what a step has read is remembered with what it has written, in one
commit, so a killed run is taken up where its last whole step ended. A data directory's progress is
offsets in the table's own ledger; a broker's is Spark's checkpoint, and the ledger knows the last
batch of it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from minibroker.activity.schema import TOPIC
from minibroker.pipeline.errors import PipelineError
from minibroker.pipeline.filing import PLACED, file_events
from minibroker.pipeline.segments import Piece, SegmentReader, SegmentSource, pieces
from minibroker.pipeline.session import CONNECTOR
from minibroker.pipeline.table import Counts, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

STEP_BYTES: Final = 64 << 20
"""Of segment files read in a step, which is what bounds its memory."""
STEP_RECORDS: Final = 500_000
"""Of a live broker in a step, for the same reason."""
TRIGGER: Final = "10 seconds"
CHECKPOINTS: Final = "_checkpoints"
FILED: Final = "minibroker-filed"

Told = Callable[[Counts], None]
"""Is called after each step with what became of it."""


def now_ms() -> int:
    """Wall time."""
    return time.time_ns() // 1_000_000


class FiledSource(SegmentSource):
    """A data directory's events, filed by place where they are read: one way less through Spark.

    Option ``found_ms``: the time that the quarantine is to name.
    """

    @classmethod
    def name(cls) -> str:
        return FILED

    def schema(self) -> str:
        return PLACED

    def reader(self, schema: object) -> FiledReader:  # noqa: ARG002
        return FiledReader(dict(self.options))


class FiledReader(SegmentReader):
    """One read of a data directory's events."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._file = file_events(options["path"], int(options["found_ms"]))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from self._file(super().read(partition))


def ingest_directory(table: Table, data_dir: str, told: Told) -> Counts:
    """Take in what a data directory has that was not read before."""
    table.spark.dataSource.register(FiledSource)
    source = f"directory {data_dir}"
    read: dict[str, int] = dict(table.progress.get(source, {}))
    total = Counts()
    for together in _steps(pieces(data_dir, read)):
        options = {"pieces": json.dumps(together), "found_ms": str(now_ms())}
        placed = table.spark.read.format(FILED).options(**options).load(data_dir)
        for piece in together:
            read[str(piece.partition)] = piece.next_offset
        counts = table.step_placed(placed, {source: dict(read)})
        total += counts
        told(counts)
    return total


def _steps(found: Iterator[Piece]) -> Iterator[list[Piece]]:
    together: list[Piece] = []
    size = 0
    for piece in found:
        if together and size + piece.end - piece.start > STEP_BYTES:
            yield together
            together, size = [], 0
        together.append(piece)
        size += piece.end - piece.start
    if together:
        yield together


def ingest_broker(table: Table, bootstrap: str, told: Told, *, follow: bool) -> StreamingQuery:
    """Take in what a live broker has, and with ``follow`` what is to come; started, not awaited."""
    from pyspark.errors import PySparkException

    spark = table.spark
    options = {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": TOPIC,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(STEP_RECORDS),
    }
    place = f"{CHECKPOINTS}/{bootstrap.replace(':', '-').replace(',', '_')}"

    def step(batch: DataFrame, number: int) -> None:
        # A checkpoint that was removed starts anew with batch 0, but as another query.
        query = str(spark.sparkContext.getLocalProperty("sql.streaming.queryId"))
        done = table.progress.get(place)
        if done is not None and done["query"] == query and number <= done["batch"]:
            return
        progress: dict[str, Any] = {place: {"query": query, "batch": number}}
        told(table.step(batch, bootstrap, progress, now_ms=now_ms()))

    try:
        stream = spark.readStream.format("kafka").options(**options).load()
    except PySparkException as error:
        if "Failed to find data source: kafka" not in str(error):
            raise
        raise PipelineError(
            "Spark's Kafka connector is not there: add"
            f" --conf spark.jars.packages={CONNECTOR}, or its jars with"
            " --conf spark.jars=…"
        ) from error
    records = stream.selectExpr(
        "topic", "partition", "offset", "value", "cast(null as string) as damage"
    )
    writer = records.writeStream.foreachBatch(step).option(
        "checkpointLocation", table.files.path(place)
    )
    if follow:
        return writer.trigger(processingTime=TRIGGER).start()
    return writer.trigger(availableNow=True).start()
