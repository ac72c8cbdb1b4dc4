"""Recommended quotas: rates averaged as in a broker, and the quota of each entity."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.quotas.command_lines import parse, render
from minibroker.broker.quotas.rate import Rate
from minibroker.broker.quotas.types import CONNECTION_CREATION_RATE
from minibroker.pipeline.activity_table import Function, scan_frame
from minibroker.pipeline.quota_amounts import (
    CLIENT,
    MUTATION,
    PRODUCE,
    REQUEST,
    USER,
    USER_AND_CLIENT,
)
from minibroker.pipeline.recommend import (
    BrokerNeed,
    Policy,
    QuotaDecision,
    Recommendation,
    decision,
    head,
    level_of_clients,
    observed,
    quota_lines,
    recommend,
    rounded_to_set,
    valued,
)
from tests.pipeline.duckdb_queries import USER_RATES
from tests.pipeline.sample_events import (
    Event,
    connection,
    dropped,
    fetched,
    frame,
    many,
    parquet,
    produced,
    request,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def idle(seconds: float, user: str, size: int, **more: object) -> Event:
    """Bytes alone: no time is worked."""
    return produced(seconds, user, "c", size, checked_ns=0, late_ns=0, **more)


def rates(spark: SparkSession, events: list[Event], policy: Policy) -> DataFrame:
    """The rates of users and addresses."""
    return observed(partial(scan_frame, frame(spark, events)), USER, policy, len(events))


def test_recommended_quota_covers_busiest_broker(spark: SparkSession) -> None:
    events = [
        *(idle(at, "heavy", 1_000_000) for at in range(100)),
        *(idle(at, "heavy", 2_000_000, broker=2) for at in range(100)),
        *(idle(at, "light", 10) for at in range(100)),
        *(idle(at, "brief", 5_000_000) for at in range(5)),
        *(connection(at, "10.0.0.7") for at in range(100) for _ in range(20)),
        dropped(3, 5),
    ]
    policy = Policy(default_busy_min=5)
    found = recommend(rates(spark, events, policy), USER, policy)
    by_quota: dict[str, list[QuotaDecision]] = {}
    for each in found.decided:
        by_quota.setdefault(each.quota, []).append(each)
    heavy, default = by_quota[PRODUCE]
    assert (heavy.user, heavy.client_id, heavy.ip) == ("heavy", None, None)
    assert (heavy.usual, heavy.most, heavy.busy_s, heavy.value) == (2e6, 2e6, 100, 2.5e6)
    # Entities seen too briefly have the default, which is made for the largest of them.
    assert (default.is_default, default.user, default.entities) == (True, "brief", 2)
    assert default.usual == pytest.approx(2.5e6, rel=0.02)
    assert default.value == default.usual * 1.25
    # An entity with a quota needs its quota; the others are not expected to use the whole default.
    assert found.together[PRODUCE].needed == heavy.value + default.value + 12.5
    assert found.together[PRODUCE].entities == 3
    assert REQUEST not in by_quota
    [ip] = by_quota[CONNECTION_CREATION_RATE]
    assert (ip.ip, ip.user, ip.value) == ("10.0.0.7", None, 25)
    assert default.busy_s == 5
    [ips] = found.omitted
    assert (ips.quota, ips.entities, ips.busy_s) == (CONNECTION_CREATION_RATE, 0, 0)


def test_events_are_read_once(spark: SparkSession) -> None:
    events = [idle(at, f"user {at % 5}", 1000) for at in range(100)]
    read = spark.sparkContext.accumulator(0)

    def scan(function: Function, ddl: str) -> DataFrame:
        def counted(tables: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
            for table in tables:
                read.add(len(table))
                yield from function([table])

        return scan_frame(frame(spark, events), counted, ddl)

    recommend(observed(scan, USER, Policy(), len(events)), USER, Policy())
    assert read.value == len(events)


def test_busy_entities_get_own_quota_and_others_default(spark: SparkSession) -> None:
    columns = "broker int, quota string, user string, client_id string, ip string, busy_s long"
    rows: list[tuple[object, ...]] = [
        (1, PRODUCE, "big", None, None, 99, 1e6, 2e6, 1.0),
        (2, PRODUCE, "big", None, None, 50, 3e6, 3e6, 2.0),
        (1, PRODUCE, "middling", None, None, 60, 40_000.0, 50_000.0, 0.0),
        (1, PRODUCE, "small", None, None, 60, 1.0, 1.0, 0.0),
        (1, PRODUCE, "brief", None, None, 59, 60_000.0, 2e6, 0.0),
        (1, REQUEST, "two\nlines", None, None, 99, 40.0, 50.0, 0.0),
        (1, REQUEST, "small", None, None, 99, 0.1, 0.1, 0.0),
    ]
    seen = spark.createDataFrame(rows, f"{columns}, usual double, most double, throttled double")
    policy = Policy(at_least={PRODUCE: 45_000}, at_most={PRODUCE: 900_000})
    found = {
        (row.quota, row.user): (row.own, row.value, row.usual, row.busy_s, row.throttled)
        for row in valued(seen, policy).collect()
    }
    assert found == {
        # The maximum at any broker, limited by the policy.
        (PRODUCE, "big"): (True, 900_000, 3e6, 99, 3),
        (PRODUCE, "middling"): (True, 50_000, 40_000, 60, 0),
        # The others share the need of their largest.
        (PRODUCE, "small"): (False, 75_000, 1, 60, 0),
        (PRODUCE, "brief"): (False, 75_000, 60_000, 59, 0),
        # A line can't hold this name, however large.
        (REQUEST, "two\nlines"): (False, 50, 40, 99, 0),
        (REQUEST, "small"): (False, 50, 0.1, 99, 0),
    }


def test_fitting_level_is_user_if_any_client_authenticates(spark: SparkSession) -> None:
    anonymous = [request(0, "ANONYMOUS", "c")]
    assert level_of_clients(frame(spark, anonymous)) == CLIENT
    assert level_of_clients(frame(spark, [*anonymous, request(0, "alice", "c")])) == USER


def test_recommended_quota_does_not_throttle_steady_user(spark: SparkSession) -> None:
    """With the broker's own arithmetic, for steady users of all kinds of intervals and sizes."""
    chance = Random(5)
    steady = {
        f"u{number}": (round(10 ** chance.uniform(-1.7, 0.6), 3), chance.randrange(10**3, 10**6))
        for number in range(12)
    }
    events = [
        idle(turn * every_s, user, size)
        for user, (every_s, size) in steady.items()
        for turn in range(int(min(90 / every_s, 1200)))
    ]
    policy = Policy(busy_min=1, at_least={PRODUCE: 1})
    found = valued(rates(spark, events, policy), policy).collect()
    bounds = {row.user: row.value for row in found}
    assert set(bounds) == set(steady)
    for user, (every_s, size) in steady.items():
        rate = Rate(11, 1000)
        for turn in range(1000):
            now_ms = int(turn * every_s * 1000)
            rate.record(size, now_ms)
            assert rate.throttle_ms(bounds[user], now_ms, 10**9) == 0, (user, every_s, turn)


