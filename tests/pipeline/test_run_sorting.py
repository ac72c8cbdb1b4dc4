"""Sorting and deduplication of a run of events, compared with plain Python."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pyarrow as pa

from minibroker.pipeline.decoding import OBJECT_SCHEMA, flattened
from minibroker.pipeline.layout import HOUR_US, bucket_of, place_of
from minibroker.pipeline.run_sorting import SortedRun, sort_run
from tests.pipeline.random_events import completed, event

Key = tuple[int, int]


def run_of(events: list[dict[str, Any]]) -> SortedRun:
    rows = [completed(each) for each in events]
    table = pa.Table.from_pylist(rows, OBJECT_SCHEMA)
    return sort_run(flattened(table).unify_dictionaries())


def keys(table: pa.Table) -> list[Key]:
    """(broker, sequence) of each row."""
    return list(zip(table["broker"].to_pylist(), table["sequence"].to_pylist(), strict=True))


def place(each: dict[str, Any]) -> str:
    """The place of an event, by the rules of the table's layout."""
    by_ip = each["kind"] == "connection"
    names = (each.get("ip"),) if by_ip else (each.get("user"), each.get("client_id"))
    return place_of(each["time_us"] // HOUR_US, bucket_of(*names))


def sort_key(each: dict[str, Any]) -> Any:
    """The order within a file: null names first."""
    names = [(each.get(name) is not None, each.get(name)) for name in ("user", "client_id")]
    return names, each["time_us"], each["sequence"], each["broker"]


def test_events_are_sorted_within_the_place_of_each() -> None:
    chance = random.Random(5)
    events = [event(number, chance, broker=chance.choice([1, 7])) for number in range(400)]
    chance.shuffle(events)
    expected: defaultdict[str, list[Key]] = defaultdict(list)
    for each in sorted(events, key=sort_key):
        expected[place(each)].append((each["broker"], each["sequence"]))
    assert {name: keys(table) for name, table in run_of(events).places.items()} == expected


def test_event_that_occurs_twice_is_kept_once() -> None:
    chance = random.Random(6)
    events = [event(number, chance) for number in range(50)]
    run = run_of([*events, *events[10:20]])
    assert sorted(key for table in run.places.values() for key in keys(table)) == [
        (1, number) for number in range(50)
    ]


def test_spans_are_the_sequences_of_the_kept_events() -> None:
    chance = random.Random(7)
    numbers = [*range(10), *range(20, 30), *range(5)]
    run = run_of([event(number, chance) for number in numbers])
    kept = {key for table in run.places.values() for key in keys(table)}
    spans = {
        (broker, number)
        for broker, first, last in run.spans.tolist()
        for number in range(first, last + 1)
    }
    assert spans == kept
