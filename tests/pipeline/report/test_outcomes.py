from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.pandas.types import from_arrow_schema

from minibroker.pipeline.report.figures import HEAT_MAX, Outcome, ReportedProposal
from minibroker.pipeline.report.outcomes import compared
from minibroker.pipeline.whatif.rows import CLOSED, OPEN, OUTCOME

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def row(proposal: str, user: str, throttled: int = 0, throttle_ms: int = 0, **more: Any) -> Any:
    fields = {
        "proposal": proposal, "loop": OPEN, "broker": 1, "user": user, "client_id": "etl",
        "quota_type": "producer_byte_rate", "requests": 10, "throttled": throttled,
        "throttle_ms": throttle_ms, "throttle_ms_max": throttle_ms, **more,
    }  # fmt: skip
    return tuple(fields.get(name) for name in OUTCOME.names)


def table(spark: SparkSession, *rows: Any) -> DataFrame:
    return spark.createDataFrame(list(rows), from_arrow_schema(OUTCOME))


def test_brokers_and_quotas_of_an_entity_are_added_up(spark: SparkSession) -> None:
    outcomes, proposals = compared(
        table(
            spark,
            row("tight", "alice", 2, 300),
            row("tight", "alice", 1, 50, broker=2),
            row("tight", "alice", 2, 300, start_us=0),  # a minute of the first
            row("tight", "bob"),
            row("loose", "alice"),
            row("loose", "bob"),
            row("tight", "", 4, 70, ip="10.0.0.1", client_id=None, given_up=5),
        ),
        ["tight", "loose", "none"],
        [OPEN],
    )
    assert outcomes == (
        Outcome("loose", "alice / etl", 10, 0, 0, 0),
        Outcome("tight", "address 10.0.0.1", 10, 4, 70, 70),
        Outcome("tight", "alice / etl", 20, 3, 350, 300),
    )
    assert proposals == (
        ReportedProposal("tight", 3, 2, 40, 7, 420, 300, 5),
        ReportedProposal("loose", 2, 0, 20, 0, 0, 0, 0),
        ReportedProposal("none", 0, 0, 0, 0, 0, 0, 0),
    )


def test_open_and_closed_loop_are_reported_side_by_side(spark: SparkSession) -> None:
    outcomes, proposals = compared(
        table(
            spark,
            row("tight", "alice", 2, 300),
            row("tight", "alice", 1, 90, loop=CLOSED, late_ms=800, given_up=1),
            row("tight", "bob", 1, 10, loop=CLOSED, late_ms=20),
        ),
        ["tight", "none"],
        [OPEN, CLOSED],
    )
    assert outcomes == (
        Outcome("tight", "alice / etl", 10, 2, 300, 300),
        Outcome("tight, closed loop", "alice / etl", 10, 1, 90, 90),
        Outcome("tight, closed loop", "bob / etl", 10, 1, 10, 10),
    )
    assert proposals == (
        ReportedProposal("tight", 1, 1, 10, 2, 300, 300, 0),
        ReportedProposal("tight, closed loop", 2, 2, 20, 2, 100, 90, 1, 800),
        ReportedProposal("none", 0, 0, 0, 0, 0, 0, 0),
        ReportedProposal("none, closed loop", 0, 0, 0, 0, 0, 0, 0),
    )


def test_compared_outcomes_keep_longest_throttled(spark: SparkSession) -> None:
    crowd = [row("tight", f"u{n}", 1, 10 + n) for n in range(HEAT_MAX + 20)]
    outcomes, (total,) = compared(table(spark, *crowd), ["tight"], [OPEN])
    assert sorted(each.throttle_ms for each in outcomes) == list(range(30, 30 + HEAT_MAX))
    assert total.throttled_entities == total.entities == HEAT_MAX + 20
