"""Recommended quotas: rates averaged as in a broker, and the quota of each entity."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import duckdb
import pytest

from minibroker.pipeline.quota_units import CLIENT, MUTATION, PRODUCE, REQUEST, USER
from minibroker.pipeline.recommend import (
    Policy,
    QuotaDecision,
    level_of_clients,
    observed,
    rates,
    recommend,
    valued,
)
from minibroker.quotas.rate import Rate
from minibroker.quotas.types import CONNECTION_CREATION_RATE
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
    from pyspark.sql import SparkSession


def idle(seconds: float, user: str, size: int, **more: object) -> Event:
    """Bytes alone: no time is worked."""
    return produced(seconds, user, "c", size, checked_ns=0, late_ns=0, **more)


def test_rate_is_that_of_ten_or_eleven_seconds(spark: SparkSession) -> None:
    sizes = {0: 1000, 1: 500, 10: 200, 25: 70}
    events = [idle(at, "u", size) for at, size in sizes.items()]
    found = {
        row.second % 60: row.rate
        for row in rates(frame(spark, events), USER, Policy())
        .where(f"quota = '{PRODUCE}'")
        .collect()
    }
    # At 10 s: 700 bytes in ten seconds, but 1700 in eleven. In thousandths, of three digits.
    assert found == {0: 100_000, 1: 150_000, 10: 155_000, 25: 7_000}


def test_rate_is_over_the_windows_that_a_broker_is_set_to(spark: SparkSession) -> None:
    events = [idle(at, "u", size) for at, size in {0: 1000, 1: 500, 3: 250, 5: 60}.items()]
    policy = Policy(window_num=3, window_s=2)
    seen = rates(frame(spark, events), USER, policy).where(f"quota = '{PRODUCE}'").collect()
    # At 3 s: 1750 bytes in four seconds. At 5 s: 310 in four, but 1810 in six.
    assert {row.second % 60: row.rate for row in seen} == {
        0: 250_000, 1: 375_000, 3: 438_000, 5: 302_000
    }  # fmt: skip
    assert Policy(window_num=1).windows_s(PRODUCE) == (1, 1)


def test_changes_of_topics_have_windows_of_their_own(spark: SparkSession) -> None:
    changed = {0: 60, 7: 12, 30: 6}
    events = [
        request(at, "u", "c", mutations=number, mutations_refused=0, checked_ns=0, late_ns=0)
        for at, number in changed.items()
    ]
    events += [idle(at, "u", 1000) for at in changed]

    def rates_of(quota: str, policy: Policy) -> dict[int, int]:
        seen = rates(frame(spark, events), USER, policy).where(f"quota = '{quota}'")
        return {row.second % 60: row.rate for row in seen.collect()}

    policy = Policy(mutation_window_num=3, mutation_window_s=3)
    # At 7 s: 12 in six seconds, but 72 in nine.
    assert rates_of(MUTATION, policy) == {0: 10_000, 7: 8_000, 30: 1_000}
    assert rates_of(MUTATION, Policy()) == {0: 6_000, 7: 7_200, 30: 600}
    assert rates_of(PRODUCE, policy) == rates_of(PRODUCE, Policy()) == {
        0: 100_000, 7: 200_000, 30: 100_000,
    }  # fmt: skip


def test_recommended_quota_covers_busiest_broker(spark: SparkSession) -> None:
    events = [
        *(idle(at, "heavy", 1_000_000) for at in range(100)),
        *(idle(at, "heavy", 2_000_000, broker=2) for at in range(100)),
        *(idle(at, "light", 10) for at in range(100)),
        *(idle(at, "brief", 5_000_000) for at in range(5)),
        *(connection(at, "10.0.0.7") for at in range(100) for _ in range(20)),
        dropped(3, 5),
    ]
    found = recommend(frame(spark, events), USER, Policy(default_busy_min=5))
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
    found = valued(observed(rates(frame(spark, events), USER, policy), policy), policy).collect()
    bounds = {row.user: row.value for row in found}
    assert set(bounds) == set(steady)
    for user, (every_s, size) in steady.items():
        rate = Rate(11, 1000)
        for turn in range(1000):
            now_ms = int(turn * every_s * 1000)
            rate.record(size, now_ms)
            assert rate.throttle_ms(bounds[user], now_ms, 10**9) == 0, (user, every_s, turn)


ORACLE = """
with event as (
  select broker, user, sample, time_us // 1000000 as second, throttle_ms, api_key, exempt,
    request_bytes, response_bytes, checked_ns, late_ns, mutations, mutations_refused, kind
  from read_parquet($path) where kind = 'request'),
part as (
  select broker, user, second, 'producer_byte_rate' as quota, request_bytes / sample as amount, 1
    as unit from event where api_key = 0
  union all select broker, user, second, 'consumer_byte_rate',
    case when throttle_ms > 0 then 0 else response_bytes + 4 end / sample, 1
    from event where api_key = 1 and not exempt
  union all select broker, user, second, 'request_percentage', (checked_ns + late_ns) / sample, 1e7
    from event where not exempt
  union all select broker, user, second, 'controller_mutation_rate',
    (mutations - mutations_refused) / sample, 1 from event where mutations is not null),
summed as (
  select broker, user, quota, second, unit, sum(round(amount)) as amount from part
  group by all having sum(round(amount)) > 0),
averaged as (
  select one.broker, one.user, one.quota, one.second, one.unit, greatest(
    sum(other.amount) filter (one.second - other.second < 10) / 10, sum(other.amount) / 11) as rate
  from summed as one join summed as other
    on one.broker = other.broker and one.user = other.user and one.quota = other.quota
      and one.second - other.second between 0 and 10
  group by all)
select broker, user, quota, count(*), quantile_cont(rate, 0.99) / any_value(unit),
  max(rate) / any_value(unit)
from averaged group by broker, user, quota
"""


def test_duckdb_observes_the_same(spark: SparkSession, tmp_path: Path) -> None:
    events = [event for event in many(3_000, seed=3) if not is_held_fetch(event)]
    path = parquet(tmp_path / "events.parquet", events)
    events_cut = spark.read.parquet(str(path)).repartition(64)
    seen = observed(rates(events_cut, USER, Policy()), Policy()).where("user is not null")
    ours = {
        (row.broker, row.user, row.quota): (row.busy_s, row.usual, row.most)
        for row in seen.collect()
    }
    connected = duckdb.connect(config={"threads": 1})
    theirs = {row[:3]: row[3:] for row in connected.execute(ORACLE, {"path": str(path)}).fetchall()}
    assert ours.keys() == theirs.keys()
    for key, (busy_s, usual, most) in ours.items():
        assert busy_s == theirs[key][0]
        # Rates are of three digits.
        assert usual == pytest.approx(theirs[key][1], rel=0.0051)
        assert most == pytest.approx(theirs[key][2], rel=0.0051)


def is_held_fetch(event: Event) -> bool:
    """A second in which there was nothing but such ones is busy, too."""
    return event["api_key"] == 1 and bool(event["throttle_ms"])


def test_second_with_only_throttled_fetch_is_busy(spark: SparkSession) -> None:
    look = {"user": "u", "client_id": "", "rate": 9.0, "bound": 8.0, "throttle_ms": 30}
    events = [
        fetched(0, "u", "c", 1000, checked_ns=0, late_ns=0),
        fetched(5, "u", "c", 1000, checked_ns=0, late_ns=0, throttle_ms=30, fetch=look),
    ]
    [one] = observed(rates(frame(spark, events), USER, Policy()), Policy()).collect()
    assert (one.busy_s, one.throttled, one.most) == (2, 1, 100)
