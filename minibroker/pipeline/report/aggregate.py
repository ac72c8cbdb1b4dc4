"""Aggregates the activity table, and replays of it, to a report's figures in Spark.

Owns the aggregations, and the selection of quotas and entities for the page; it must never know
plots or HTML. Invariant: the size of the result is bounded by the limits of the figures, whatever
the size of the table, and does not depend on Spark's partitions: percentiles come from a histogram
with bins of 2 %, not from an order-dependent sketch. All quotas of a file are counted, even if
their entity was never seen, and every proposal is included, even if it throttles no entity. The
figures resemble ``RequestMetrics``, whose percentiles come from a histogram too; rates are those of
``recommend``, so quotas are compared with the figures from which they were derived.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from minibroker.broker.quotas.command_lines import CLIENTS, IPS, USERS, QuotaFile, QuotaLine
from minibroker.broker.quotas.types import sanitize
from minibroker.lab.activity.events import ActivityKind, ConnectionStep
from minibroker.pipeline.activity_table import Scan, sent_bytes
from minibroker.pipeline.errors import BadInput
from minibroker.pipeline.quota_amounts import CHECKS, IP, USER
from minibroker.pipeline.recommend import TYPES, Policy, rates
from minibroker.pipeline.report import formats
from minibroker.pipeline.report.figures import (
    BROKERS_MAX,
    ENTITIES_MAX,
    FITS_MAX,
    HEAT_MAX,
    REST,
    SERIES_MAX,
    ConnectionTotals,
    Coverage,
    Figures,
    Fit,
    Heat,
    Latency,
    Outcome,
    Point,
    ReportedBroker,
    ReportedClient,
    ReportedProposal,
    Use,
    step_for,
)
from minibroker.pipeline.whatif.replay_accuracy import called

BINS: Final = 35
"""Bins of the latency histogram per doubling: each is 2 % wide."""

_QUANTILES: Final = (0.5, 0.95, 0.99)
_SUMS: Final = (
    "requests", "bytes_in", "bytes_out", "worked_ns", "throttled", "throttle_ms", "errors",
)  # fmt: skip


def figures(activity: DataFrame, source: str, quarantined: int | None = None) -> Figures:
    """All figures of the table ``activity``; ``source`` is its path."""
    cover = coverage(activity, quarantined)
    step_s = step_for(cover.first_us, cover.last_us)
    slots = by_slot(activity, step_s).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        leaders = [ReportedClient(row.user, row.client_id) for row in leading(slots).collect()]
        bins = latencies(activity, step_s, leaders).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            total, entities, latency = _over_all(slots, bins, leaders)
        finally:
            bins.unpersist()
        return Figures(
            source=source,
            step_s=step_s,
            coverage=cover,
            total=total,
            entities=entities,
            entity_count=slots.select("user", "client_id").distinct().count(),
            points=_points(slots, leaders[:SERIES_MAX]),
            latency=latency,
            connections=tuple(
                ConnectionTotals(*row) for row in connections(activity, step_s).collect()
            ),
            heat=_heat(activity, slots, step_s, cover.last_us),
        )
    finally:
        slots.unpersist()


def coverage(activity: DataFrame, quarantined: int | None) -> Coverage:
    """The period and completeness of each broker's events; details for those with most events."""
    rows = brokers(activity).collect()
    if not rows:
        raise BadInput(
            "the activity table contains no events: run `minibroker pipeline ingest` first"
        )
    found = [ReportedBroker(*row) for row in rows]
    return Coverage(
        first_us=min(each.first_us for each in found),
        last_us=max(each.last_us for each in found),
        events=sum(each.events for each in found),
        dropped=sum(each.dropped for each in found),
        sample=min(each.sample for each in found),
        quarantined=quarantined,
        brokers=tuple(sorted(found, key=lambda each: (-each.events, each.broker))[:BROKERS_MAX]),
        broker_count=len(found),
    )


def brokers(activity: DataFrame) -> DataFrame:
    """One row per broker: first and last time, events, dropped events, smallest sampling rate."""
    seen = F.col("kind") != ActivityKind.DROPPED.value
    return activity.groupBy("broker").agg(
        F.min("time_us").alias("first_us"),
        F.max("time_us").alias("last_us"),
        F.count_if(seen).alias("events"),
        F.coalesce(F.sum("dropped"), F.lit(0)).alias("dropped"),
        F.coalesce(F.min("sample"), F.lit(1.0)).alias("sample"),
    )


