"""Aggregates events by interval in a streaming query, and converts the rows for the rules.

Owns the figures that the rules use, and the limit on the rows collected from Spark; it must never
know when an alert is due. Invariant: a row of the aggregation is final, because Spark emits it only
after the watermark has passed its interval, and the rows collected are limited by ``CHECKED_MAX``
and ``NEIGHBOURS_MAX`` per interval. The figures are those of ``ClientQuotaManager``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from minibroker.pipeline.quota_units import CHECKS
from minibroker.pipeline.schemas import sent_bytes
from minibroker.pipeline.watch.rules import (
    CLEAR_FACTOR,
    NEIGHBOURS_MAX,
    Checked,
    ClientUsage,
    WatchInterval,
    WatchLimits,
)

CHECKED_MAX: Final = 20_000
"""Quotas evaluated in an interval: those with the highest usage. Others raise no alerts."""

_CHECKS: Final = {field: key for key, field in CHECKS.items()}
_CHECK, _PARTY, _DROPPED = "check", "party", "dropped"


def by_interval(events: DataFrame, interval_s: int, late_s: int) -> DataFrame:
    """Aggregate by interval and entity, client and broker; emits only final rows.

    Events that are more than ``late_s`` behind the latest one are ignored.
    """
    parts = F.explode(F.array_compact(F.array(*_checks(), _party(), _dropped())))
    every = F.window("at", f"{interval_s} seconds")
    return (
        events.select(F.timestamp_micros("time_us").alias("at"), "broker", "sequence", parts)
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
    for name, quota in _CHECKS.items():
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
    starts: dict[int, dict[str, Any]] = {}
    for row in _bounded(rows, limits).collect():
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
