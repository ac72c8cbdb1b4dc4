"""Compares the quotas of a file with the usage of their entities.

Owns the selection of quotas for the page; rates are those of ``recommend``, so quotas are compared
with the figures from which they were derived. It must never know plots or HTML. Invariant: the
result is bounded by ``FITS_MAX``, and all quotas of the file are counted, even if their entity was
never seen. Kafka has no counterpart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from minibroker.broker.quotas.arguments import CLIENTS, IPS, USERS
from minibroker.broker.quotas.entity import sanitize
from minibroker.broker.quotas.file import QuotaFile, QuotaLine
from minibroker.pipeline.quota_units import CHECKS, CLIENT, IP, USER, USER_AND_CLIENT
from minibroker.pipeline.recommend import Policy, rates
from minibroker.pipeline.report import formats
from minibroker.pipeline.report.figures import FITS_MAX, Fit
from minibroker.pipeline.scan import Scan

_LEVELS: Final = {
    frozenset({USERS}): USER,
    frozenset({CLIENTS}): CLIENT,
    frozenset({USERS, CLIENTS}): USER_AND_CLIENT,
    frozenset({IPS}): IP,
}
_NAMES: Final = ("user", "client_id", "ip", "quota")
_WANTED: Final = (
    "level string, user string, client_id string, ip string, quota string, check_user string, "
    "recommended double, entity string, reason string"
)
_PERCENTILES: Final = (50, 99)
_CHECKS: Final = {field: key for key, field in CHECKS.items()}


def fits(
    activity: DataFrame, file: QuotaFile, scan: Scan, count: int
) -> tuple[tuple[Fit, ...], int]:
    """The most used quotas of ``file`` with their usage; and the number of its quotas.

    ``scan`` is that of ``activity``, which has ``count`` events.
    """
    wanted = list(_wanted(file.lines))
    if not wanted:
        return (), 0
    table = activity.sparkSession.createDataFrame(wanted, _WANTED)
    levels = {str(row[0]) for row in wanted}
    # Rates of addresses are computed with any level.
    used = [
        _used(
            rates(scan, level, Policy(), count, _PERCENTILES),
            table.where(F.col("level").isin(level, *beside)),
        )
        for level, beside in _levels_to_rate(levels)
    ]
    every = used[0]
    for more in used[1:]:
        every = every.unionByName(more)
    share = F.col("p99") / F.greatest("recommended", F.lit(1e-9))
    shown = every.withColumn("share", share).orderBy(F.desc("share"), "entity", "quota")
    bounds = in_force(activity)
    rows = shown.limit(FITS_MAX).join(bounds, ["quota", "check_user", "client_id"], "left")
    found = rows.orderBy(F.desc("share"), "entity", "quota").collect()
    shown_fits = (
        Fit(row.entity, row.quota, row.p50, row.p99, row.most, row.bound, row.recommended,
            row.reason)
        for row in found
    )  # fmt: skip
    return tuple(shown_fits), len(wanted)


def _levels_to_rate(levels: set[str]) -> Iterator[tuple[str, list[str]]]:
    """The levels whose rates are needed; rates of addresses are taken from the first one."""
    beside = [IP]
    for level in sorted(levels - {IP}) or [USER]:
        yield level, beside
        beside = []


def _wanted(lines: Iterable[QuotaLine]) -> Iterator[tuple[str | float, ...]]:
    """A row for each quota of a named entity: usage can't be compared with a default."""
    for line in lines:
        names = dict(zip(line.entities.types, line.entities.names, strict=True))
        if not all(names.values()):
            continue
        user, client, ip = (names.get(kind) or "" for kind in (USERS, CLIENTS, IPS))
        entity = f"address {ip}" if ip else formats.entity(user, client)
        for quota, value in line.additions.items():
            yield (
                _LEVELS[frozenset(names)], user, client, ip, quota, sanitize(user), float(value),
                entity, " ".join(line.reason),
            )  # fmt: skip


def _used(seen: DataFrame, wanted: DataFrame) -> DataFrame:
    """Quotas and their entities' rates, at the broker where these were highest."""
    names = [F.coalesce(name, F.lit("")).alias(name) for name in _NAMES]
    at = [
        F.max(F.col("percentiles")[number]).alias(f"p{percentile}")
        for number, percentile in enumerate(_PERCENTILES)
    ]
    highest = seen.groupBy(*names).agg(*at, F.max("most").alias("most"))
    return highest.join(F.broadcast(wanted), list(_NAMES))


def in_force(activity: DataFrame) -> DataFrame:
    """The last bound of each entity that had one."""
    checks = F.array(*(_check(name, quota) for name, quota in _CHECKS.items()))
    each = activity.select("time_us", "sequence", F.inline(F.array_compact(checks)))
    last = F.max_by("bound", F.struct("time_us", "sequence")).alias("bound")
    return each.groupBy("quota", "check_user", "client_id").agg(last)


def _check(name: str, quota: str) -> Column:
    found = F.struct(
        F.lit(quota).alias("quota"),
        F.col(f"{name}.user").alias("check_user"),
        F.col(f"{name}.client_id").alias("client_id"),
        F.col(f"{name}.bound").alias("bound"),
    )
    return F.when(F.col(f"{name}.bound").isNotNull(), found)
