"""Cells: their content, and that each event is in exactly one."""

from __future__ import annotations

from typing import Any

import numpy as np

from minibroker.pipeline.aggregation import BITS, CELL, NO_LATENCY, cells_of, latency_of
from minibroker.pipeline.quota_amounts import Events
from minibroker.pipeline.quota_units import LEVELS, NAMES, PRODUCE, QUOTAS, REQUEST
from tests.pipeline import reference_counts
from tests.pipeline.sample_events import START_S, arrow, check, dropped, many, produced, request

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
