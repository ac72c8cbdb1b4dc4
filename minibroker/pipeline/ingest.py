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
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from minibroker.activity.schema import TOPIC
from minibroker.pipeline.errors import PipelineError
from minibroker.pipeline.segments import FORMAT, Piece, SegmentSource, pieces
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

Told = Callable[[Counts], None]
"""Is called after each step with what became of it."""


def now_ms() -> int:
    """Wall time."""
    return time.time_ns() // 1_000_000


def ingest_directory(table: Table, data_dir: str, told: Told) -> Counts:
    """Take in what a data directory has that was not read before."""
    table.spark.dataSource.register(SegmentSource)
    source = f"directory {data_dir}"
    read: dict[str, int] = dict(table.progress.get(source, {}))
    total = Counts()
    for together in _steps(pieces(data_dir, read)):
        reader = table.spark.read.format(FORMAT).option("pieces", json.dumps(together))
        for piece in together:
            read[str(piece.partition)] = piece.next_offset
        records = reader.load(data_dir)
        counts = table.step(records, data_dir, {source: dict(read)}, now_ms=now_ms())
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
