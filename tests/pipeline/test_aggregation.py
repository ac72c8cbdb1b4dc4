"""Aggregation in Arrow has the results of a loop over the events, however they are split."""

from __future__ import annotations

from collections import defaultdict
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minibroker.pipeline import aggregation, exchange, grouping
from minibroker.pipeline.aggregation import PERCENTILES
from minibroker.pipeline.quota_units import LEVELS, NAMES
from tests.pipeline import reference_counts
from tests.pipeline.sample_events import arrow, many, request

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
    parts = pa.Table.from_batches(list(aggregation.partial_sums(tables, EVERY_S)))
    parts = parts.sort_by([("broker", "ascending"), ("slice_us", "ascending")])
    whole = aggregation.total_sums(parts.to_batches(max_chunksize=size))
    every = [row for batch in whole for row in batch.to_pylist()]
    found = {tuple(row.pop(name) for name in ENTITY): row for row in every}
    assert len(found) == len(every), "an entity has two rows"
    return found


@pytest.fixture(autouse=True, params=[(1, 1), (7, 1 << 20), (1000, 10_000)])
def limits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, together = request.param
    monkeypatch.setattr(exchange, "CHUNK_ROWS", rows)
    monkeypatch.setattr(aggregation, "BATCH_BYTES", together)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1 << 32), count=st.integers(1, 60), size=st.integers(1, 70))
def test_parts_match_plain_loop(seed: int, count: int, size: int) -> None:
    events = list(many(count, seed, lasts_s=90))
    Random(seed).shuffle(events)
    assert by_parts(events, size) == aggregate_one_by_one(events)


def test_no_events_yield_no_rows() -> None:
    assert list(aggregation.partial_sums([], EVERY_S)) == []
    assert list(aggregation.partial_sums([arrow([])], EVERY_S)) == []
    assert list(aggregation.total_sums([])) == []


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
    for _ in aggregation.partial_sums([table], EVERY_S):
        pass  # Created once.
    before = pa.total_allocated_bytes()
    for sent in aggregation.partial_sums([table] * 5, EVERY_S):
        assert len(sent)
    del sent
    assert pa.total_allocated_bytes() == before
