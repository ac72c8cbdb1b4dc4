"""The reference page of activity events, written from their schema.

Owns the layout of ``docs/reference/activity.md``, which running this module prints. Must never say
about a field what the schema doesn't. The invariant: the committed page is what this module
prints, which a test holds. Kafka has no such page; its schemas of messages are the nearest to it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Final

from minibroker.activity.schema import (
    CHECK_FIELDS,
    FIELDS,
    TOPIC,
    VERSION,
    EventKind,
    Field,
    Type,
)

_INTRODUCTION: Final = f"""\
# Activity events

<!-- Written by `python -m minibroker.activity.reference`; don't edit. -->

A broker that is told to writes what it does to the topic `{TOPIC}`: every request and everything
that happens to a connection is one record, whose value is one JSON object. This is version
{VERSION} of their schema. A field that does not apply to an event is left out of its JSON, and null
in the tables of the pipeline, which have all fields as columns in this order.
"""


def page() -> str:
    """The whole page as Markdown."""
    return "\n".join(
        [
            _INTRODUCTION,
            *_section("In every event", (f for f in FIELDS if f.kinds == frozenset(EventKind))),
            *_section(
                "Of requests and connections",
                (f for f in FIELDS if f.kinds == {EventKind.REQUEST, EventKind.CONNECTION}),
            ),
            *(line for kind in EventKind for line in _section(*_of_one(kind))),
            *_section("A look at a quota", CHECK_FIELDS),
        ]
    )


def _of_one(kind: EventKind) -> tuple[str, Iterable[Field]]:
    return f"Of `{kind}` events alone", (f for f in FIELDS if f.kinds == {kind})


def _section(title: str, fields: Iterable[Field]) -> list[str]:
    return [f"## {title}", "", *_table(fields), ""]


def _table(fields: Iterable[Field]) -> Iterator[str]:
    yield "| Field | Type | Unit | Meaning |"
    yield "| --- | --- | --- | --- |"
    for field in fields:
        kind = "look at a quota" if field.type is Type.CHECK else field.type.value
        yield f"| `{field.name}` | {kind} | {field.unit} | {field.meaning} |"


if __name__ == "__main__":
    sys.stdout.write(page())
