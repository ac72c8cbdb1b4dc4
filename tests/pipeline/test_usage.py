"""Usage: calculated by hand, the same however it is split, and as read by DuckDB."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

from minibroker.pipeline import usage as jobs
from minibroker.pipeline.quota_units import FETCH, MUTATION, PRODUCE, REQUEST
from minibroker.pipeline.scan import scan_files
from tests.pipeline.duckdb_usage import ORACLE
from tests.pipeline.sample_events import (
    START_S,
    check,
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

Row = dict[str, Any]


def rows(found: DataFrame, **wanted: Any) -> list[Row]:
    """Those that have these values, in the order of their intervals."""
    every = [row.asDict() for row in found.orderBy("start").collect()]
    return [row for row in every if all(row[name] == value for name, value in wanted.items())]


def test_columns_match_the_documentation(spark: SparkSession) -> None:
    found = jobs.usage(frame(spark, [request(0, "u", "c")]), 60)
    assert [(field.name, field.dataType.simpleString()) for field in found.schema] == [
        (column.name, column.type) for column in jobs.COLUMNS
    ]


def test_guide_documents_every_column() -> None:
    guide = (Path(__file__).parents[2] / "docs/guides/pipeline.md").read_text("utf-8")
    for name, kind, unit, meaning in jobs.COLUMNS:
        assert f"| `{name}` | {kind} | {unit} | {meaning} |" in guide


def test_request_counts_for_each_quota_on_each_level(spark: SparkSession) -> None:
    events = [
        produced(1, "u", "c", 1000, checked_ns=3_000_000, late_ns=1_000_000),
        produced(59.999999, "u", "c", 500, error_code=6, checked_ns=0, late_ns=0),
        produced(60, "u", "d", 70),
        fetched(2, "v", "", 304),
    ]
    found = jobs.usage(frame(spark, events), 60)
    first, later = rows(found, level="user", user="u", quota=PRODUCE)
    assert (first["used"], first["rate"], first["requests"], first["errors"]) == (1500, 25, 2, 1)
    assert (first["start"].timestamp(), later["start"].timestamp()) == (START_S, START_S + 60)
    assert (later["used"], first["seconds"], first["client_id"], first["ip"]) == (
        70,
        60,
        None,
        None,
    )
    [both] = rows(found, level="user+client", client_id="c", quota=REQUEST)
    assert (both["used"], both["user"], both["events"]) == (0.4, "u", 2)
    [client] = rows(found, level="client", client_id="d", quota=PRODUCE)
    assert (client["used"], client["user"]) == (70, None)
    [fetches] = rows(found, level="user", quota=FETCH)
    assert (fetches["user"], fetches["used"]) == ("v", 304)
    assert {row["client_id"] for row in rows(found, level="client")} == {"c", "d"}
    assert sum(row["used"] for row in rows(found, level="broker", quota=PRODUCE)) == 1570
    assert not rows(found, level="ip")


def test_usage_excludes_amounts_without_quota(spark: SparkSession) -> None:
    events = [
        produced(1, "u", "c", 1000, exempt=True),
        fetched(1, "follower", "c", 500, exempt=True),
        fetched(2, "u", "c", 400, throttle_ms=20),
        request(3, "u", "c", mutations=5, mutations_refused=2),
        request(4, "u", "c", checked_ns=None, late_ns=None),
    ]
    found = jobs.usage(frame(spark, events), 60)
    of_user = {row["quota"]: row for row in rows(found, level="user", user="u")}
    assert of_user[PRODUCE]["used"] == 1000
    assert (of_user[FETCH]["used"], of_user[FETCH]["requests"]) == (0, 1)
    assert of_user[MUTATION]["used"] == 3
    assert of_user[REQUEST]["requests"] == 3
    assert of_user[REQUEST]["used"] == pytest.approx(0.3)
    assert not rows(found, user="follower")


def test_throttle_row_uses_level_that_throttled(
    spark: SparkSession,
) -> None:
    events = [
        produced(1, "u", "c", 10, produce=check("u", "", rate=90.0, bound=80.0, throttle_ms=40)),
        produced(2, "u", "c", 10, produce=check("u", "", rate=85.0, bound=80.0, throttle_ms=10)),
        produced(3, "u", "c", 10, produce=check("u", "", rate=70.0, bound=80.0)),
        request(4, "u", "c", mutations=1, mutation=check("u", "c", rate=-3.0, bound=2.0)),
    ]
    found = jobs.usage(frame(spark, events), 60)
    [user] = rows(found, level="user", quota=PRODUCE)
    assert (user["throttled"], user["throttle_ms"], user["throttle_max_ms"]) == (2, 50, 40)
    assert (user["rate_max"], user["bound"]) == (90, 80)
    [client] = rows(found, level="client", quota=PRODUCE)
    assert (client["throttled"], client["rate_max"], client["bound"]) == (2, None, None)
    [both] = rows(found, level="user+client", quota=MUTATION)
    assert (both["rate_max"], both["bound"]) == (None, 2)


def test_addresses_have_connections(spark: SparkSession) -> None:
    events = [
        connection(1, "10.0.0.9"),
        connection(2, "10.0.0.9"),
        connection(2, "10.0.0.9", "held", delay_ms=200),
        connection(3, "10.0.0.9", "refused"),
        connection(4, "10.0.0.9", "closed"),
    ]
    [row] = rows(jobs.usage(frame(spark, events), 10), level="ip")
    assert (row["ip"], row["quota"]) == ("10.0.0.9", "connection_creation_rate")
    assert (row["used"], row["rate"], row["errors"]) == (2, 0.2, 1)
    assert (row["requests"], row["events"]) == (2, 5)
    assert (row["throttled"], row["throttle_ms"]) == (1, 200)
    assert row["latency_p50_ms"] is None


def test_sampled_event_is_weighted(spark: SparkSession) -> None:
    events = [produced(1, "u", "c", 300, sample=0.3, error_code=1)]
    [row] = rows(jobs.usage(frame(spark, events), 1), level="user", quota=PRODUCE)
    assert (row["used"], row["events"]) == (1000, 1)
    assert row["requests"] == row["errors"] == pytest.approx(10 / 3, rel=1e-6)


def test_dropped_events_without_requests_are_reported(spark: SparkSession) -> None:
    events = [request(1, "u", "c"), request(2, "u", "c"), dropped(3, 6), dropped(70, 5)]
    found = jobs.usage(frame(spark, events), 60)
    [user] = rows(found, level="user", quota=REQUEST)
    assert (user["dropped"], user["coverage"]) == (6, 0.25)
    _, alone = rows(found, level="broker")
    assert (alone["dropped"], alone["coverage"], alone["requests"], alone["used"]) == (5, 0, 0, 0)


def test_latencies_are_exact_to_three_digits(spark: SparkSession) -> None:
    times_us = [1, 999, 1004, 1005, 123_456, 99_999_999, 10**9 + 1]
    events = [request(0, "u", f"c{at}", total_ns=us * 1000) for at, us in enumerate(times_us)]
    found = rows(jobs.usage(frame(spark, events), 1), level="client", quota=REQUEST)
    p99 = {row["client_id"]: row["latency_p99_ms"] for row in found}
    assert [p99[f"c{at}"] for at, _ in enumerate(times_us)] == [
        0.001, 0.999, 1.0, 1.01, 123.0, 100_000.0, 1_000_000.0
    ]  # fmt: skip
    hundred = [request(0, "u", "c", total_ns=ms * 1_000_000) for ms in range(1, 102)]
    [row] = rows(jobs.usage(frame(spark, hundred), 1), level="client", quota=REQUEST)
    assert [row[f"latency_p{share}_ms"] for share in (50, 95, 99)] == [51, 96, 100]


def comparable(every: list[Row]) -> list[tuple[Any, ...]]:
    names = ("broker", "level", "user", "client_id", "ip", "quota", "start")
    key = [(tuple(str(row[name]) for name in names), row) for row in every]
    return [
        (*known, *(value for name, value in row.items() if name not in names))
        for known, row in sorted(key, key=lambda pair: pair[0])
    ]


def test_usage_is_independent_of_batch_cuts(spark: SparkSession, tmp_path: Path) -> None:
    events = frame(spark, many(1_500, seed=7))
    once = comparable(rows(jobs.usage(events.coalesce(1), 60)))
    assert len(once) > 200
    for other in (
        events.repartition(64),
        events.orderBy("request_bytes", "time_us").repartition(2),
    ):
        assert comparable(rows(jobs.usage(other, 60))) == once


def test_usage_of_files_equals_usage_of_dataframe(spark: SparkSession, tmp_path: Path) -> None:
    events = list(many(600, seed=5))
    parts = (events[:100], events[100:450], events[450:])
    files = [str(parquet(tmp_path / f"{at}.parquet", part)) for at, part in enumerate(parts)]
    found = comparable(rows(jobs.usage_by(partial(scan_files, spark, files), 60)))
    assert found == comparable(rows(jobs.usage(frame(spark, events), 60)))


@pytest.mark.parametrize("every_s", [1, 60])
def test_duckdb_finds_the_same(spark: SparkSession, tmp_path: Path, every_s: int) -> None:
    path = parquet(tmp_path / "events.parquet", many(3_000, seed=11))
    ours = rows(jobs.usage(spark.read.parquet(str(path)), every_s))
    connected = duckdb.connect(config={"threads": 1})
    result = connected.execute(ORACLE, {"every": every_s * 1_000_000, "path": str(path)})
    names = [column[0] for column in result.description]
    theirs = {row[:7]: dict(zip(names, row, strict=True)) for row in result.fetchall()}
    assert len(theirs) == len(ours) > 300
    for row in ours:
        start_us = round(row["start"].timestamp() * 1_000_000)
        key = *(row[name] for name in names[:6]), start_us
        for name in names[7:]:
            value = -1 if row[name] is None else row[name]
            assert math.isclose(value, theirs[key][name], rel_tol=1e-9), (row, theirs[key])
