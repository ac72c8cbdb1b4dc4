"""The rules on a stream: Spark brings intervals, alerts are told, what is remembered is kept.

Owns the query and the file from which the rules go on after a restart; it must never decide
anything. Invariant: alerts are told first and what raised them is kept after, so that one that was
due is told at least once, and again only after a job that was killed in between, with the same
``id``; an interval that was kept is never looked at again. The places are any of Hadoop's.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from typing import Any, Final

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

from minibroker.activity.schema import TOPIC, VERSION
from minibroker.pipeline.brokers import Broker, why
from minibroker.pipeline.errors import BadInput, PipelineError
from minibroker.pipeline.hadoop import Files, forget_half_begun
from minibroker.pipeline.schemas import ACTIVITY
from minibroker.pipeline.session import connector_missing
from minibroker.pipeline.watch.alerts import Alert, as_json, identity
from minibroker.pipeline.watch.intervals import by_interval, intervals
from minibroker.pipeline.watch.rules import Rules

Tell = Callable[[Sequence[Alert]], None]

RECORDS_MAX: Final = 500_000
"""Events of one look, however many have gathered."""

_READ: Final = "left_out"
_NEEDED: Final = ("kind", "broker", "sequence", "time_us")
"""What no event can be looked at without."""

KEPT: Final = "rules"
"""The folder of what the rules remember, below the checkpoint."""


class Memory:
    """What the rules remember: a file for each state, of which there is one but for a moment."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def read(self) -> dict[str, Any] | None:
        """The last state; None if there is none."""
        names = self._names()
        if not names:
            return None
        found: dict[str, Any] = json.loads(self._files.read(names[-1]))
        return found

    def write(self, state: dict[str, Any]) -> None:
        """Keep ``state``, and then no other."""
        before = self._names()
        name = f"{KEPT}/{state['last_s']:012}.json"
        if name in before:
            return  # intervals that were seen before a restart change nothing
        self._files.write_new(name, json.dumps(state))
        for other in before:
            self._files.delete(other)

    def _names(self) -> list[str]:
        names = self._files.names(KEPT)
        return [f"{KEPT}/{name}" for name in names if name.endswith(".json")]


def watch(
    events: DataFrame, rules: Rules, tell: Tell, *, checkpoint: str, topic_id: str, late_s: int
) -> StreamingQuery:
    """Start to look at ``events``; what was kept below ``checkpoint`` is gone on from. How far the
    topic was read is kept by its id, as Spark doesn't tell it from one that had the name before.
    """
    place = f"{checkpoint}/topic-{topic_id}"
    forget_half_begun(Files(events.sparkSession, place))
    memory = Memory(Files(events.sparkSession, checkpoint))
    kept = memory.read()
    if kept is not None:
        rules.recall(kept)

    def look(rows: DataFrame, _: int) -> None:
        rows.persist()  # or the aggregation would be made again for each look at it
        try:
            found = intervals(rows, rules.limits)
        finally:
            rows.unpersist()
        alerts = [alert for interval in found for alert in rules.see(interval)]
        if alerts:
            tell(alerts)
        if found:
            memory.write(rules.remembered())

    return (
        by_interval(events, rules.interval_s, late_s)
        .writeStream.outputMode("append")
        .option("checkpointLocation", place)
        .foreachBatch(look)
        .start()
    )


def goes_on(spark: SparkSession, checkpoint: str) -> bool:
    """Whether a watch has kept something there: then all that a new topic has is of interest."""
    return Memory(Files(spark, checkpoint)).read() is not None


def read_topic(spark: SparkSession, broker: Broker, *, from_beginning: bool) -> DataFrame:
    """The records of a broker's activity topic as they come."""
    try:
        return (
            spark.readStream.format("kafka")
            .options(**broker.to_read())
            .option("subscribe", TOPIC)
            .option("startingOffsets", "earliest" if from_beginning else "latest")
            .option("maxOffsetsPerTrigger", RECORDS_MAX)
            # What the topic no longer keeps is of no use to an alert.
            .option("failOnDataLoss", "false")
            .load()
        )
    except AnalysisException as error:
        raise BadInput(
            f"{broker.bootstrap} can't be read ({error}): {connector_missing(os.environ)}"
        ) from error


def events_of(records: DataFrame) -> DataFrame:
    """The events in a stream of records; what is none is left out, and counted (`LeftOut`)."""
    event = F.from_json(F.col("value").cast("string"), ACTIVITY)
    whole = F.col("event.version") == VERSION
    for name in _NEEDED:
        whole &= F.col(f"event.{name}").isNotNull()
    whole = F.coalesce(whole, F.lit(False))
    seen = records.select(event.alias("event")).observe(_READ, F.count_if(~whole).alias(_READ))
    return seen.where(whole).select("event.*")


class LeftOut(StreamingQueryListener):
    """Is told by Spark, after each look, how many records were no events, and tells it on."""

    def __init__(self, tell: Callable[[int, int], None]) -> None:
        """``tell`` is given how many they were, and how many since the start; called in a thread
        of its own.
        """
        super().__init__()
        self._tell = tell
        self._total = 0

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's names
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        row = event.progress.observedMetrics.get(_READ)
        if row is not None and row[_READ]:
            self._total += row[_READ]
            self._tell(row[_READ], self._total)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        pass


def wait_for(spark: SparkSession, query: StreamingQuery, broker: Broker) -> None:
    """Until the query ends, which it does by a mistake or by Ctrl-C only."""
    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        raise PipelineError(f"the watch ended: {why(spark, error, broker)}") from error
    finally:
        query.stop()


def to_topic(spark: SparkSession, broker: Broker, topic: str, alerts: Sequence[Alert]) -> None:
    """Send ``alerts`` as JSON, each under its ``id``."""
    records = [(identity(alert), as_json(alert)) for alert in alerts]
    frame = spark.createDataFrame(records, "key string, value string")
    (
        frame.coalesce(1)  # one writer, so that they arrive in their order
        .write.format("kafka")
        .options(**broker.to_write())
        .option("topic", topic)
        .save()
    )
