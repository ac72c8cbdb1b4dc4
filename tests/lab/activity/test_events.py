"""Packed events are unpacked unchanged."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.metadata.image import ACTIVITY_TOPIC
from minibroker.lab.activity.events import (
    CHECK_FIELDS,
    FIELDS,
    KEPT_CHARACTERS_MAX,
    KEPT_MAX,
    TOPIC,
    ActivityEvent,
    ActivityField,
    ActivityKind,
    ActivityType,
    ConnectionActivity,
    JsonWriter,
    Request,
    WrittenEvent,
    pack,
    unpack,
)
from tests.lab.activity.strategies import events

# -------------------------------------------- The schema is one that all its readers can build upon


def test_topic_is_the_one_that_the_broker_creates() -> None:
    assert TOPIC == ACTIVITY_TOPIC


def test_field_names_are_unique() -> None:
    for fields in (FIELDS, CHECK_FIELDS):
        names = [field.name for field in fields]
        assert len(set(names)) == len(names)


def test_every_event_has_identifying_and_ordering_fields() -> None:
    everywhere = [field.name for field in FIELDS if field.kinds == set(ActivityKind)]
    identity = ["version", "kind", "broker", "started_us", "sequence"]
    assert everywhere == [*identity, "time_us", "clock_ms"]
    assert not any(field.may_lack for field in FIELDS if field.name in everywhere)


def test_fields_missing_in_some_event_kinds_are_optional() -> None:
    seen = {ActivityKind.REQUEST, ActivityKind.CONNECTION}
    assert all(field.may_lack for field in FIELDS if not field.kinds >= seen)


def test_quantity_fields_have_units() -> None:
    suffixes = {"_us": "µs since 1970 UTC", "_ms": "ms", "_ns": "ns", "_bytes": "bytes"}
    for field in FIELDS + CHECK_FIELDS:
        for suffix, unit in suffixes.items():
            if field.name.endswith(suffix):
                assert field.unit == unit, field.name
        assert field.unit == "" or field.type not in {
            ActivityType.TEXT,
            ActivityType.FLAG,
            ActivityType.CHECK,
        }


@given(st.lists(events()))
def test_packed_events_round_trip(events: list[ActivityEvent]) -> None:
    assert unpack(pack(events)) == events


TYPES: dict[ActivityType, type] = {
    ActivityType.INT: int,
    ActivityType.LONG: int,
    ActivityType.DOUBLE: float,
    ActivityType.TEXT: str,
    ActivityType.FLAG: bool,
    ActivityType.CHECK: dict,
}

REQUEST: Request = (
    *(1_700_000_000_000_001, 77, ("PLAINTEXT", 5, "10.0.0.1", "alice", "etl"), 0, 9),
    *(100, 40, 3, None, False, 11, 12, 13, 14, 15, (16, 78, 78_002)),
    (("alice", "", 10.5, 10.0, 500, 77), None, ("alice", "", 1.0, None, 0, 77), None),
    *((77_000, 77_003, 77_004), 500, 0),
)


def check_fields(found: Mapping[str, object], fields: Iterable[ActivityField]) -> None:
    """Check that fields are in order and of their type, and that only optional ones are missing."""
    known = {field.name: field for field in fields}
    names = [name for name in known if name in found]
    assert list(found) == names
    assert not [name for name, field in known.items() if name not in found and not field.may_lack]
    for name, value in found.items():
        field = known[name]
        assert type(value) is TYPES[field.type], name
        if isinstance(value, dict):
            check_fields(value, CHECK_FIELDS)


def written(event: WrittenEvent, sequence: int, writer: JsonWriter | None = None) -> Any:
    """The JSON of one event."""
    [record] = (writer or JsonWriter(1, 5, 1.0)).records([event], sequence)
    return json.loads(record.value or b"")


@given(events(), st.integers(0, 2**62))
def test_written_events_match_schema(event: WrittenEvent, sequence: int) -> None:
    found = written(event, sequence, JsonWriter(3, 5, 0.5))
    kind = ActivityKind(found["kind"])
    check_fields(found, [field for field in FIELDS if kind in field.kinds])
    assert (found["broker"], found["sequence"]) == (3, sequence)
    assert kind is ActivityKind.DROPPED or found["sample"] == 0.5


def test_request_event_has_expected_fields() -> None:
    assert written(REQUEST, 42) == {
        "version": 1,
        "kind": "request",
        "broker": 1,
        "started_us": 5,
        "sequence": 42,
        "time_us": 1_700_000_000_000_001,
        "clock_ms": 77,
        "sample": 1.0,
        "listener": "PLAINTEXT",
        "connection": 5,
        "ip": "10.0.0.1",
        "user": "alice",
        "client_id": "etl",
        "api_key": 0,
        "api_version": 9,
        "request_bytes": 100,
        "response_bytes": 40,
        "records": 3,
        "exempt": False,
        "queue_ns": 11,
        "network_ns": 12,
        "io_ns": 13,
        "total_ns": 14,
        "checked_ns": 15,
        "late_ns": 16,
        "late_clock_ms": 78,
        "produce": {
            "user": "alice",
            "client_id": "",
            "rate": 10.5,
            "bound": 10.0,
            "throttle_ms": 500,
            "clock_ms": 77,
        },
        "request": {
            "user": "alice",
            "client_id": "",
            "rate": 1.0,
            "throttle_ms": 0,
            "clock_ms": 77,
        },
        "ordinal": 77_000,
        "time_ordinal": 77_003,
        "back_ordinal": 77_004,
        "late_ordinal": 78_002,
        "throttle_ms": 500,
        "error_code": 0,
    }


def test_mutation_event_has_number_of_rejected_mutations() -> None:
    event = (*REQUEST[:7], None, (5, 2, True), *REQUEST[9:])
    found = written(event, 42)
    assert (found["mutations"], found["mutations_refused"], found["strict"]) == (5, 2, True)


def test_dropped_event_has_number_of_dropped_events() -> None:
    found = written((1000, 1, 9), 42)
    check_fields(found, [field for field in FIELDS if ActivityKind.DROPPED in field.kinds])
    assert found["dropped"] == 9


def test_rates_are_written_with_full_precision() -> None:
    rate = 0.1 + 0.2
    check = "", "", rate, float("inf"), 0, 1
    event = (*REQUEST[:16], (check, None, None, None), None, 0, 0)
    found = written(event, 1)["produce"]
    assert found["rate"] == rate
    assert found["bound"] > 1e308


def test_number_and_length_of_cached_texts_are_limited() -> None:
    writer = JsonWriter(1, 5, 1.0)
    long = "x" * KEPT_CHARACTERS_MAX
    for number in range(KEPT_MAX + 2):
        writer.records([(*REQUEST[:2], ("PLAINTEXT", number, "", "", ""), *REQUEST[3:])], 1)
    writer.records([(*REQUEST[:2], ("PLAINTEXT", 0, "", "", long), *REQUEST[3:])], 1)
    assert len(writer._clients) == 2


def test_connection_event_has_delay() -> None:
    event: ConnectionActivity = (5, 6, ("L", 7, "::1"), "held", None, 120)
    assert written(event, 2)["delay_ms"] == 120
