"""The schema is one that all its readers can build upon."""

from __future__ import annotations

from minibroker.broker.metadata.image import ACTIVITY_TOPIC
from minibroker.lab.activity.schema import (
    CHECK_FIELDS,
    FIELDS,
    TOPIC,
    ActivityKind,
    ActivityType,
)


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
