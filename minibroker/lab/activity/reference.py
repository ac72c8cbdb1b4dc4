"""Reference page of activity events, generated from the schema.

Owns the layout of ``docs/reference/activity.md``, which this module prints. Must never describe a
field itself. The invariant: the committed page is the output of this module (a test compares them).
Kafka has no such page; its message schemas come closest.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Final

from minibroker.lab.activity.schema import (
    CHECK_FIELDS,
    FIELDS,
    TOPIC,
    VERSION,
    ActivityField,
    ActivityKind,
    ActivityType,
)

_INTRODUCTION: Final = f"""\
# Activity events

<!-- Written by `python -m minibroker.lab.activity.reference`; don't edit. -->

With `activity.enable=true`, the broker writes an event for every request and every change of a
connection to the topic `{TOPIC}`. This page describes version {VERSION} of the schema.

With `activity.format=arrow`, the value of a record is an Apache Arrow IPC stream with one batch of
up to 1,000 events. It has all fields as columns in this order, null where a field does not apply;
a quota check has a column for each of its fields, such as `produce.rate`. With
`activity.format=json`, the value is a JSON object with one event, and fields that do not apply are
omitted. The tables of the pipeline have the columns of the JSON objects.
"""


def page() -> str:
    """Return the page as Markdown."""
    return "\n".join(
        [
            _INTRODUCTION,
            *_section(
                "Fields of all events", (f for f in FIELDS if f.kinds == frozenset(ActivityKind))
            ),
            *_section(
                "Fields of requests and connections",
                (f for f in FIELDS if f.kinds == {ActivityKind.REQUEST, ActivityKind.CONNECTION}),
            ),
            *(line for kind in ActivityKind for line in _section(*_of_one(kind))),
            *_section("Quota checks", CHECK_FIELDS),
        ]
    )


def _of_one(kind: ActivityKind) -> tuple[str, Iterable[ActivityField]]:
    return f"Fields of `{kind}` events only", (f for f in FIELDS if f.kinds == {kind})


def _section(title: str, fields: Iterable[ActivityField]) -> list[str]:
    return [f"## {title}", "", *_table(fields), ""]


def _table(fields: Iterable[ActivityField]) -> Iterator[str]:
    yield "| Field | Type | Unit | Meaning |"
    yield "| --- | --- | --- | --- |"
    for field in fields:
        kind = "quota check" if field.type is ActivityType.CHECK else field.type.value
        yield f"| `{field.name}` | {kind} | {field.unit} | {field.meaning} |"


if __name__ == "__main__":
    sys.stdout.write(page())