def test_duckdb_observes_the_same(spark: SparkSession, tmp_path: Path) -> None:
    events = list(many(3_000, seed=3))
    path = parquet(tmp_path / "events.parquet", events)
    events_cut = spark.read.parquet(str(path)).repartition(64)
    seen = observed(partial(scan_frame, events_cut), USER, Policy(), len(events))
    ours = {
        (row.broker, row.user, row.ip, row.quota): (row.busy_s, row.usual, row.most, row.throttled)
        for row in seen.collect()
    }
    connected = duckdb.connect(config={"threads": 1})
    given = {"path": str(path), "share": 0.99}
    theirs = {
        (broker, user, ip, quota): tuple(figures)
        for broker, user, _, ip, quota, *figures in connected.execute(USER_RATES, given).fetchall()
    }
    assert ours.keys() == theirs.keys()
    for key, figures in ours.items():
        assert figures == pytest.approx(theirs[key], rel=1e-12), key


def test_second_with_only_throttled_fetch_is_busy(spark: SparkSession) -> None:
    look = {"user": "u", "client_id": "", "rate": 9.0, "bound": 8.0, "throttle_ms": 30}
    events = [
        fetched(0, "u", "c", 1000, checked_ns=0, late_ns=0),
        fetched(5, "u", "c", 1000, checked_ns=0, late_ns=0, throttle_ms=30, fetch=look),
    ]
    [one] = rates(spark, events, Policy()).collect()
    assert (one.busy_s, one.throttled, one.most) == (2, 1, 100)


# The quota file ----------------------------------------------------------------------------------

PLAIN = QuotaDecision(
    PRODUCE, "alice", None, None, False, 1, 3412, 838_860.0, 1.2e6, 0, 1_048_575.0
)


def fits(quota: str) -> BrokerNeed:
    return BrokerNeed(quota, 1.0, 1)


def test_recommended_quota_states_its_figures() -> None:
    value, reason = decision(PLAIN, fits(PRODUCE), Policy())
    assert value == 1_050_000
    assert reason == (
        "producer_byte_rate 1.05 MB/s: at most 839 kB/s in 99 % of 3,412 busy seconds (maximum"
        " 1.2 MB/s), plus 25 % headroom"
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"value": 2e6}, "; 2 MB/s is the minimum for any entity"),
        ({"value": 500_000.0}, "; 500 kB/s is the maximum for any entity"),
        ({"throttled": 12.0}, "; 12 requests were throttled, so the demand may be higher"),
        (
            {"quota": CONNECTION_CREATION_RATE, "throttled": 12.0},
            "; 12 connections were throttled, so the demand may be higher",
        ),
        (
            {"quota": CONNECTION_CREATION_RATE, "throttled": 1.0},
            "; 1 connection was throttled, so the demand may be higher",
        ),
        (
            {"is_default": True, "entities": 7},
            "for 7 entities with too little usage for a quota of their own, the largest of which",
        ),
        ({"is_default": True, "entities": 0}, "for entities that were not recorded"),
    ],
)
def test_decision_reports_its_reason(given: dict[str, Any], expected: str) -> None:
    assert expected in decision(PLAIN._replace(**given), fits(PRODUCE), Policy())[1]


