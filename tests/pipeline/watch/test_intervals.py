from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from minibroker.pipeline.watch import intervals as module
from minibroker.pipeline.watch.intervals import by_interval, intervals
from minibroker.pipeline.watch.rules import Checked, ClientUsage, WatchInterval, WatchLimits
from tests.pipeline.report import sample_events
from tests.pipeline.report.sample_events import (
    START_US,
    Events,
    connection,
    dropped,
    request,
    table,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START_S = START_US // 1_000_000


def check(rate: float, bound: float | None, throttled_ms: int = 0, user: str = "alice") -> Any:
    return sample_events.check(rate=rate, bound=bound, throttle_ms=throttled_ms, user=user)


def seen(spark: SparkSession, found: Events) -> list[WatchInterval]:
    return intervals(by_interval(table(spark, found), 10, 10), WatchLimits(over=0.8))


def test_interval_sums_its_events(spark: SparkSession) -> None:
    found = seen(
        spark,
        [
            request(0, queue_ns=500, produce=check(900.0, 1000.0)),
            request(1, produce=check(1500.0, 1000.0, 120), request=check(1.0, 25.0)),
            request(2, produce=check(700.0, 2000.0, 5)),
            request(3, user="bob", client_id=None, mutation=check(-3.0, 5.0, 40, "bob")),
            request(4, user="bob", produce=check(99.0, None, user="bob")),
            connection(5, "accepted"),
            dropped(6, 4), dropped(7, 5),
            request(10_000, user="carol"),
        ],
    )  # fmt: skip
    assert [each.start_s for each in found] == [START_S, START_S + 10]
    first, second = found
    assert first.checked == [
        # The bound is the last one, the rate and the hold the largest.
        Checked(1, "alice", "", "producer_byte_rate", 1500.0, 2000.0, 2, 120),
        Checked(1, "bob", "", "controller_mutation_rate", None, 5.0, 1, 40),
    ]
    assert first.parties == [
        ClientUsage(1, "alice", "etl", 3, 9000, 330, 9500),
        ClientUsage(1, "bob", "", 1, 3000, 110, 3000),
        ClientUsage(1, "bob", "etl", 1, 3000, 110, 3000),
    ]
    assert first.totals == {1: ClientUsage(1, "", "", 5, 15_000, 550, 15_500)}
    assert first.dropped == {1: 9}
    assert (second.checked, second.dropped) == ([], {})


def test_interval_with_many_entities_is_bounded(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHECKED_MAX", 5)
    monkeypatch.setattr(module, "NEIGHBOURS_MAX", 3)
    crowd = [
        request(n, broker=n % 2, user=f"u{n}", io_ns=1000 * n, request_bytes=10_000 - n,
                produce=check(900.0 + n, 1000.0, user=f"u{n}"))
        for n in range(40)
    ]  # fmt: skip
    (found,) = seen(spark, crowd)
    assert sorted(each.user for each in found.checked) == [f"u{n}" for n in range(35, 40)]
    by_broker = [each.user for each in found.parties if each.broker == 0]
    assert sorted(by_broker) == ["u0", "u2", "u34", "u36", "u38", "u4"]
    assert {broker: total.requests for broker, total in found.totals.items()} == {0: 20, 1: 20}
