"""Encodes events as Apache Arrow record batches, many events in one record.

Owns the columns of events in Arrow, and an Arrow IPC stream as the value of a record. A quota
check has a column for each of its fields, like ``produce.rate``, and texts are dictionary-encoded:
both are faster to read. It must never know a clock, a topic or a process, and is imported only
where events are written or read, because pyarrow takes 40 MB. Invariant: a row has the same fields
and values as the JSON object of the event (a test compares them); numbers that a column cannot hold
become its largest or smallest one.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from minibroker.lab.activity.events import (
    CHECK_FIELDS,
    CONNECTION_ACTIVITY_FIELDS,
    DROPPED_FIELDS,
    FIELDS,
    REQUEST_FIELDS,
    VERSION,
    ActivityField,
    ActivityKind,
    ActivityType,
    ConnectionActivity,
    Dropped,
    Request,
    WrittenEvent,
    event_record,
)
from minibroker_protocol.records import Record

MAGIC: Final = b"\xff\xff\xff\xff"
"""The first bytes of every IPC stream. No JSON starts with them."""

_MARK: Final = 0xFFFFFFFF
_DICTIONARY, _RECORD_BATCH = 2, 3
"""Types of messages."""
_MESSAGE_TYPE, _MESSAGE_HEADER, _MESSAGE_BODY_BYTES = 1, 2, 3
_DICTIONARY_DATA, _BATCH_COMPRESSION = 1, 3
"""Numbers of fields in Arrow's ``Message``, ``DictionaryBatch`` and ``RecordBatch``."""
_PREFIX, _LONG = struct.Struct("<II"), struct.Struct("<q")
_UNSIGNED, _SIGNED, _SHORT = struct.Struct("<I"), struct.Struct("<i"), struct.Struct("<H")

_TYPES: Final = {
    ActivityType.INT: pa.int32(),
    ActivityType.LONG: pa.int64(),
    ActivityType.DOUBLE: pa.float64(),
    ActivityType.TEXT: pa.dictionary(pa.int32(), pa.string()),
    ActivityType.FLAG: pa.bool_(),
}


def parts_of(field: ActivityField) -> list[tuple[str, ActivityField]]:
    """The columns of a field: one, or one for each field of a quota check."""
    if field.type is not ActivityType.CHECK:
        return [(field.name, field)]
    return [(f"{field.name}.{part.name}", part) for part in CHECK_FIELDS]


COLUMNS: Final = {name: part for field in FIELDS for name, part in parts_of(field)}
"""The columns of events by name, in the order of the activity schema."""
SCHEMA: Final = pa.schema([(name, _TYPES[part.type]) for name, part in COLUMNS.items()])

_REQUEST: Final = str(ActivityKind.REQUEST)
_CONNECTION: Final = str(ActivityKind.CONNECTION)
_DROPPED: Final = str(ActivityKind.DROPPED)

Row = tuple[Any, ...]
Column: TypeAlias = "Sequence[Any] | pa.Scalar | None"
"""The values of a column: each, one for all events, or none."""


class NoEventBatch(ValueError):
    """Bytes are no IPC stream with the columns of events; the text says why."""


