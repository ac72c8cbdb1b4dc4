"""Raw events to Arrow columns, and what is malformed beside them.

Owns the way from bytes to the activity table's columns: compiled for the plain spelling, event by
event for the rest. It must never know where events lie or go. Invariant: every event that came is
either a row or a fault with its reason, and which of both is what ``events.parse_event`` says.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from minibroker.activity.schema import CHECK_FIELDS, FIELDS, VERSION, EventKind, Field, Type
from minibroker.pipeline import parsing
from minibroker.pipeline.events import (
    INT_MAX,
    LONG_MAX,
    SIGNED,
    Malformed,
    needed,
    parse_event,
)
from minibroker.pipeline.walking import gather

_ARROW: Final = {
    Type.INT: pa.int32(),
    Type.LONG: pa.int64(),
    Type.DOUBLE: pa.float64(),
    Type.TEXT: pa.string(),
    Type.FLAG: pa.bool_(),
    Type.CHECK: None,
}
_CHECK_TYPE: Final = pa.struct([(field.name, _ARROW[field.type]) for field in CHECK_FIELDS])
ACTIVITY: Final = pa.schema([(field.name, _ARROW[field.type] or _CHECK_TYPE) for field in FIELDS])
"""The columns of an event for Arrow."""

_KINDS: Final = {
    Type.INT: parsing.INTEGER,
    Type.LONG: parsing.INTEGER,
    Type.DOUBLE: parsing.DECIMAL,
    Type.TEXT: parsing.TEXT,
    Type.FLAG: parsing.FLAG,
    Type.CHECK: parsing.CHECK,
}


class Parsed(NamedTuple):
    """What became of a number of raw events."""

    table: pa.Table
    """Those that are whole, in the order in which they came, except that odd spellings are last."""
    faults: list[tuple[int, str]]
    """Number and reason of each that is malformed."""


class _Plan:
    """What the compiled reader must know of the schema, made once."""

    def __init__(self) -> None:
        self.leaves: list[tuple[str, Field]] = []
        keys: list[tuple[int, int, int, int]] = []
        words: list[str] = []
        inner: list[Field] = []
        for field in FIELDS:
            words.append(field.name)
            first = len(FIELDS) + len(inner)
            if field.type is Type.CHECK:
                inner += CHECK_FIELDS
                keys.append(
                    (parsing.CHECK, self._leaf("", field), first, first + len(CHECK_FIELDS))
                )
            else:
                keys.append(self._key("", field))
        for check in (field for field in FIELDS if field.type is Type.CHECK):
            words += (field.name for field in CHECK_FIELDS)
            keys += [self._key(check.name, field) for field in CHECK_FIELDS]
        spelled = [f'"{word}":'.encode() for word in words]
        kinds = [str(kind).encode() for kind in EventKind]
        bounds = np.cumsum([0, *map(len, spelled), *map(len, kinds)])
        ends = bounds[len(words) :]
        names = [field.name for field in FIELDS]
        self.compiled = (
            np.frombuffer(b"".join(spelled + kinds), np.uint8),
            bounds.astype(np.int64),
            np.array(keys, np.int64),
            len(FIELDS),
            np.uint64(_mask([not field.may_lack for field in CHECK_FIELDS])),
            np.array([_mask([needed(f, kind) for f in FIELDS]) for kind in EventKind], np.uint64),
            np.stack([ends[:-1], ends[1:]], axis=1).astype(np.int64),
            keys[names.index("version")][1],
            keys[names.index("kind")][1],
            VERSION,
        )

    def _leaf(self, prefix: str, field: Field) -> int:
        self.leaves.append((prefix, field))
        return len(self.leaves) - 1

    def _key(self, prefix: str, field: Field) -> tuple[int, int, int, int]:
        most = INT_MAX if field.type is Type.INT else LONG_MAX
        least = -most - 1 if field.name in SIGNED else 0
        return _KINDS[field.type], self._leaf(prefix, field), least, most


def _mask(bits: list[bool]) -> int:
    return sum(1 << at for at, bit in enumerate(bits) if bit)


_PLAN: Final = _Plan()


def parse(values: pa.Array) -> Parsed:
    """Read ``values``, an array of binaries, one event each."""
    plain, others = _plain(values)
    whole, faults = [], []
    for row in others:
        try:
            whole.append(parse_event(values[row].as_py()))
        except Malformed as error:
            faults.append((int(row), str(error)))
    tables = [plain]
    if whole:
        tables.append(pa.Table.from_pylist(whole, ACTIVITY))
    return Parsed(pa.concat_tables(tables), faults)


def _plain(values: pa.Array) -> tuple[pa.Table, Any]:
    """(the events that the compiled reader took, the rows of the others)."""
    count = len(values)
    bounds = np.frombuffer(values.buffers()[1], np.int32, count + 1, values.offset * 4)
    bounds = bounds.astype(np.int64)
    content = values.buffers()[2]
    data = np.frombuffer(content, np.uint8) if content else np.zeros(0, np.uint8)
    places = np.zeros((len(_PLAN.leaves), count), np.int64)
    sizes = np.full((len(_PLAN.leaves), count), -1, np.int32)
    taken = np.zeros(count, np.bool_)
    parsing.read_events(data, bounds[:-1], bounds[1:], _PLAN.compiled, places, sizes, taken)
    others = np.flatnonzero(~taken)
    if len(others):
        places, sizes = places[:, taken], sizes[:, taken]
    arrays = {
        (prefix, field.name): _array(field.type, data, places[leaf], sizes[leaf])
        for leaf, (prefix, field) in enumerate(_PLAN.leaves)
        if field.type is not Type.CHECK
    }
    columns = []
    for leaf, (prefix, field) in enumerate(_PLAN.leaves):
        if field.type is Type.CHECK:
            inner = [arrays[field.name, part.name] for part in CHECK_FIELDS]
            columns.append(_struct(inner, sizes[leaf]))
        elif not prefix:
            columns.append(arrays[prefix, field.name])
    return pa.Table.from_arrays(columns, schema=ACTIVITY), others


def _validity(sizes: Any) -> pa.Buffer | None:
    there = sizes >= 0
    return None if there.all() else pa.py_buffer(np.packbits(there, bitorder="little"))


def _struct(inner: list[pa.Array], sizes: Any) -> pa.Array:
    return pa.StructArray.from_buffers(_CHECK_TYPE, len(sizes), [_validity(sizes)], children=inner)


def _array(kind: Type, data: Any, places: Any, sizes: Any) -> pa.Array:
    if kind in (Type.TEXT, Type.DOUBLE):
        texts = _texts(data, places, sizes)
        return texts if kind is Type.TEXT else pc.cast(texts, pa.float64())
    numbers = np.ascontiguousarray(places)
    if kind is Type.FLAG:
        content = np.packbits(numbers.astype(np.bool_), bitorder="little")
    else:
        content = numbers.astype(np.int32) if kind is Type.INT else numbers
    return pa.Array.from_buffers(
        _ARROW[kind], len(sizes), [_validity(sizes), pa.py_buffer(content)]
    )


def _texts(data: Any, places: Any, sizes: Any) -> pa.Array:
    if len(sizes) and sizes.max() < 0:
        return pa.nulls(len(sizes), pa.string())
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(np.maximum(sizes, 0), out=offsets[1:])
    out = np.empty(offsets[-1], np.uint8)
    gather(data, places, sizes, offsets, out)
    buffers = [_validity(sizes), pa.py_buffer(offsets), pa.py_buffer(out)]
    return pa.Array.from_buffers(pa.string(), len(sizes), buffers)
