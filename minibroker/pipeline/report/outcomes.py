"""Compares replays under several quota files: totals of each, and the entities they throttle.

Owns the selection of a replay's rows for the page; it must never know how a replay works, or plots
and HTML. Invariant: the result is bounded by the limits of the figures, and every proposal is
included, even if it throttles no entity. Kafka has no counterpart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from minibroker.pipeline.report import formats
from minibroker.pipeline.report.figures import HEAT_MAX, Outcome, ReportedProposal
from minibroker.pipeline.whatif.summary import called

_SUMS: Final = ("requests", "throttled", "throttle_ms", "given_up")


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
            *(F.sum(name).alias(name) for name in _SUMS),
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
        *(F.sum(name).alias(name) for name in _SUMS),
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
