"""Decodes the values of the activity topic's records to valid events.

Owns the choice between the two formats (Arrow record batches and JSON objects), the validity rules
of an event, and the reasons for rejecting one; it must never know where records come from.
Invariant: every value becomes either events or a fault with a readable reason, the events of
different values are never mixed up, and ``malformed_rows`` finds exactly the rows that
``check_event`` rejects; tests verify that.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from minibroker.lab.activity.arrow_format import (
    SCHEMA,
    NoEventBatch,
    is_batch,
    parts_of,
    read_batch,
)
from minibroker.lab.activity.events import (
    CHECK_FIELDS,
    FIELDS,
    VERSION,
    ActivityField,
    ActivityKind,
    ActivityType,
)

# Validity of an event ----------------------------------------------------------------------------

REASON_MAX: Final = 300
"""Characters of a reason, which quotes the input."""

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1

IDENTITY: Final = frozenset({"user", "client_id", "api_key", "happened", "dropped"})
"""Fields that are required for their kind of event, because it is filed by them."""
SIGNED: Final = frozenset({"broker", "error_code", "clock_ms", "late_clock_ms", "rate"})
"""Numbers that may be negative."""


def needed(field: ActivityField, kind: ActivityKind) -> bool:
    """Whether an event of ``kind`` must have ``field``."""
    return kind in field.kinds and (not field.may_lack or field.name in IDENTITY)


_NAMED: Final = {field.name: field for field in FIELDS}
_CHECK_PARTS: Final = {field.name: field for field in CHECK_FIELDS}
_NEEDED: Final = {
    kind: [field.name for field in FIELDS if needed(field, kind)] for kind in ActivityKind
}
_CHECK_NEEDED: Final = [field.name for field in CHECK_FIELDS if not field.may_lack]


class MalformedEvent(Exception):
    """The input is no event of this version; the text says why."""


def parse_event(raw: bytes | None) -> dict[str, Any]:
    """The event in ``raw``. Raises Malformed."""
    if raw is None:
        raise MalformedEvent("it has no value")
    try:
        found = json.loads(
            raw.decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_constant
        )
    except UnicodeDecodeError as error:
        raise MalformedEvent(f"not UTF-8: {error.reason} at byte {error.start}") from error
    except (ValueError, RecursionError) as error:
        raise MalformedEvent(reason_of(f"not JSON: {error}")) from error
    if not isinstance(found, dict):
        raise MalformedEvent(reason_of(f"not a JSON object but {json.dumps(found)}"))
    return check_event(found)


def check_event(found: dict[str, Any]) -> dict[str, Any]:
    """The event, with whole numbers as floats where the schema has floats. Raises Malformed."""
    if found.get("version") != VERSION or not _whole(found["version"]):
        has = json.dumps(found["version"]) if "version" in found else "missing"
        raise MalformedEvent(reason_of(f"version is {has}, but only {VERSION} is supported"))
    _check_fields(found, _NAMED, "")
    try:
        kind = ActivityKind(found.get("kind") or "")
    except ValueError:
        kind_text = json.dumps(found.get("kind"))
        raise MalformedEvent(reason_of(f"kind {kind_text} is unknown")) from None
    _check_there(found, _NEEDED[kind], "")
    return found


def why_malformed(found: dict[str, Any]) -> str:
    """Why `check_event` rejects an event."""
    try:
        check_event(found)
    except MalformedEvent as error:
        return str(error)
    raise ValueError("the event is not malformed")


def malformed_rows(events: pa.Table) -> Any:
    """The numbers of the rows of a table, with the columns of events, that are malformed."""
    malformed = np.zeros(len(events), np.bool_)
    versions, kinds = events["version"], events["kind"]
    malformed |= _lacking(versions) | _is_true(pc.not_equal(versions, VERSION))
    of_kind = {kind: _is_true(pc.equal(kinds, str(kind))) for kind in ActivityKind}
    malformed |= ~np.logical_or.reduce(list(of_kind.values()))
    for field in FIELDS:
        if field.type is ActivityType.CHECK:
            _flag_bad_checks(events, field, malformed)
            continue
        values = events[field.name]
        _flag_bad_numbers(field, values, malformed)
        if values.null_count and any(needed(field, kind) for kind in ActivityKind):
            lacking = _lacking(values)
            for kind, rows in of_kind.items():
                if needed(field, kind):
                    malformed |= rows & lacking
    return np.flatnonzero(malformed)


def _flag_bad_checks(events: pa.Table, check: ActivityField, malformed: Any) -> None:
    columns = {part: events[name] for name, part in parts_of(check)}
    if all(values.null_count == len(events) for values in columns.values()):
        return
    lacking = {part: _lacking(values) for part, values in columns.items()}
    there = ~np.logical_and.reduce(list(lacking.values()))
    for part, values in columns.items():
        _flag_bad_numbers(part, values, malformed)
        if not part.may_lack:
            malformed |= there & lacking[part]


def _flag_bad_numbers(field: ActivityField, values: pa.ChunkedArray, malformed: Any) -> None:
    if field.type not in _NUMBERS:
        return
    if field.name not in SIGNED and (pc.min(values).as_py() or 0) < 0:
        malformed |= _is_true(pc.less(values, 0))
    if field.type is ActivityType.DOUBLE:
        finite = pc.is_finite(values)
        if pc.all(finite).as_py() is False:
            malformed |= _is_true(pc.invert(finite))


def _lacking(values: pa.ChunkedArray) -> Any:
    return values.is_null().to_numpy()


def _is_true(flags: pa.ChunkedArray) -> Any:
    return flags.fill_null(False).to_numpy().astype(np.bool_, copy=False)


def _once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"`{name}` is given twice")
        found[name] = value
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number")


def _check_there(found: Mapping[str, Any], names: Iterable[str], prefix: str) -> None:
    for name in names:
        if found.get(name) is None:
            raise MalformedEvent(f"field `{prefix}{name}` is missing")


def _check_fields(found: dict[str, Any], known: Mapping[str, ActivityField], prefix: str) -> None:
    for name, value in found.items():
        field = known.get(name)
        if field is None:
            raise MalformedEvent(reason_of(f"version {VERSION} has no field `{prefix}{name}`"))
        if value is not None:
            _check_value(field, value, prefix)
            if field.type is ActivityType.DOUBLE:
                found[name] = float(value)  # JSON may spell it as a whole number.


def _check_value(field: ActivityField, value: Any, prefix: str) -> None:
    if not _fits(field.type, value):
        raise MalformedEvent(
            reason_of(
                f"field `{prefix}{field.name}` is of type {field.type.value}, not"
                f" {json.dumps(value)}"
            )
        )
    if field.type is ActivityType.CHECK:
        _check_fields(value, _CHECK_PARTS, f"{field.name}.")
        _check_there(value, _CHECK_NEEDED, f"{field.name}.")
    elif field.type in _NUMBERS and value < 0 and field.name not in SIGNED:
        raise MalformedEvent(f"field `{prefix}{field.name}` is negative: {value}")


_NUMBERS: Final = frozenset({ActivityType.INT, ActivityType.LONG, ActivityType.DOUBLE})


def _fits(kind: ActivityType, value: Any) -> bool:
    if kind is ActivityType.TEXT:
        return isinstance(value, str) and _encodable(value)
    if kind is ActivityType.FLAG:
        return isinstance(value, bool)
    if kind is ActivityType.CHECK:
        return isinstance(value, dict)
    if kind is ActivityType.DOUBLE:
        return isinstance(value, int | float) and not isinstance(value, bool) and _finite(value)
    most = INT_MAX if kind is ActivityType.INT else LONG_MAX
    return _whole(value) and -most - 1 <= value <= most


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _encodable(value: str) -> bool:
    """Whether the string is valid Unicode: JSON can spell half of a surrogate pair."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def reason_of(text: str) -> str:
    """A text of at most ``REASON_MAX`` printable characters."""
    printable = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return printable if len(printable) <= REASON_MAX else printable[: REASON_MAX - 1] + "…"


# Values of records -------------------------------------------------------------------------------

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
