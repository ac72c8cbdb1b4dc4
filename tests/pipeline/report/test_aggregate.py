from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from minibroker.broker.quotas.command_lines import parse
from minibroker.pipeline.activity_table import scan_frame
from minibroker.pipeline.errors import BadInput
from minibroker.pipeline.report import aggregate
from minibroker.pipeline.report.aggregate import compared, fits
from minibroker.pipeline.report.figures import (
    BROKERS_MAX,
    ENTITIES_MAX,
    HEAT_MAX,
    REST,
    SERIES_MAX,
    Figures,
    Outcome,
    ReportedClient,
    ReportedProposal,
)
from minibroker.pipeline.whatif.rows import CLOSED, OPEN, OUTCOME
from tests.pipeline.report.sample_events import (
    START_US,
    Events,
    check,
    connection,
    dropped,
    request,
    table,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from minibroker.pipeline.report.figures import Fit


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


# Quotas and usage --------------------------------------------------------------------------------

FILE = """
# 99 % of busy seconds
# and a quarter more
--alter --user alice --add-config producer_byte_rate=2000
--alter --user alice --client etl --add-config producer_byte_rate=500,request_percentage=50
--alter --ip 10.0.0.1 --add-config connection_creation_rate=10
--alter --user nobody --add-config producer_byte_rate=1
--alter --user-defaults --add-config producer_byte_rate=1
"""


def fits_of(activity: DataFrame, text: str) -> tuple[tuple[Fit, ...], int]:
    return fits(activity, parse(text, "recommended"), partial(scan_frame, activity), 100)


def test_fit_pairs_quota_with_observed_rates(spark: SparkSession) -> None:
    seen = [
        request(second * 1000, api_key=0, exempt=False, request_bytes=1000,
                produce=check(user="alice", rate=1.0, bound=4000.0 + second))
        for second in range(30)
    ]  # fmt: skip
    come = [connection(second * 1000, "accepted", ip="10.0.0.1") for second in range(30)]
    found, count = fits_of(table(spark, [*seen, *come]), FILE)
    assert count == 5
    assert [(fit.entity, fit.key) for fit in found] == [
        ("user alice, client etl", "producer_byte_rate"),
        ("user alice", "producer_byte_rate"),
        ("address 10.0.0.1", "connection_creation_rate"),
        ("user alice, client etl", "request_percentage"),
    ]
    alice = found[1]
    assert (alice.recommended, alice.in_force) == (2000, 4029)
    assert alice.reason == "99 % of busy seconds and a quarter more"
    # A broker's average over eleven seconds, or the ten before, with these bytes in each.
    assert (alice.p50, alice.p99, alice.most) == pytest.approx((1000, 1000, 1000))
    assert found[0].in_force is None
    assert found[2].most == pytest.approx(1)


def test_fits_of_default_quotas_are_empty(spark: SparkSession) -> None:
    text = "--alter --user-defaults --add-config producer_byte_rate=1\n"
    assert fits_of(table(spark, []), text) == ((), 0)


# Replays -----------------------------------------------------------------------------------------


def row(proposal: str, user: str, throttled: int = 0, throttle_ms: int = 0, **more: Any) -> Any:
    fields = {
        "proposal": proposal, "loop": OPEN, "broker": 1, "user": user, "client_id": "etl",
        "quota_type": "producer_byte_rate", "requests": 10, "throttled": throttled,
        "throttle_ms": throttle_ms, "throttle_ms_max": throttle_ms, **more,
    }  # fmt: skip
    return tuple(fields.get(name) for name in OUTCOME.names)


def outcome_table(spark: SparkSession, *rows: Any) -> DataFrame:
    return spark.createDataFrame(list(rows), from_arrow_schema(OUTCOME))


def test_brokers_and_quotas_of_an_entity_are_added_up(spark: SparkSession) -> None:
    outcomes, proposals = compared(
        outcome_table(
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
        outcome_table(
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
    outcomes, (total,) = compared(outcome_table(spark, *crowd), ["tight"], [OPEN])
    assert sorted(each.throttle_ms for each in outcomes) == list(range(30, 30 + HEAT_MAX))
    assert total.throttled_entities == total.entities == HEAT_MAX + 20