class ArrowWriter:
    """The writer of one broker's events."""

    def __init__(self, broker: int, started_us: int, sample: float) -> None:
        """``started_us`` is the start of the broker."""
        self._broker, self._started_us, self._sample = broker, started_us, sample
        self._same_in_all = {
            name: pa.scalar(value, SCHEMA.field(name).type)
            for name, value in (
                ("version", VERSION), ("kind", _REQUEST), ("broker", broker),
                ("started_us", started_us), ("sample", sample),
            )
        }  # fmt: skip
        """The columns of requests that have one value."""
        # pyarrow imports more when it is first used, for which descriptors may be lacking later.
        self.records([(0, 0, 0)], 0)

    def records(self, events: Sequence[WrittenEvent], first_sequence: int) -> list[Record]:
        """One record with consecutive events, with the time of the last one."""
        if all(len(event) == REQUEST_FIELDS for event in events):
            columns = self._requests(events, first_sequence)
        else:
            rows = [self._row(event, at) for at, event in enumerate(events, first_sequence)]
            columns = list(zip(*rows, strict=True))
        arrays = [
            _array(values, field.type, len(events))
            for values, field in zip(columns, SCHEMA, strict=True)
        ]
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, SCHEMA) as stream:
            stream.write_batch(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA))
        return [event_record(events[-1], out.getvalue().to_pybytes())]

    def _row(self, event: WrittenEvent, sequence: int) -> Row:
        """The values of all columns, in their order."""
        if len(event) == CONNECTION_ACTIVITY_FIELDS:
            return self._connection_event(event, sequence)
        if len(event) == DROPPED_FIELDS:
            return self._dropped(event, sequence)
        return self._request(event, sequence)

    def _requests(self, events: Sequence[Any], first_sequence: int) -> list[Column]:
        """The columns of requests; creating their rows first would take twice the time."""
        (
            time_us, clock_ms, clients, api_key, api_version, request_bytes, response_bytes,
            records, mutations, exempt, queue_ns, network_ns, io_ns, total_ns, checked_ns, late,
            checks, places, throttle_ms, error_code,
        ) = zip(*events, strict=True)  # fmt: skip
        late_ns, late_clock_ms, late_ordinal = _columns(late, 3)
        checked = [part for of_kind in _columns(checks, 4) for part in _columns(of_kind, _PARTS)]
        sequences = range(first_sequence, first_sequence + len(events))
        same = self._same_in_all
        return [
            same["version"], same["kind"], same["broker"], same["started_us"], sequences, time_us,
            clock_ms, same["sample"], *_columns(clients, 5), api_key, api_version, request_bytes,
            response_bytes, records, *_columns(mutations, 3), exempt, queue_ns, network_ns, io_ns,
            total_ns, checked_ns, late_ns, late_clock_ms, *checked, *_columns(places, 3),
            late_ordinal, throttle_ms, error_code, None, None, None, None,
        ]  # fmt: skip

    def _request(self, event: Request, sequence: int) -> Row:
        (
            time_us, clock_ms, client, api_key, api_version, request_bytes, response_bytes, records,
            mutations, exempt, queue_ns, network_ns, io_ns, total_ns, checked_ns, late, checks,
            places, throttle_ms, error_code,
        ) = event  # fmt: skip
        late_ns, late_clock_ms, late_ordinal = late or (None, None, None)
        ordinal, time_ordinal, back_ordinal = places or (None, None, None)
        produce, fetch, request, mutation = checks or (None, None, None, None)
        return (
            VERSION, _REQUEST, self._broker, self._started_us, sequence, time_us, clock_ms,
            self._sample, *client, api_key, api_version, request_bytes, response_bytes, records,
            *(mutations or (None, None, None)), exempt, queue_ns, network_ns, io_ns, total_ns,
            checked_ns, late_ns, late_clock_ms, *(produce or _NO_CHECK), *(fetch or _NO_CHECK),
            *(request or _NO_CHECK), *(mutation or _NO_CHECK), ordinal, time_ordinal, back_ordinal,
            late_ordinal, throttle_ms, error_code, None, None, None, None,
        )  # fmt: skip

    def _connection_event(self, event: ConnectionActivity, sequence: int) -> Row:
        time_us, clock_ms, peer, happened, reason, delay_ms = event
        return (
            VERSION, _CONNECTION, self._broker, self._started_us, sequence, time_us, clock_ms,
            self._sample, *peer, *_NOT_OF_CONNECTIONS, happened, reason, delay_ms, None,
        )  # fmt: skip

    def _dropped(self, event: Dropped, sequence: int) -> Row:
        time_us, clock_ms, count = event
        return (
            VERSION, _DROPPED, self._broker, self._started_us, sequence, time_us, clock_ms,
            *_NOT_OF_DROPPED, count,
        )  # fmt: skip


_PARTS: Final = len(CHECK_FIELDS)
_NO_CHECK: Final = (None,) * _PARTS
_NAMES: Final = list(COLUMNS)
_NOT_OF_CONNECTIONS: Final = (None,) * (_NAMES.index("happened") - _NAMES.index("user"))
_NOT_OF_DROPPED: Final = (None,) * (_NAMES.index("dropped") - _NAMES.index("sample"))


def _columns(values: Sequence[Row | None] | None, width: int) -> list[Column]:
    """The columns of a field that has several, and may be missing in some or all events."""
    if values is None or not any(values):
        return [None] * width
    blank = (None,) * width
    return list(zip(*(each or blank for each in values), strict=True))


def _array(values: Column, kind: pa.DataType, count: int) -> pa.Array:
    if values is None:
        return pa.nulls(count, kind)
    if isinstance(values, pa.Scalar):
        return pa.repeat(values, count)
    try:
        array = pa.array(values, kind)
    except (pa.ArrowInvalid, OverflowError, UnicodeEncodeError):
        return pa.array([_fitting(value, kind) for value in values], kind)
    if kind == pa.float64() and pc.all(pc.is_finite(array)).as_py() is False:
        return pa.array([_fitting(value, kind) for value in values], kind)
    return array


