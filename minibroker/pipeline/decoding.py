"""Decodes the values of the activity topic's records: Arrow record batches, or JSON objects.

Owns the choice between the two formats; it must never know where records come from, nor which
values of an event are valid. Invariant: every value becomes either events or a fault with a reason,
and the events of different values are never mixed up.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import json as arrow_json

from minibroker.lab.activity.arrow_format import (
    SCHEMA,
    NoEventBatch,
    is_batch,
    parts_of,
    read_batch,
)
from minibroker.lab.activity.schema import CHECK_FIELDS, FIELDS, ActivityField, ActivityType
from minibroker.pipeline.events import MalformedEvent, malformed_rows, parse_event, reason_of

OBJECTS_MAX: Final = 4096
"""JSON objects that are parsed together."""

Value = bytes | memoryview | None


class Batch(NamedTuple):
    """Events with the columns of the schema, whose values are not validated."""

    events: pa.RecordBatch
    numbers: Any
    """The number of each event's value."""
    size: int
    """Bytes of the values."""


class MalformedValue(NamedTuple):
    """A value, or an event of a value, that is malformed."""

    number: int
    """The number of the value."""
    reason: str
    raw: bytes | None
    """The value, or the event as JSON."""


def values_of(array: pa.Array) -> list[Value]:
    """The binaries of an array, without copying them."""
    return [memoryview(value.as_buffer()) if value.is_valid else None for value in array]


def decode(values: Sequence[Value]) -> Iterator[Batch | MalformedValue]:
    """Decode values, which batches share their memory with."""
    numbered = enumerate(values)
    for is_json, group in groupby(numbered, lambda each: each[1] is not None and _is_json(each[1])):
        if is_json:
            yield from _json([(number, bytes(value or b"")) for number, value in group])
        else:
            for number, value in group:
                yield _arrow(number, value)


def valid_events(values: Sequence[Value]) -> tuple[pa.Table, int]:
    """(the valid events of values, the number of malformed ones and of values without events)."""
    found = list(decode(values))
    batches = [each.events for each in found if isinstance(each, Batch)]
    events = pa.Table.from_batches(batches, SCHEMA)
    malformed = malformed_rows(events)
    return without_rows(events, malformed), len(found) - len(batches) + len(malformed)


def without_rows(events: pa.Table, rows: Any) -> pa.Table:
    """All rows but these, given by their numbers."""
    if not len(rows):
        return events
    kept = np.ones(len(events), np.bool_)
    kept[rows] = False
    return events.filter(pa.array(kept))


def _is_json(value: bytes | memoryview) -> bool:
    return not is_batch(value)


def _arrow(number: int, value: Value) -> Batch | MalformedValue:
    if value is None:
        return MalformedValue(number, "it has no value", None)
    try:
        events = read_batch(value)
    except NoEventBatch as error:
        return MalformedValue(number, reason_of(str(error)), bytes(value))
    return Batch(events, np.full(len(events), number), len(value))


def _json(values: list[tuple[int, bytes]]) -> Iterator[Batch | MalformedValue]:
    for begin in range(0, len(values), OBJECTS_MAX):
        some = values[begin : begin + OBJECTS_MAX]
        together = _parsed_together([value for _, value in some])
        if together is not None:
            size = sum(len(value) for _, value in some)
            yield Batch(together, np.array([number for number, _ in some]), size)
        else:
            yield from _one_by_one(some)


def _text_as_string(field: pa.Field) -> pa.Field:
    return field.with_type(pa.string()) if pa.types.is_dictionary(field.type) else field


def _object_field(field: ActivityField) -> pa.Field:
    parts = [_text_as_string(SCHEMA.field(name)) for name, _ in parts_of(field)]
    if field.type is not ActivityType.CHECK:
        return parts[0]
    fields = [part.with_name(inner.name) for part, inner in zip(parts, CHECK_FIELDS, strict=True)]
    return pa.field(field.name, pa.struct(fields))


OBJECT_SCHEMA: Final = pa.schema([_object_field(field) for field in FIELDS])
"""The fields of the JSON objects."""
_CHECKS: Final = [field.name for field in FIELDS if field.type is ActivityType.CHECK]
_READ: Final = arrow_json.ReadOptions(use_threads=False, block_size=(1 << 31) - 1)
_PARSE: Final = arrow_json.ParseOptions(
    explicit_schema=OBJECT_SCHEMA, unexpected_field_behavior="error"
)


def _parsed_together(values: list[bytes]) -> pa.RecordBatch | None:
    """The events of JSON objects on one line each; None unless that is certainly what they are."""
    lines = b"\n".join(values)
    if not all(value[:1] == b"{" for value in values) or lines.count(b"\n") >= len(values):
        return None
    try:
        table = arrow_json.read_json(io.BytesIO(lines), _READ, _PARSE)
    except (pa.ArrowException, ValueError):
        return None
    events = flattened(table)
    if len(table) != len(values) or len(malformed_rows(events)):
        return None
    # An empty object would become the same as a missing one.
    if any(table[name].null_count != events[f"{name}.user"].null_count for name in _CHECKS):
        return None
    [batch] = events.to_batches()
    return batch


def flattened(table: pa.Table) -> pa.Table:
    """The columns of events, from those of their JSON objects."""
    return table.flatten().combine_chunks().cast(SCHEMA)


def _one_by_one(values: list[tuple[int, bytes]]) -> Iterator[Batch | MalformedValue]:
    events, numbers, size = [], [], 0
    for number, value in values:
        try:
            events.append(parse_event(value))
            numbers.append(number)
            size += len(value)
        except MalformedEvent as error:
            yield MalformedValue(number, str(error), value)
    if events:
        [batch] = flattened(pa.Table.from_pylist(events, OBJECT_SCHEMA)).to_batches()
        yield Batch(batch, np.array(numbers), size)
