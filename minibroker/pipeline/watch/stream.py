"""The streaming query that runs the rules, sends alerts and saves the rules' state.

Owns the query and the file from which the rules resume after a restart; it must never decide
anything. Invariant: alerts are sent before the state is saved, so each is sent at least once, and a
second time, with the same ``id``, only after the job was killed in between; an interval in the
saved state is never evaluated again. The checkpoint may be on any of Hadoop's file systems.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery

from minibroker.lab.activity.schema import TOPIC
from minibroker.pipeline.cluster_access import ClusterAccess, why
from minibroker.pipeline.decoding import valid_events, values_of
from minibroker.pipeline.errors import BadInput, PipelineError
from minibroker.pipeline.hadoop import Files, delete_incomplete_checkpoint
from minibroker.pipeline.parquet import nested
from minibroker.pipeline.schemas import ACTIVITY
from minibroker.pipeline.session import connector_missing
from minibroker.pipeline.watch.alerts import Alert, as_json, identity
from minibroker.pipeline.watch.intervals import by_interval, intervals
from minibroker.pipeline.watch.rules import Rules

Send = Callable[[Sequence[Alert]], None]

RECORDS_MAX: Final = 100_000
"""Maximum number of records in a batch; in Arrow's format a record has up to 1,000 events."""

_SKIPPED: Final = "skipped"

STATE_FOLDER: Final = "rules"
"""Folder of the rules' state in the checkpoint."""


class StateFiles:
    """Saves the rules' state, one file for each version; the previous one is deleted."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def read(self) -> dict[str, Any] | None:
        """The last saved state; None if there is none."""
        names = self._names()
        if not names:
            return None
        found: dict[str, Any] = json.loads(self._files.read(names[-1]))
        return found

    def write(self, state: dict[str, Any]) -> None:
        """Save ``state``, then delete the previous one."""
        before = self._names()
        name = f"{STATE_FOLDER}/{state['last_s']:012}.json"
        if name in before:
            return  # Intervals that were evaluated before a restart change nothing.
        self._files.write_new(name, json.dumps(state))
        for other in before:
            self._files.delete(other)

    def _names(self) -> list[str]:
        names = self._files.names(STATE_FOLDER)
        return [f"{STATE_FOLDER}/{name}" for name in names if name.endswith(".json")]


def watch(
    events: DataFrame, rules: Rules, send: Send, *, checkpoint: str, topic_id: str, late_s: int
) -> StreamingQuery:
    """Start the query on ``events``, resuming from the state below ``checkpoint``.

    The read position is stored by topic id, because Spark doesn't notice that a topic was
    re-created.
    """
    place = f"{checkpoint}/topic-{topic_id}"
    delete_incomplete_checkpoint(Files(events.sparkSession, place))
    state_files = StateFiles(Files(events.sparkSession, checkpoint))
    state = state_files.read()
    if state is not None:
        rules.restore(state)

    def evaluate(rows: DataFrame, _: int) -> None:
        rows.persist()  # Otherwise each query on it would repeat the aggregation.
        try:
            found = intervals(rows, rules.limits)
        finally:
            rows.unpersist()
        alerts = [alert for interval in found for alert in rules.evaluate(interval)]
        if alerts:
            send(alerts)
        if found:
            state_files.write(rules.saved_state())

    return (
        by_interval(events, rules.interval_s, late_s)
        .writeStream.outputMode("append")
        .option("checkpointLocation", place)
        .foreachBatch(evaluate)
        .start()
    )


def has_saved_state(spark: SparkSession, checkpoint: str) -> bool:
    """Whether a state was saved; if so, a new topic is read from its beginning."""
    return StateFiles(Files(spark, checkpoint)).read() is not None


def read_topic(spark: SparkSession, broker: ClusterAccess, *, from_beginning: bool) -> DataFrame:
    """Stream the records of a broker's activity topic."""
    try:
        return (
            spark.readStream.format("kafka")
            .options(**broker.read_options())
            .option("subscribe", TOPIC)
            .option("startingOffsets", "earliest" if from_beginning else "latest")
            .option("maxOffsetsPerTrigger", RECORDS_MAX)
            # Deleted records are of no use for alerts.
            .option("failOnDataLoss", "false")
            .load()
        )
    except AnalysisException as error:
        raise BadInput(
            f"{broker.bootstrap} can't be read ({error}): {connector_missing(os.environ)}"
        ) from error


def events_of(records: DataFrame) -> DataFrame:
    """The events of records; malformed ones are skipped and counted (`SkippedRecords`)."""
    found = records.select("value").mapInArrow(_decoded, ACTIVITY)
    whole = F.col("version").isNotNull()
    return found.observe(_SKIPPED, F.count_if(~whole).alias(_SKIPPED)).where(whole)


def _decoded(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The events, and a row of nulls for each malformed one."""
    for batch in batches:
        events, malformed = valid_events(values_of(batch["value"]))
        table = nested(events, lambda texts: texts.cast(pa.string()))
        yield from table.to_batches()
        if malformed:
            nulls = [pa.nulls(malformed, field.type) for field in table.schema]
            yield pa.RecordBatch.from_arrays(nulls, schema=table.schema)


class SkippedRecords(StreamingQueryListener):
    """Reports skipped records, which it counts from Spark's progress events."""

    def __init__(self, report: Callable[[int, int], None]) -> None:
        """``report`` is called with the number of skipped records since the last call and since the
        start, in a separate thread.
        """
        super().__init__()
        self._report = report
        self._total = 0

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's names
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        row = event.progress.observedMetrics.get(_SKIPPED)
        if row is not None and row[_SKIPPED]:
            self._total += row[_SKIPPED]
            self._report(row[_SKIPPED], self._total)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        pass


def wait_for(spark: SparkSession, query: StreamingQuery, broker: ClusterAccess) -> None:
    """Wait until the query ends, by an error or Ctrl-C."""
    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        raise PipelineError(f"the watch ended: {why(spark, error, broker)}") from error
    finally:
        query.stop()


def to_topic(
    spark: SparkSession, broker: ClusterAccess, topic: str, alerts: Sequence[Alert]
) -> None:
    """Send ``alerts`` as JSON, each with its ``id`` as key."""
    records = [(identity(alert), as_json(alert)) for alert in alerts]
    frame = spark.createDataFrame(records, "key string, value string")
    (
        frame.coalesce(1)  # One writer keeps their order.
        .write.format("kafka")
        .options(**broker.write_options())
        .option("topic", topic)
        .save()
    )
