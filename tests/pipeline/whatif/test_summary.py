from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.pandas.types import from_arrow_schema

from minibroker.pipeline.whatif.rows import OUTCOME
from minibroker.pipeline.whatif.summary import summary

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


US = 1_700_000_000_000_000


def row(proposal: str, user: str, throttle_ms: int, loop: str = "open", **more: Any) -> list[Any]:
    values = {
        "proposal": proposal, "loop": loop, "broker": 1, "user": user, "client_id": "app",
        "quota_type": "producer_byte_rate", "bound": 1024.0, "requests": 100,
        "throttled": min(throttle_ms, 7), "throttle_ms": throttle_ms,
        "throttle_ms_max": throttle_ms,
        "first_us": US if throttle_ms else None, "last_us": US if throttle_ms else None, **more,
    }  # fmt: skip
    return [values.get(name) for name in OUTCOME.names]


def test_summary_reports_and_compares_every_proposal(spark: SparkSession) -> None:
    rows = [
        row("tight", "alice", 60_000), row("tight", "alice", 60_000, broker=2),
        row("tight", "bob", 0), row("wide", "alice", 0),
        row("tight", "alice", 30_000, "closed", late_ms=90_000, given_up=3),
    ]  # fmt: skip
    outcome = spark.createDataFrame([tuple(one) for one in rows], from_arrow_schema(OUTCOME))
    lines = list(summary(outcome, ["tight", "wide", "none"], ["open", "closed"]))
    text = "\n".join(lines)
    assert "tight: throttles 1 of the 2 senders that it limits, 14 times, 2 min in total" in text
    assert "tight, closed loop: throttles 1 of the 1 sender that it limits, 7 times, 30 s" in text
    assert "its last request ends 1 min 30 s later" in text
    assert "3 requests or connections would never have been served" in text
    assert "wide: throttles none of the 1 sender that it limits" in text
    assert "none: limits none of the recorded senders" in text
    (compared,) = [line for line in lines[-2:] if "alice / app" in line]
    assert "2 min" in compared
    assert "30 s" in compared