def _fitting(value: Any, kind: pa.DataType) -> Any:
    """The nearest value that the column can hold; JSON has no infinite numbers either."""
    if value is None:
        return None
    if pa.types.is_integer(kind):
        most = (1 << kind.bit_width - 1) - 1
        return min(max(value, -most - 1), most)
    if pa.types.is_floating(kind):
        largest = sys.float_info.max
        return min(max(value, -largest), largest)
    return value.encode("utf-8", "replace").decode()


def is_batch(value: bytes | memoryview) -> bool:
    """Whether the value of a record is meant to be a batch of events, and not JSON."""
    return bytes(value[: len(MAGIC)]) == MAGIC


def read_batch(value: bytes | memoryview) -> pa.RecordBatch:
    """The events of a record, which share its memory. Raises NoEventBatch.

    Offsets and sizes inside are checked, values are not. Compressed columns are rejected unread:
    37 kB of them can take 800 MB.
    """
    try:
        if _has_compressed_columns(value):
            raise NoEventBatch("its columns are compressed; compress the records of the topic")
        with pa.ipc.open_stream(pa.py_buffer(value)) as stream:
            if stream.schema != SCHEMA:
                raise NoEventBatch(_difference(stream.schema))
            batch = stream.read_next_batch()
            batch.validate(full=True)
            for _ in stream:
                raise NoEventBatch("it contains more than one Arrow record batch")
    except StopIteration:
        raise NoEventBatch("it contains no Arrow record batch") from None
    except NoEventBatch:
        raise
    except (pa.ArrowException, OSError, ValueError, MemoryError, struct.error, IndexError) as error:
        raise NoEventBatch(f"not an Arrow IPC stream: {error}") from error
    return batch


def _has_compressed_columns(value: bytes | memoryview) -> bool:
    """Whether a message of an IPC stream has compressed columns. Raises NoEventBatch.

    pyarrow reports them only after decompressing, so this reads the tables of Arrow's FlatBuffers.
    """
    at = 0
    while at + _PREFIX.size <= len(value):
        mark, size = _PREFIX.unpack_from(value, at)
        if size == 0:
            break
        at += _PREFIX.size
        message = _table_at(value, at)
        kind = value[_field_at(value, message, _MESSAGE_TYPE)]
        body = _field_at(value, message, _MESSAGE_BODY_BYTES)
        body_bytes = _LONG.unpack_from(value, body)[0] if body else 0
        if mark != _MARK or body_bytes < 0:
            raise NoEventBatch("not an Arrow IPC stream: a message has a wrong length")
        if kind in (_DICTIONARY, _RECORD_BATCH):
            batch = _table_at(value, _field_at(value, message, _MESSAGE_HEADER))
            if kind == _DICTIONARY:
                batch = _table_at(value, _field_at(value, batch, _DICTIONARY_DATA))
            if _field_at(value, batch, _BATCH_COMPRESSION):
                return True
        at += size + body_bytes
    return False


def _table_at(value: bytes | memoryview, reference: int) -> int:
    """The position of the table to which a reference leads."""
    return reference + int(_UNSIGNED.unpack_from(value, reference)[0])


def _field_at(value: bytes | memoryview, table: int, number: int) -> int:
    """The position of a field of a table, or 0 if the table does not have it."""
    fields = table - int(_SIGNED.unpack_from(value, table)[0])
    at = 4 + 2 * number
    if fields < 0 or at >= _SHORT.unpack_from(value, fields)[0]:
        return 0
    offset = int(_SHORT.unpack_from(value, fields + at)[0])
    return table + offset if offset else 0


def _difference(found: pa.Schema) -> str:
    for field in SCHEMA:
        at = found.get_field_index(field.name)
        if at < 0 or found.field(at).type != field.type:
            other = "missing" if at < 0 else f"of type {found.field(at).type}"
            return f"Arrow column `{field.name}` is {other}, not of type {field.type}"
    return f"it has the Arrow columns {', '.join(found.names)}, not those of version {VERSION}"


def event_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """The event in a row, as its JSON object has it."""
    event: dict[str, Any] = {}
    for field in FIELDS:
        parts = parts_of(field)
        found = {part.name: row[name] for name, part in parts if row[name] is not None}
        if found:
            event[field.name] = found if field.type is ActivityType.CHECK else row[field.name]
    return event
