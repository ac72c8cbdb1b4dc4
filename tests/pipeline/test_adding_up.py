"""Adding up in Arrow: what a loop over the rows finds, however they are cut and ordered."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minibroker.pipeline import adding_up

Row = dict[str, Any]

LEVELS = {"broker": (), "user": ("user",), "user+client": ("user", "client_id"), "ip": ("ip",)}
KEYS = ("broker", "quota", "start_us")
ENTITY = ("broker", "level", "user", "client_id", "ip", "quota", "start_us")
PERCENTS = (50, 95, 99)
SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("user", "client_id", "ip", "quota", "counted_at")),
        ("broker", pa.int32()),
        *((name, pa.int64()) for name in ("start_us", "latency_us", *adding_up.SUMS)),
        ("throttle_max_ms", pa.int32()),
        ("measured", pa.float64()),
        ("bound", pa.float64()),
    ]
)

names = st.sampled_from([None, "", "a", "bé"])
made = st.fixed_dictionaries(
    {
        **dict.fromkeys(("user", "client_id", "ip"), names),
        "quota": st.sampled_from(["p", "q"]),
        "counted_at": st.sampled_from([None, "user", "user+client"]),
        "broker": st.integers(0, 1),
        "start_us": st.sampled_from([0, 60_000_000]),
        "latency_us": st.none() | st.integers(0, 5),
        **dict.fromkeys(adding_up.SUMS, st.integers(0, 9)),
        "events": st.integers(0, 1),
        "amount": st.none() | st.integers(0, 2**40),
        "throttle_max_ms": st.integers(0, 9),
        "measured": st.none() | st.floats(0, 9),
        "bound": st.none() | st.floats(0, 9),
    }
)


def percentile(sorted_values: list[int], percent: int) -> float | None:
    if not sorted_values:
        return None
    position = (len(sorted_values) - 1) * (percent / 100)
    low, high = math.floor(position), math.ceil(position)
    if low == high:
        return sorted_values[low]
    return (high - position) * sorted_values[low] + (position - low) * sorted_values[high]


def added_up(rows: list[Row]) -> dict[tuple[Any, ...], Row]:
    """By entity, one row at a time."""
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        for level, wanted in LEVELS.items():
            if all(row[name] is not None for name in wanted):
                known = {name: row[name] if name in wanted else None for name in row}
                known |= {name: row[name] for name in KEYS} | {"level": level}
                groups[tuple(known[name] for name in ENTITY)].append(row)
    found = {}
    for entity, those in groups.items():
        level = entity[1]
        own = [row for row in those if row["counted_at"] == level]
        latencies = sorted(
            row["latency_us"] for row in those if row["latency_us"] is not None and row["events"]
        )
        found[entity] = {
            **{name: sum(row[name] or 0 for row in those) for name in adding_up.SUMS},
            "throttle_max_ms": max(row["throttle_max_ms"] for row in those),
            **{
                name: max((row[name] for row in own if row[name] is not None), default=None)
                for name in ("measured", "bound")
            },
            **{f"p{percent}": percentile(latencies, percent) for percent in PERCENTS},
        }
    return found


def cut(rows: list[Row], size: int) -> list[pa.RecordBatch]:
    found: list[pa.RecordBatch] = pa.Table.from_pylist(rows, SCHEMA).to_batches(max_chunksize=size)
    return found


def by_parts(rows: list[Row], size: int) -> dict[tuple[Any, ...], Row]:
    """As the job does it, with a chunk for each batch."""
    parts = list(adding_up.parts(cut(rows, size), LEVELS, KEYS))
    table = pa.Table.from_batches(parts).sort_by([(name, "ascending") for name in ENTITY])
    whole = adding_up.whole(table.to_batches(max_chunksize=size), ENTITY, PERCENTS)
    every = [row for batch in whole for row in batch.to_pylist()]
    found = {tuple(row.pop(name) for name in ENTITY): row for row in every}
    assert len(found) == len(every), "an entity has two rows"
    return found


@pytest.fixture(autouse=True, params=[1, 3, 1000])
def chunk_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adding_up, "CHUNK_ROWS", request.param)


@settings(max_examples=60)
@given(rows=st.lists(made, min_size=1, max_size=30), size=st.integers(1, 30))
def test_it_is_what_a_loop_finds(rows: list[Row], size: int) -> None:
    assert by_parts(rows, size) == added_up(rows)


def test_nothing_is_nothing() -> None:
    assert list(adding_up.parts([], LEVELS, KEYS)) == []
    assert list(adding_up.whole([], ENTITY, PERCENTS)) == []


def test_more_combinations_than_a_number_holds_are_told_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(adding_up, "_CODES_MAX", 4)
    rows = [
        dict.fromkeys(SCHEMA.names, 0)
        | {"user": user, "client_id": client, "ip": ip, "quota": "p", "counted_at": None}
        for user in "abc"
        for client in "abc"
        for ip in "abc"
    ]
    assert by_parts(rows, 10) == added_up(rows)
