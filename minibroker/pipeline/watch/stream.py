"""The streaming query that aggregates events, runs the rules, sends alerts and saves the state.

Owns the figures that the rules use, the limit on the rows collected from Spark, and the file from
which the rules resume after a restart; it must never decide anything. Invariant: a row of the
aggregation is final, because Spark emits it only after the watermark has passed its interval.
Alerts are sent before the state is saved, so each is sent at least once, and a second time, with
the same ``id``, only after the job was killed in between; an interval in the saved state is never
evaluated again. The checkpoint may be on any of Hadoop's file systems. The figures are those of
``ClientQuotaManager``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery

from minibroker.lab.activity.events import TOPIC
from minibroker.pipeline.activity_table import ACTIVITY, sent_bytes
from minibroker.pipeline.cluster_access import ClusterAccess, why
from minibroker.pipeline.decoding import valid_events, values_of
from minibroker.pipeline.errors import BadInput, PipelineError
from minibroker.pipeline.event_files import nested
from minibroker.pipeline.quota_amounts import CHECKS
from minibroker.pipeline.session import Files, connector_missing, delete_incomplete_checkpoint
from minibroker.pipeline.watch.rules import (
    CLEAR_FACTOR,
    NEIGHBOURS_MAX,
    Alert,
    Checked,
    ClientUsage,
    Rules,
    WatchInterval,
    WatchLimits,
    as_json,
    identity,
)

# Intervals ---------------------------------------------------------------------------------------

CHECKED_MAX: Final = 20_000
"""Quotas evaluated in an interval: those with the highest usage. Others raise no alerts."""

_CHECK, _PARTY, _DROPPED = "check", "party", "dropped"


def by_interval(events: DataFrame, interval_s: int, late_s: int) -> DataFrame:
    """Aggregate by interval and entity, client and broker; emits only final rows.

    Events that are more than ``late_s`` behind the latest one are ignored.
    """
    # With `array_compact`, Spark would interpret the expression, and derive its type for each row.
    parts = F.explode(F.array(*_checks(), _party(), _dropped()))
    every = F.window("at", f"{interval_s} seconds")
    return (
        events.select(F.timestamp_micros("time_us").alias("at"), "broker", "sequence", parts)
        .where("col is not null")
        .withWatermark("at", f"{late_s} seconds")
        .groupBy(every, "broker", "col.what", "col.user", "col.client_id", "col.quota")
        .agg(
            F.max("col.rate").alias("rate"),
            F.max_by("col.bound", "sequence").alias("bound"),
            *(F.sum(f"col.{name}").alias(name) for name in _SUMS),
            F.max("col.throttled_ms").alias("throttled_ms"),
        )
        .select(
            F.unix_seconds("window.start").alias("start_s"),
            *(
                "broker",
                "what",
                "user",
                "client_id",
                "quota",
                "rate",
                "bound",
                *_SUMS,
                "throttled_ms",
            ),
        )
    )


_SUMS: Final = ("requests", "throttled", "worked_ns", "moved_bytes", "served_ns", "dropped")


def _part(what: str, **given: Column) -> Column:
    """A row of one figure that an event contributes to; missing columns are empty, null or 0."""
    texts = {name: given.get(name, F.lit("")) for name in ("user", "client_id", "quota")}
    rates = {name: given.get(name, F.lit(None)).cast("double") for name in ("rate", "bound")}
    whole = {name: given.get(name, F.lit(0)).cast("bigint") for name in (*_SUMS, "throttled_ms")}
    columns = {"what": F.lit(what), **texts, **rates, **whole}
    return F.struct(*(F.coalesce(column, F.lit("")).alias(name) if name in texts
                      else column.alias(name) for name, column in columns.items()))  # fmt: skip


def _checks() -> Iterator[Column]:
    for quota, name in CHECKS.items():
        throttled_ms = F.col(f"{name}.throttle_ms")
        # For mutations the field is the remaining tokens, not a rate.
        rate = F.lit(None) if name == "mutation" else F.col(f"{name}.rate")
        row = _part(
            _CHECK,
            user=F.col(f"{name}.user"),
            client_id=F.col(f"{name}.client_id"),
            quota=F.lit(quota),
            rate=rate,
            bound=F.col(f"{name}.bound"),
            requests=F.lit(1),
            throttled=(throttled_ms > 0).cast("int"),
            throttled_ms=throttled_ms,
        )
        yield F.when(F.col(f"{name}.bound").isNotNull(), row)


def _party() -> Column:
    def added(*columns: str | Column) -> Column:
        return sum((F.coalesce(column, F.lit(0)) for column in columns), F.lit(0))

    row = _part(
        _PARTY,
        user=F.col("user"),
        client_id=F.col("client_id"),
        requests=F.lit(1),
        worked_ns=added("network_ns", "io_ns"),
        moved_bytes=added("request_bytes", sent_bytes()),
        served_ns=added("queue_ns", "network_ns", "io_ns"),
    )
    return F.when(F.col("kind") == "request", row)


def _dropped() -> Column:
    return F.when(F.col("kind") == "dropped", _part(_DROPPED, dropped=F.col("dropped")))


def intervals(rows: DataFrame, limits: WatchLimits) -> list[WatchInterval]:
    """The intervals in ``rows`` of the aggregation, in order."""
    rows.persist()  # Otherwise each part of the query would repeat the aggregation.
    try:
        bounded = _bounded(rows, limits).collect()
    finally:
        rows.unpersist()
    starts: dict[int, dict[str, Any]] = {}
    for row in bounded:
        found = starts.setdefault(row.start_s, {})
        found.setdefault(row.what, []).append(row)
    return [_interval(start_s, starts[start_s]) for start_s in sorted(starts)]


_TOTAL: Final = "total"


def _bounded(rows: DataFrame, limits: WatchLimits) -> DataFrame:
    """For each interval: the checks near or above a limit, the largest clients, and totals."""
    is_check, is_party = F.col("what") == _CHECK, F.col("what") == _PARTY
    share = F.col("rate") / F.col("bound")
    matters = (F.col("throttled") > 0) | (share >= CLEAR_FACTOR * limits.over)
    throttled_first = F.row_number().over(
        Window.partitionBy("start_s", "what").orderBy(
            F.desc("throttled"), F.desc_nulls_last(share), "broker", "user", "client_id", "quota"
        )
    )
    of_broker = Window.partitionBy("start_s", "what", "broker")
    most_worked = F.row_number().over(of_broker.orderBy(F.desc("worked_ns"), "user", "client_id"))
    most_moved = F.row_number().over(of_broker.orderBy(F.desc("moved_bytes"), "user", "client_id"))
    checks = rows.where(is_check & matters).withColumn("n", throttled_first)
    parties = rows.where(is_party).withColumn("n", F.least(most_worked, most_moved))
    everything = rows.where(~is_check).groupBy("start_s", "broker", "what").agg(
        *(F.sum(name).alias(name) for name in _SUMS)
    )  # fmt: skip
    totals = everything.withColumn("what", F.when(is_party, _TOTAL).otherwise(F.col("what")))
    return (
        checks.where(F.col("n") <= CHECKED_MAX)
        .unionByName(parties.where(F.col("n") <= NEIGHBOURS_MAX))
        .unionByName(totals, allowMissingColumns=True)
    )


def _interval(start_s: int, found: dict[str, list[Row]]) -> WatchInterval:
    return WatchInterval(
        start_s=start_s,
        checked=sorted(_checked(found.get(_CHECK, []))),
        parties=sorted(map(_party_of, found.get(_PARTY, []))),
        totals={row.broker: _party_of(row) for row in found.get(_TOTAL, [])},
        dropped={row.broker: row.dropped for row in found.get(_DROPPED, [])},
    )


def _checked(rows: Iterable[Row]) -> Iterator[Checked]:
    for row in rows:
        yield Checked(
            row.broker, row.user, row.client_id, row.quota, row.rate, row.bound, row.throttled,
            row.throttled_ms,
        )  # fmt: skip


def _party_of(row: Row) -> ClientUsage:
    return ClientUsage(
        row.broker, row.user or "", row.client_id or "", row.requests, row.worked_ns,
        row.moved_bytes, row.served_ns,
    )  # fmt: skip


# The query ---------------------------------------------------------------------------------------

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
        found = intervals(rows, rules.limits)
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
