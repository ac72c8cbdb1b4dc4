"""Replays under several quota files beside each other: each as a whole, and whom they would hold.

Owns which of a replay's many rows a page tells; it must never know how a replay is made, nor plots
or HTML. Invariant: what is collected is bounded by the limits of the figures, and each proposal is
told, also one that holds nobody. Kafka has no counterpart.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from minibroker.pipeline.report import words
from minibroker.pipeline.report.figures import HEAT_MAX, Outcome, Proposal
from minibroker.pipeline.whatif.rows import OPEN


def compared(
    outcome: DataFrame, names: Sequence[str]
) -> tuple[tuple[Outcome, ...], tuple[Proposal, ...]]:
    """Each proposal as a whole, and under each those whom any of them holds longest."""
    whole = outcome.where((F.col("loop") == OPEN) & F.col("start_us").isNull())
    who = [F.coalesce(name, F.lit("")).alias(name) for name in ("user", "client_id", "ip")]
    each = (
        whole.groupBy("proposal", *who)
        .agg(
            *(F.sum(name).alias(name) for name in ("requests", "throttled", "throttle_ms")),
            F.max("throttle_ms_max").alias("longest_ms"),
        )
        .persist()
    )
    key = F.array("user", "client_id", "ip")
    longest = each.groupBy(key.alias("who")).agg(F.max("throttle_ms").alias("most"))
    held = longest.where("most > 0").orderBy(F.desc("most"), "who").limit(HEAT_MAX).collect()
    those = [F.array(*map(F.lit, row.who)) for row in held]
    rows = each.where(key.isin(those)).collect() if those else []
    totals = each.groupBy("proposal").agg(
        F.count("*").alias("entities"),
        F.count_if(F.col("throttled") > 0).alias("held"),
        *(F.sum(name).alias(name) for name in ("requests", "throttled", "throttle_ms")),
        F.max("longest_ms").alias("longest_ms"),
    )
    by_name = {row.proposal: Proposal(*row) for row in totals.collect()}
    each.unpersist()
    outcomes = sorted(_outcome(row) for row in rows)
    nothing = Proposal("", 0, 0, 0, 0, 0, 0)
    found = (by_name.get(name, nothing._replace(name=name)) for name in names)
    return tuple(outcomes), tuple(found)


def _outcome(row: Row) -> Outcome:
    who = f"address {row.ip}" if row.ip else words.party(row.user, row.client_id)
    return Outcome(row.proposal, who, row.requests, row.throttled, row.throttle_ms, row.longest_ms)