def by_slot(activity: DataFrame, step_s: int) -> DataFrame:
    """Figures of each user and client-id in each slot of ``step_s`` seconds."""
    weight = 1 / F.col("sample")

    def weighed(what: Column) -> Column:
        return F.sum(weight * F.coalesce(what, F.lit(0)))

    worked = F.col("network_ns") + F.col("io_ns")
    return (
        _requests(activity)
        .groupBy("user", "client_id", _slot(step_s))
        .agg(
            F.sum(weight).alias("requests"),
            weighed(F.col("request_bytes")).alias("bytes_in"),
            weighed(sent_bytes()).alias("bytes_out"),
            weighed(worked).alias("worked_ns"),
            weighed((F.col("throttle_ms") > 0).cast("int")).alias("throttled"),
            weighed(F.col("throttle_ms")).alias("throttle_ms"),
            weighed((F.col("error_code") != 0).cast("int")).alias("errors"),
        )
    )


def leading(slots: DataFrame) -> DataFrame:
    """The entities with the most worker time."""
    whole = slots.groupBy("user", "client_id").agg(F.sum("worked_ns").alias("worked_ns"))
    return whole.orderBy(F.desc("worked_ns"), "user", "client_id").limit(ENTITIES_MAX)


def latencies(activity: DataFrame, step_s: int, leaders: Sequence[ReportedClient]) -> DataFrame:
    """Latency histograms of each leader, and of the rest, in each slot."""
    bin_ = F.floor(F.log2(F.greatest(F.col("total_ns"), F.lit(1))) * BINS).cast("int")
    seen = _requests(activity).where(F.col("total_ns").isNotNull())
    return (
        _ranked(seen, leaders)
        .groupBy(_slot(step_s), "rank", bin_.alias("bin"))
        .agg(F.sum(1 / F.col("sample")).alias("requests"))
    )


def _requests(activity: DataFrame) -> DataFrame:
    who = {name: F.coalesce(name, F.lit("")) for name in ("user", "client_id")}
    return activity.where(F.col("kind") == ActivityKind.REQUEST.value).withColumns(who)


def _slot(step_s: int) -> Column:
    return (F.floor(F.col("time_us") / F.lit(step_s * 1_000_000)) * step_s).alias("start_s")


def _ranked(frame: DataFrame, leaders: Sequence[ReportedClient]) -> DataFrame:
    """Add each row's index among the leaders; the rest has the index after theirs."""
    if not leaders:
        return frame.withColumn("rank", F.lit(0))
    those = F.array(*(F.array(*map(F.lit, who)) for who in leaders))
    place = F.array_position(those, F.array("user", "client_id")).cast("int")
    return frame.withColumn("rank", F.when(place > 0, place - 1).otherwise(len(leaders)))


def _over_all(
    slots: DataFrame, bins: DataFrame, leaders: Sequence[ReportedClient]
) -> tuple[Use, tuple[Use, ...], tuple[Latency, ...]]:
    """The figures of everything, of each leader and the rest; and the latencies of each slot."""
    sums = {
        row.rank: row
        for row in _ranked(slots, leaders).groupBy("rank").agg(*_added(_SUMS)).collect()
    }
    by_rank = _histograms(bins.groupBy("rank", "bin").agg(*_added(("requests",))))
    by_slot_ = _histograms(bins.groupBy("start_s", "bin").agg(*_added(("requests",))))
    whole = _histograms(bins.groupBy(F.lit(0).alias("all"), "bin").agg(*_added(("requests",)))).get(
        0, {}
    )
    clients = [*leaders, REST]
    uses = tuple(
        Use(
            clients[rank],
            *(sums[rank][name] for name in _SUMS),
            *percentiles(by_rank.get(rank, {})),
        )
        for rank in sorted(sums)
    )
    total = [sum(row[name] for row in sums.values()) for name in _SUMS]
    latency = tuple(Latency(start, *percentiles(by_slot_[start])) for start in sorted(by_slot_))
    return Use(REST, *total, *percentiles(whole)), uses, latency