def test_quotas_exceeding_broker_capacity_are_scaled_down() -> None:
    busy = PLAIN._replace(quota=REQUEST, usual=400.0, most=420.0, value=500.0)
    value, reason = decision(busy, BrokerNeed(REQUEST, 1000, 9), Policy(workers=8))
    assert value == 400
    assert reason.endswith(
        "; scaled to 80 %, because 9 at one broker need 1,000 % together, and its capacity is 800 %"
    )
    assert decision(busy, BrokerNeed(REQUEST, 800, 9), Policy(workers=8))[0] == 500
    bytes_in = BrokerNeed(PRODUCE, 4e6, 9)
    assert decision(PLAIN, bytes_in, Policy())[0] == 1_050_000
    assert decision(PLAIN, bytes_in, Policy(bytes_per_second=1e6))[0] == 262_000


@pytest.mark.parametrize(
    ("quota", "value", "up", "down"),
    [
        (PRODUCE, 1234.0, 1240, 1230),
        (PRODUCE, 12.3, 13, 12),
        (PRODUCE, 0.2, 1, 1),
        (PRODUCE, 65_536.0, 65_536, 65_536),
        (PRODUCE, 9_999.0, 10_000, 9990),
        (REQUEST, 12.3456, 12.4, 12.3),
        (MUTATION, 0.0123456, 0.0124, 0.0123),
        (CONNECTION_CREATION_RATE, 20.1, 21, 20),
    ],
)
def test_quota_has_three_digits(quota: str, value: float, up: float, down: float) -> None:
    assert rounded_to_set(quota, value, Policy(), up=True) == up
    assert rounded_to_set(quota, value, Policy(), up=False) == down


@given(st.floats(0.001, 1e15), st.sampled_from([PRODUCE, REQUEST, MUTATION]), st.booleans())
def test_rounded_quota_never_crosses_its_bound(value: float, quota: str, up: bool) -> None:
    policy = dataclasses.replace(Policy(), at_most={quota: 1e12})
    found = rounded_to_set(quota, min(value, 1e12), policy, up=up)
    assert 0 < found <= 1e12
    if up:
        assert found >= min(value, 1e12)
    elif quota != PRODUCE or value >= 1:
        assert found <= value
        assert found >= value * 0.98 or quota == PRODUCE or value > 1e12


def recommended(level: str, *decided: QuotaDecision) -> Recommendation:
    together = {each.quota: fits(each.quota) for each in decided}
    return Recommendation(level, decided, together, Policy())


def test_file_has_a_line_for_each_entity_and_defaults_last() -> None:
    time = PLAIN._replace(quota=REQUEST, usual=10.0, most=11.0, value=12.5)
    default = PLAIN._replace(is_default=True, user="bob", entities=3)
    ip = PLAIN._replace(quota=CONNECTION_CREATION_RATE, user=None, ip="10.0.0.7", value=25.0)
    found = recommended(USER, default, PLAIN, time, ip)
    text = render(quota_lines(found), head(found, "activity"))
    assert text.startswith("# Quotas by `minibroker pipeline recommend` from activity.\n")
    assert [line for line in text.splitlines() if line.startswith("--")] == [
        (
            "--alter --entity-type users --entity-name alice --add-config "
            "producer_byte_rate=1050000,request_percentage=12.5"
        ),
        "--alter --entity-type ips --entity-name 10.0.0.7 --add-config connection_creation_rate=25",
        "--alter --entity-type users --entity-default --add-config producer_byte_rate=1050000",
    ]
    alice, _, _ = parse(text, "f").lines
    assert [reason.split()[0] for reason in alice.reason] == [PRODUCE, REQUEST]


def test_head_reports_differing_mutation_window() -> None:
    found = recommended(USER, PLAIN)
    assert "over 10 seconds." in "\n".join(head(found, "activity"))
    other = found._replace(policy=Policy(mutation_window_num=3, mutation_window_s=20))
    expected = "over 10 seconds, controller mutations over 40 seconds."
    assert expected in "\n".join(head(other, "activity"))


def test_each_level_has_its_types() -> None:
    client = PLAIN._replace(user=None, client_id="etl")
    [line] = quota_lines(recommended(CLIENT, client))
    assert line.entities == (("clients",), ("etl",))
    both = PLAIN._replace(client_id="etl")
    [line] = quota_lines(recommended(USER_AND_CLIENT, both))
    assert line.entities == (("users", "clients"), ("alice", "etl"))
    [line] = quota_lines(recommended(USER_AND_CLIENT, both._replace(is_default=True)))
    assert line.entities == (("users", "clients"), ("", ""))
