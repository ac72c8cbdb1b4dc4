from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from minibroker.pipeline.errors import BadInput
from minibroker.pipeline.report import aggregate
from minibroker.pipeline.report.figures import (
    BROKERS_MAX,
    ENTITIES_MAX,
    HEAT_MAX,
    REST,
    SERIES_MAX,
    Figures,
    ReportedClient,
)
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


def figures(spark: SparkSession, events: Events, **others: Any) -> Figures:
    return aggregate.figures(table(spark, events), "/data", **others)


def many(number: int, seed: int = 1) -> Iterator[dict[str, Any]]:
    """Events of more entities and brokers than the report lists individually."""
    random = Random(seed)
    for sequence in range(number):
        who = min(int(random.paretovariate(0.7)), 200)
        yield request(
            sequence, broker=sequence % 40, user=f"u{who % 7}", client_id=f"c{who}",
            time_us=START_US + random.randrange(400_000_000), io_ns=random.randrange(10**6),
            request_bytes=random.randrange(10**5), total_ns=random.randrange(1, 10**9),
            throttle_ms=random.choice([0, 0, 0, 50]), error_code=random.choice([0, 0, 0, 3]),
        )  # fmt: skip


@pytest.fixture(scope="module")
def crowd(spark: SparkSession) -> Figures:
    return figures(spark, list(many(4000)))


def test_figures_sum_events(spark: SparkSession) -> None:
    found = figures(
        spark,
        [
            request(0, throttle_ms=30),
            request(1, error_code=3, response_bytes=None),
            request(2, user="bob", client_id="", io_ns=9000),
            connection(3, "accepted"), connection(4, "held"), connection(5, "delayed"),
            connection(6, "refused"), connection(7, "closed"),
            dropped(8, 12),
        ],
        quarantined=4,
    )  # fmt: skip
    cover = found.coverage
    assert (cover.events, cover.dropped, cover.quarantined, cover.sample) == (8, 12, 4, 1.0)
    assert (cover.first_us, cover.last_us) == (START_US, START_US + 8000)
    assert [use.who for use in found.entities] == [
        ReportedClient("bob", ""),
        ReportedClient("alice", "etl"),
    ]
    alice = found.entities[1]
    assert alice[1:8] == (2, 200, 10, 6000, 1, 30, 1)
    assert found.total[1:8] == (3, 300, 20, 16_000, 1, 30, 1)
    assert alice.p50_ms == pytest.approx(1, rel=0.02)
    assert found.entity_count == 2
    assert [tuple(each) for each in found.connections] == [(START_US // 1_000_000, 1, 2, 1, 1)]
    assert [(cell.who, cell.throttled, cell.throttle_ms) for cell in found.heat] == [
        (ReportedClient("alice", "etl"), 1, 30)
    ]
    assert {(point.who, point.requests) for point in found.points} == {
        (ReportedClient("alice", "etl"), 2), (ReportedClient("bob", ""), 1),
    }  # fmt: skip


def test_throttle_counts_in_every_slot_it_spans(spark: SparkSession) -> None:
    start_ms = START_US // 1000
    found = figures(
        spark,
        [
            request(0, throttle_ms=2500),
            request(1, time_us=START_US + 1_900_000, throttle_ms=200, sample=0.5),
            request(2, time_us=START_US + 3_000_000, throttle_ms=60_000),
            request(3, time_us=START_US + 3_500_000),
        ],
    )
    assert found.step_s == 1
    assert [(c.start_s * 1000 - start_ms, c.throttled, c.throttle_ms) for c in found.heat] == [
        (0, 1, 1000), (1000, 3, 1200), (2000, 3, 700), (3000, 1, 1000),
    ]  # fmt: skip
    assert found.total.throttle_ms == 62_900


def test_sampled_events_are_scaled_up(spark: SparkSession) -> None:
    events = [request(0, sample=0.5), request(1, sample=0.25), connection(2, "closed", sample=0.5)]
    found = figures(spark, events)
    assert (found.total.requests, found.total.bytes_in) == (6, 600)
    assert found.coverage.sample == 0.25
    assert found.connections[0].closed == 2


def test_entities_beyond_limit_are_summed_in_rest(crowd: Figures) -> None:
    events, found = list(many(4000)), crowd
    assert len(found.entities) == ENTITIES_MAX + 1
    assert found.entities[-1].who == REST
    assert found.entity_count == len({(each["user"], each["client_id"]) for each in events})
    for of in (found.entities, found.points):
        assert sum(each.requests for each in of) == len(events)
        assert sum(each.bytes_in for each in of) == sum(each["request_bytes"] for each in events)
    assert len({point.who for point in found.points}) == SERIES_MAX + 1
    assert len({cell.who for cell in found.heat}) == HEAT_MAX
    assert len(found.coverage.brokers) == BROKERS_MAX < found.coverage.broker_count == 40
    worked = [use.worked_ns for use in found.entities[:-1]]
    assert worked == sorted(worked, reverse=True)


def test_percentiles_are_within_two_percent_of_the_sorted_ones(crowd: Figures) -> None:
    took = sorted(each["total_ns"] / 1e6 for each in many(4000))
    total = crowd.total
    for estimate, quantile in ((total.p50_ms, 0.5), (total.p95_ms, 0.95), (total.p99_ms, 0.99)):
        assert estimate == pytest.approx(took[int(quantile * len(took)) - 1], rel=0.02)


def test_result_is_independent_of_batch_cuts(spark: SparkSession, crowd: Figures) -> None:
    events = list(many(4000))
    Random(2).shuffle(events)
    cut = table(spark, events).repartition(7)
    assert aggregate.figures(cut, "/data") == crowd


def test_request_without_names_is_not_counted_as_rest(spark: SparkSession) -> None:
    rows = aggregate.by_slot(table(spark, [request(0, user=None, client_id=None)]), 60).collect()
    assert [(row.user, row.client_id) for row in rows] == [("", "")]


def test_table_of_connections_has_no_request(spark: SparkSession) -> None:
    found = figures(spark, [connection(0, "accepted")])
    assert [*found.entities, *found.points, *found.latency, *found.heat] == []
    assert found.total.requests == 0


def test_table_without_events_is_rejected(spark: SparkSession) -> None:
    with pytest.raises(BadInput, match="contains no events"):
        figures(spark, [])


def test_percentiles_without_values_are_none() -> None:
    assert aggregate.percentiles({}) == (0, 0, 0)