def _added(columns: Iterable[str]) -> Iterator[Column]:
    return (F.sum(name).alias(name) for name in columns)


def _histograms(frame: DataFrame) -> dict[int, dict[int, float]]:
    """By the first column: the number of requests in each bin."""
    found: dict[int, dict[int, float]] = {}
    for key, bin_, requests in frame.collect():
        found.setdefault(key, {})[bin_] = requests
    return found


def percentiles(histogram: dict[int, float]) -> tuple[float, ...]:
    """The 50th, 95th and 99th percentile in milliseconds, each the middle of its bin."""
    whole, reached, left = sum(histogram.values()), 0.0, list(_QUANTILES)
    found = []
    for bin_ in sorted(histogram):
        reached += histogram[bin_]
        while left and reached >= left[0] * whole:
            left.pop(0)
            found.append(2 ** ((bin_ + 0.5) / BINS) / 1e6)
    return (*found, *[found[-1] if found else 0.0] * len(left))


def _points(slots: DataFrame, leaders: Sequence[ReportedClient]) -> tuple[Point, ...]:
    clients = [*leaders, REST]
    columns = ("requests", "bytes_in", "bytes_out", "worked_ns")
    rows = _ranked(slots, leaders).groupBy("start_s", "rank").agg(*_added(columns)).collect()
    points = [
        Point(row.start_s, clients[row.rank], *(row[name] for name in columns)) for row in rows
    ]
    return tuple(sorted(points, key=lambda each: (each.start_s, clients.index(each.who))))


def _heat(activity: DataFrame, slots: DataFrame, step_s: int, last_us: int) -> tuple[Heat, ...]:
    """Throttle time by slot of the most throttled entities."""
    longest = (
        slots.where(F.col("throttle_ms") > 0)
        .groupBy("user", "client_id")
        .agg(*_added(("throttle_ms",)))
    )
    order = longest.orderBy(F.desc("throttle_ms"), "user", "client_id").limit(HEAT_MAX)
    leaders = [ReportedClient(row.user, row.client_id) for row in order.collect()]
    if not leaders:
        return ()
    throttled_requests = _requests(activity).where(F.col("throttle_ms") > 0)
    ranked = _ranked(throttled_requests, leaders).where(F.col("rank") < len(leaders))
    rows = throttles(ranked, step_s, last_us).collect()
    cells = [Heat(row.start_s, leaders[row.rank], row.throttled, row.throttle_ms) for row in rows]
    return tuple(sorted(cells, key=lambda each: (leaders.index(each.who), each.start_s)))


