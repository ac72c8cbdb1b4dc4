"""Cells: their content, and that each event is in exactly one."""

from __future__ import annotations

import math
from collections import defaultdict
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minibroker.pipeline import grouping, usage
from minibroker.pipeline.activity_table import scan_files
from minibroker.pipeline.quota_amounts import (
    FETCH,
    LEVELS,
    MUTATION,
    NAMES,
    PRODUCE,
    QUOTAS,
    REQUEST,
    Events,
)
from minibroker.pipeline.usage import (
    BITS,
    CELL,
    NO_LATENCY,
    PERCENTILES,
    cells_of,
    latency_of,
    percentiles,
    rounded,
)
from tests.pipeline import duckdb_queries, reference_counts
from tests.pipeline.reference_counts import percentile, three_digits
from tests.pipeline.sample_events import (
    START_S,
    arrow,
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

# Cells -------------------------------------------------------------------------------------------

EVERY_US, SLICE_US = 20_000_000, 60_000_000


def cells(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = cells_of(Events(arrow(events)), EVERY_US, SLICE_US)
    assert found.schema == CELL
    return list(found.to_pylist())


def test_events_of_same_slot_form_one_cell() -> None:
    look = check("u", "", rate=7.0, bound=9.0, throttle_ms=40)
    events = [
        produced(1, "u", "c", 100, produce=look, total_ns=2_000_000),
        produced(19, "u", "c", 50, produce=check("u", "", rate=3.0), total_ns=2_000_000),
        produced(20, "u", "c", 7, total_ns=5_000_000),
        request(2, "u", "c", exempt=True, total_ns=1_000_000),
    ]
    first, later = cells(events)
    assert (first["start_us"], later["start_us"]) == (
        START_S * 1_000_000,
        (START_S + 20) * 1_000_000,
    )
    assert (first["user"], first["client_id"], first["ip"], first["broker"]) == ("u", "c", None, 1)
    assert (first["written"], first["dropped"]) == (3, 0)
    counts = {(QUOTAS[row["quota"]], row["level"]): row for row in first["counts"]}
    assert set(counts) == {(PRODUCE, list(LEVELS).index("user")), (REQUEST, -1)}
    of_user = counts[PRODUCE, list(LEVELS).index("user")]
    assert (of_user["amount"], of_user["events"], of_user["throttle_ms"]) == (150, 2, 40)
    assert (of_user["throttle_max_ms"], of_user["measured"], of_user["bound"]) == (40, 7, 9)
    both = 1 << QUOTAS.index(PRODUCE) | 1 << QUOTAS.index(REQUEST)
    latencies = np.array(first["latencies"])
    assert (latencies >> BITS).tolist() == [both] * 2
    assert latency_of(latencies & NO_LATENCY).tolist() == [2000, 2000]


def test_every_event_is_in_one_cell_ordered_by_slice() -> None:
    events = list(many(500, seed=2))
    found = cells(events)
    keys = [(row["broker"], row["start_us"], *(row[name] for name in NAMES)) for row in found]
    names = [reference_counts.names(event) for event in events]
    assert len(set(keys)) == len(keys)
    assert set(keys) == {
        (event["broker"], event["time_us"] // EVERY_US * EVERY_US, *(own[name] for name in NAMES))
        for event, own in zip(events, names, strict=True)
    }
    slices = [(broker, start_us // SLICE_US) for broker, start_us, *_ in keys]
    assert slices == sorted(slices)
    assert sum(row["written"] for row in found) == sum(
        event["sample"] is not None for event in events
    )
    assert sum(row["dropped"] for row in found) == sum(event["dropped"] or 0 for event in events)


def test_dropped_events_cell_has_no_entity() -> None:
    [row] = cells([dropped(1, 6)])
    assert (row["written"], row["dropped"], row["user"]) == (0, 6, None)
    assert [QUOTAS[each["quota"]] for each in row["counts"]] == [REQUEST]
    assert row["latencies"] == []


# Latencies ---------------------------------------------------------------------------------------


def test_latencies_have_numbers_in_their_order() -> None:
    powers = [10**digits for digits in range(16)]
    some = sorted({0, *(each + by for each in powers for by in (-1, 0, 1, 4, 5))} | {2**63 // 1000})
    us = np.array([each for each in some if each >= 0], np.int64)
    numbers = rounded(us)
    assert (np.diff(numbers) >= 0).all()
    assert numbers.max() < NO_LATENCY
    assert latency_of(numbers).tolist() == [three_digits(int(each)) for each in us]
    assert rounded(np.array([-1])).tolist() == [NO_LATENCY]


@given(st.lists(st.lists(st.integers(0, 2000)), max_size=5))
def test_percentiles_are_computed_per_span(spans: list[list[int]]) -> None:
    seen = [np.sort(rounded(np.array(span, np.int64))) for span in spans]
    numbers = np.concatenate([*seen, np.empty(0, np.int64)])
    starts = np.cumsum([0, *map(len, seen)])
    for percent, found in zip(PERCENTILES, percentiles(numbers, starts), strict=True):
        by_hand = [percentile([three_digits(us) for us in span], percent) for span in spans]
        values = [None if value != value else value for value in found.tolist()]  # noqa: PLR0124
        assert values == by_hand


def test_percentiles_of_repeated_value() -> None:
    [p50, *_] = percentiles(np.array([5, 5, 9]), np.array([0, 3]))
    assert p50.tolist() == pytest.approx([5])


# Aggregation -------------------------------------------------------------------------------------

Row = dict[str, Any]

ENTITY = ("broker", "level", *NAMES, "quota", "start_us")
EVERY_S = 20


def start_us(event: Row) -> int:
    started: int = event["time_us"] // (EVERY_S * 1_000_000) * EVERY_S * 1_000_000
    return started


def us(event: Row) -> int:
    return reference_counts.three_digits(event["total_ns"] // 1000)


def aggregate_one_by_one(events: list[Row]) -> dict[tuple[Any, ...], Row]:
    """Aggregate by entity, one event at a time."""
    groups: dict[tuple[Any, ...], list[tuple[Row, reference_counts.Counts]]] = defaultdict(list)
    of_broker: dict[tuple[int, int], list[Row]] = defaultdict(list)
    for event in events:
        of_broker[event["broker"], start_us(event)].append(event)
        names = reference_counts.names(event)
        for counts in reference_counts.counts(event):
            for level, wanted in LEVELS.items():
                if all(names[name] is not None for name in wanted):
                    known = [names[name] if name in wanted else None for name in NAMES]
                    key = (event["broker"], level, *known, counts.quota, start_us(event))
                    groups[key].append((event, counts))
    found = {}
    for entity, those in groups.items():
        own = [counts for _, counts in those if counts.level == entity[1]]
        beside = of_broker[entity[0], entity[-1]]
        took = [
            reference_counts.three_digits(event["total_ns"] // 1000)
            for event, _ in those
            if event["total_ns"]
        ]
        weights = [reference_counts.for_all(1_000_000, event) for event, _ in those]
        bad = [event["error_code"] or event["happened"] == "refused" for event, _ in those]
        throttle_times = [counts.throttled_ms for _, counts in those]
        found[entity] = {
            "events": sum(event["sample"] is not None for event, _ in those),
            "amount": sum(
                reference_counts.for_all(counts.amount, event) for event, counts in those
            ),
            "requests": sum(
                each
                for each, (event, _) in zip(weights, those, strict=True)
                if event["happened"] in {None, "accepted"}
            ),
            "errors": sum(each for each, failed in zip(weights, bad, strict=True) if failed),
            "throttled": sum(each for each, ms in zip(weights, throttle_times, strict=True) if ms),
            "throttle_ms": sum(
                reference_counts.for_all(counts.throttled_ms, event) for event, counts in those
            ),
            "throttle_max_ms": max(throttle_times),
            **{
                name: max((each for each in map(by_name, own) if each is not None), default=None)
                for name, by_name in (
                    ("measured", lambda counts: counts.measured),
                    ("bound", lambda counts: counts.bound),
                )
            },
            **{
                f"p{percent}": reference_counts.percentile(took, percent) for percent in PERCENTILES
            },
            "written": sum(event["sample"] is not None for event in beside),
            "dropped": sum(event["dropped"] or 0 for event in beside),
        }
    return found


def by_parts(events: list[Row], size: int) -> dict[tuple[Any, ...], Row]:
    """Aggregate as the job does, with tables of ``size`` events."""
    table = arrow(events)
    tables = (table.slice(at, size) for at in range(0, len(table), size))
    parts = pa.Table.from_batches(list(usage.partial_sums(tables, EVERY_S)))
    parts = parts.sort_by([("broker", "ascending"), ("slice_us", "ascending")])
    whole = usage.total_sums(parts.to_batches(max_chunksize=size))
    every = [row for batch in whole for row in batch.to_pylist()]
    found = {tuple(row.pop(name) for name in ENTITY): row for row in every}
    assert len(found) == len(every), "an entity has two rows"
    return found


@pytest.fixture(autouse=True, params=[(1, 1), (7, 1 << 20), (1000, 10_000)])
def limits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, together = request.param
    monkeypatch.setattr(grouping, "CHUNK_ROWS", rows)
    monkeypatch.setattr(usage, "BATCH_BYTES", together)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1 << 32), count=st.integers(1, 60), size=st.integers(1, 70))
def test_parts_match_plain_loop(seed: int, count: int, size: int) -> None:
    events = list(many(count, seed, lasts_s=90))
    Random(seed).shuffle(events)
    assert by_parts(events, size) == aggregate_one_by_one(events)


def test_no_events_yield_no_rows() -> None:
    assert list(usage.partial_sums([], EVERY_S)) == []
    assert list(usage.partial_sums([arrow([])], EVERY_S)) == []
    assert list(usage.total_sums([])) == []


def test_exempt_request_yields_no_row() -> None:
    assert by_parts([request(0, "u", "c", exempt=True)], 1) == {}


@pytest.mark.parametrize("keys", [4, 100, 1 << 62])
def test_key_overflow_keeps_combinations_apart(keys: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouping, "KEYS_MAX", keys)
    events = [
        request(at * 1000, user, client, broker=broker)
        for at in range(3)
        for user in "abc"
        for client in "abc"
        for broker in (1, 2**31 - 1)
    ]
    assert by_parts(events, 10) == aggregate_one_by_one(events)


def test_sent_parts_release_memory() -> None:
    table = arrow(many(100, seed=1))
    for _ in usage.partial_sums([table], EVERY_S):
        pass  # Created once.
    before = pa.total_allocated_bytes()
    for sent in usage.partial_sums([table] * 5, EVERY_S):
        assert len(sent)
    del sent
    assert pa.total_allocated_bytes() == before


# The usage table ---------------------------------------------------------------------------------


def rows(found: DataFrame, **wanted: Any) -> list[Row]:
    """Those that have these values, in the order of their intervals."""
    every = [row.asDict() for row in found.orderBy("start").collect()]
    return [row for row in every if all(row[name] == value for name, value in wanted.items())]


def test_columns_match_the_documentation(spark: SparkSession) -> None:
    found = usage.usage(frame(spark, [request(0, "u", "c")]), 60)
    assert [(field.name, field.dataType.simpleString()) for field in found.schema] == [
        (column.name, column.type) for column in usage.COLUMNS
    ]


def test_guide_documents_every_column() -> None:
    guide = (Path(__file__).parents[2] / "docs/guides/pipeline.md").read_text("utf-8")
    for name, kind, unit, meaning in usage.COLUMNS:
        assert f"| `{name}` | {kind} | {unit} | {meaning} |" in guide


def test_request_counts_for_each_quota_on_each_level(spark: SparkSession) -> None:
    events = [
        produced(1, "u", "c", 1000, checked_ns=3_000_000, late_ns=1_000_000),
        produced(59.999999, "u", "c", 500, error_code=6, checked_ns=0, late_ns=0),
        produced(60, "u", "d", 70),
        fetched(2, "v", "", 304),
    ]
    found = usage.usage(frame(spark, events), 60)
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
    found = usage.usage(frame(spark, events), 60)
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
    found = usage.usage(frame(spark, events), 60)
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
    [row] = rows(usage.usage(frame(spark, events), 10), level="ip")
    assert (row["ip"], row["quota"]) == ("10.0.0.9", "connection_creation_rate")
    assert (row["used"], row["rate"], row["errors"]) == (2, 0.2, 1)
    assert (row["requests"], row["events"]) == (2, 5)
    assert (row["throttled"], row["throttle_ms"]) == (1, 200)
    assert row["latency_p50_ms"] is None


def test_sampled_event_is_weighted(spark: SparkSession) -> None:
    events = [produced(1, "u", "c", 300, sample=0.3, error_code=1)]
    [row] = rows(usage.usage(frame(spark, events), 1), level="user", quota=PRODUCE)
    assert (row["used"], row["events"]) == (1000, 1)
    assert row["requests"] == row["errors"] == pytest.approx(10 / 3, rel=1e-6)


def test_dropped_events_without_requests_are_reported(spark: SparkSession) -> None:
    events = [request(1, "u", "c"), request(2, "u", "c"), dropped(3, 6), dropped(70, 5)]
    found = usage.usage(frame(spark, events), 60)
    [user] = rows(found, level="user", quota=REQUEST)
    assert (user["dropped"], user["coverage"]) == (6, 0.25)
    _, alone = rows(found, level="broker")
    assert (alone["dropped"], alone["coverage"], alone["requests"], alone["used"]) == (5, 0, 0, 0)


def test_latencies_are_exact_to_three_digits(spark: SparkSession) -> None:
    times_us = [1, 999, 1004, 1005, 123_456, 99_999_999, 10**9 + 1]
    events = [request(0, "u", f"c{at}", total_ns=us * 1000) for at, us in enumerate(times_us)]
    found = rows(usage.usage(frame(spark, events), 1), level="client", quota=REQUEST)
    p99 = {row["client_id"]: row["latency_p99_ms"] for row in found}
    assert [p99[f"c{at}"] for at, _ in enumerate(times_us)] == [
        0.001, 0.999, 1.0, 1.01, 123.0, 100_000.0, 1_000_000.0
    ]  # fmt: skip
    hundred = [request(0, "u", "c", total_ns=ms * 1_000_000) for ms in range(1, 102)]
    [row] = rows(usage.usage(frame(spark, hundred), 1), level="client", quota=REQUEST)
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
    once = comparable(rows(usage.usage(events.coalesce(1), 60)))
    assert len(once) > 200
    for other in (
        events.repartition(64),
        events.orderBy("request_bytes", "time_us").repartition(2),
    ):
        assert comparable(rows(usage.usage(other, 60))) == once


def test_usage_of_files_equals_usage_of_dataframe(spark: SparkSession, tmp_path: Path) -> None:
    events = list(many(600, seed=5))
    parts = (events[:100], events[100:450], events[450:])
    files = [str(parquet(tmp_path / f"{at}.parquet", part)) for at, part in enumerate(parts)]
    found = comparable(rows(usage.usage_by(partial(scan_files, spark, files), 60)))
    assert found == comparable(rows(usage.usage(frame(spark, events), 60)))


@pytest.mark.parametrize("every_s", [1, 60])
def test_duckdb_finds_the_same(spark: SparkSession, tmp_path: Path, every_s: int) -> None:
    path = parquet(tmp_path / "events.parquet", many(3_000, seed=11))
    ours = rows(usage.usage(spark.read.parquet(str(path)), every_s))
    connected = duckdb.connect(config={"threads": 1})
    result = connected.execute(
        duckdb_queries.USAGE, {"every": every_s * 1_000_000, "path": str(path)}
    )
    names = [column[0] for column in result.description]
    theirs = {row[:7]: dict(zip(names, row, strict=True)) for row in result.fetchall()}
    assert len(theirs) == len(ours) > 300
    for row in ours:
        start_us = round(row["start"].timestamp() * 1_000_000)
        key = *(row[name] for name in names[:6]), start_us
        for name in names[7:]:
            value = -1 if row[name] is None else row[name]
            assert math.isclose(value, theirs[key][name], rel_tol=1e-9), (row, theirs[key])