def throttles(throttled_requests: DataFrame, step_s: int, last_us: int) -> DataFrame:
    """Throttle time of each ``rank`` in each slot, up to the slot of the last event.

    A throttle begins at its event and lasts for ``throttle_ms``, so it may span several slots.
    """
    step_ms, weight = step_s * 1000, 1 / F.col("sample")
    begin, end = F.floor(F.col("time_us") / 1000), F.col("begin_ms") + F.col("throttle_ms")
    last = F.least(F.floor((F.col("end_ms") - 1) / step_ms), F.lit(last_us // 1000 // step_ms))
    first = F.floor(F.col("begin_ms") / step_ms)
    overlap = F.least("end_ms", F.col("slot_ms") + step_ms) - F.greatest("begin_ms", "slot_ms")
    return (
        throttled_requests.withColumn("begin_ms", begin)
        .withColumn("end_ms", end)
        .withColumn("slot", F.explode(F.sequence(first, last)))
        .withColumn("slot_ms", F.col("slot") * step_ms)
        .groupBy("rank", (F.col("slot") * step_s).alias("start_s"))
        .agg(
            F.sum(weight).alias("throttled"),
            F.sum(weight * overlap).alias("throttle_ms"),
        )
    )


def connections(activity: DataFrame, step_s: int) -> DataFrame:
    """Connections accepted, delayed, refused and closed in each slot, ordered by time."""

    def so_many(*happened: ConnectionStep) -> Column:
        one = F.col("happened").isin([each.value for each in happened])
        return F.sum(F.when(one, 1 / F.col("sample")).otherwise(0.0))

    return (
        activity.where(F.col("kind") == ActivityKind.CONNECTION.value)
        .groupBy(_slot(step_s))
        .agg(
            so_many(ConnectionStep.ACCEPTED).alias("accepted"),
            so_many(ConnectionStep.DELAYED, ConnectionStep.HELD).alias("waited"),
            so_many(ConnectionStep.REFUSED).alias("refused"),
            so_many(ConnectionStep.CLOSED).alias("closed"),
        )
        .orderBy("start_s")
    )


# Quotas and usage --------------------------------------------------------------------------------

_LEVELS: Final = {frozenset(types): level for level, types in TYPES.items()}
_NAMES: Final = ("user", "client_id", "ip", "quota")
_WANTED: Final = (
    "level string, user string, client_id string, ip string, quota string, check_user string, "
    "recommended double, entity string, reason string"
)
_PERCENTILES: Final = (50, 99)


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
            table.where(F.col("level").isin(level, *others)),
        )
        for level, others in _levels_to_rate(levels)
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
    checks = F.array(*(_check(name, quota) for quota, name in CHECKS.items()))
    # With `array_compact`, Spark would interpret the expression, and derive its type for each row.
    each = activity.select("time_us", "sequence", F.explode(checks).alias("check"))
    each = each.where("check is not null").select("time_us", "sequence", "check.*")
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


# Replays -----------------------------------------------------------------------------------------

_OUTCOME_SUMS: Final = ("requests", "throttled", "throttle_ms", "given_up")


def compared(
    outcome: DataFrame, names: Sequence[str], loops: Sequence[str]
) -> tuple[tuple[Outcome, ...], tuple[ReportedProposal, ...]]:
    """The totals of each proposal in each loop, and the outcomes of the entities that are throttled
    longest under any of them. Proposals are named as in `whatif`.
    """
    whole = outcome.where(F.col("start_us").isNull())
    who = [F.coalesce(name, F.lit("")).alias(name) for name in ("user", "client_id", "ip")]
    each = (
        whole.groupBy("proposal", "loop", *who)
        .agg(
            *(F.sum(name).alias(name) for name in _OUTCOME_SUMS),
            F.max("throttle_ms_max").alias("longest_ms"),
            F.max("late_ms").alias("late_ms"),
        )
        .persist()
    )
    key = F.array("user", "client_id", "ip")
    longest = each.groupBy(key.alias("who")).agg(F.max("throttle_ms").alias("most"))
    most_throttled = (
        longest.where("most > 0").orderBy(F.desc("most"), "who").limit(HEAT_MAX).collect()
    )
    those = [F.array(*map(F.lit, row.who)) for row in most_throttled]
    rows = each.where(key.isin(those)).collect() if those else []
    totals = each.groupBy("proposal", "loop").agg(
        F.count("*").alias("entities"),
        F.count_if(F.col("throttled") > 0).alias("throttled_entities"),
        *(F.sum(name).alias(name) for name in _OUTCOME_SUMS),
        *(F.max(name).alias(name) for name in ("longest_ms", "late_ms")),
    )
    by_name = {found.name: found for found in map(_proposal, totals.collect())}
    each.unpersist()
    outcomes = sorted(_outcome(row) for row in rows)
    nothing = ReportedProposal("", 0, 0, 0, 0, 0, 0, 0)
    order = [called(name, loop) for name in names for loop in loops]
    found = (by_name.get(name, nothing._replace(name=name)) for name in order)
    return tuple(outcomes), tuple(found)


def _proposal(row: Row) -> ReportedProposal:
    name = called(row.proposal, row.loop)
    sums = row.requests, row.throttled, row.throttle_ms
    return ReportedProposal(
        name,
        row.entities,
        row.throttled_entities,
        *sums,
        row.longest_ms,
        row.given_up or 0,
        row.late_ms,
    )


def _outcome(row: Row) -> Outcome:
    who = f"address {row.ip}" if row.ip else formats.party(row.user, row.client_id)
    name = called(row.proposal, row.loop)
    return Outcome(name, who, row.requests, row.throttled, row.throttle_ms, row.longest_ms)
