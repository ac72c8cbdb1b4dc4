"""Rows of a run as Arrow tables, and tables as whole Parquet files.

Owns how columns of numbers become the activity table's columns, and how its files are written; it
must never know where files go. Invariant: the columns are those of the schema in its order, null
where an event has nothing, and texts are written as the few that they are.
"""

from __future__ import annotations

import io
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from minibroker.activity.schema import CHECK_FIELDS, FIELDS, Type
from minibroker.pipeline.columns import LEAVES, MASKS, Leaf, Run
from minibroker.pipeline.ordering import gather, numbered_anew, pack_bit
from minibroker.pipeline.texts import TEXTS_MAX

_ARROW: Final = {
    Type.INT: pa.int32(),
    Type.LONG: pa.int64(),
    Type.DOUBLE: pa.float64(),
    Type.TEXT: pa.string(),
    Type.FLAG: pa.bool_(),
}
_CHECK: Final = pa.struct([(field.name, _ARROW[field.type]) for field in CHECK_FIELDS])
ACTIVITY: Final = pa.schema([(field.name, _ARROW.get(field.type, _CHECK)) for field in FIELDS])
"""The columns of an event for Arrow, once they are read."""


class Tables:
    """Makes tables of rows, one after the other in the same memory: a table is good until the next
    one is made.
    """

    def __init__(self) -> None:
        self._room = np.empty((len(LEAVES), 0), np.int64)
        self._codes = np.full(TEXTS_MAX, -1, np.int32)

    def table(self, run: Run, rows: Any, texts: list[bytes]) -> pa.Table:
        """Some rows of a run, in this order; columns of texts are dictionaries."""
        if self._room.shape[1] < len(rows):
            self._room = np.empty((len(LEAVES), len(rows)), np.int64)
        return _Rows(run, rows, texts, self._room, self._codes).table()


class _Rows:
    """Rows that become columns."""

    def __init__(self, run: Run, rows: Any, texts: list[bytes], room: Any, codes: Any) -> None:
        self._count, self._texts, self._codes = len(rows), texts, codes
        self._masks = [run.values[rows, MASKS + at] for at in range(2)]
        self._all = [int(np.bitwise_and.reduce(mask)) for mask in self._masks]
        self._any = [int(np.bitwise_or.reduce(mask)) for mask in self._masks]
        there = [leaf.column for leaf in LEAVES.values() if self._some(leaf)]
        gather(run.values, rows, np.array(there, np.int64), room)
        self._values = room[:, : len(rows)]

    def _some(self, leaf: Leaf) -> bool:
        """Whether any of the events has a value of it."""
        return bool(self._any[leaf.mask] >> leaf.bit & 1)

    def table(self) -> pa.Table:
        columns = []
        for field in FIELDS:
            leaf = LEAVES[field.name,]
            if field.type is Type.CHECK:
                columns.append(self._check(field.name, leaf))
            else:
                columns.append(self._column(leaf))
        return pa.Table.from_arrays(columns, [field.name for field in FIELDS])

    def _check(self, name: str, leaf: Leaf) -> pa.Array:
        if not self._some(leaf):
            return pa.nulls(self._count, _CHECK)
        inner = [self._column(LEAVES[name, part.name]) for part in CHECK_FIELDS]
        kind = pa.struct([(f.name, each.type) for f, each in zip(CHECK_FIELDS, inner, strict=True)])
        validity = self._validity(leaf)
        return pa.StructArray.from_buffers(kind, self._count, [validity], children=inner)

    def _column(self, leaf: Leaf) -> pa.Array:
        kind = _ARROW[leaf.field.type]
        if not self._some(leaf):
            return pa.nulls(self._count, kind)
        validity, values = self._validity(leaf), self._values[leaf.column]
        if leaf.field.type is Type.TEXT:
            return self._text(leaf, values, validity)
        if leaf.field.type is Type.FLAG:
            values = np.packbits(values.astype(np.bool_), bitorder="little")
        elif leaf.field.type is Type.INT:
            values = values.astype(np.int32)
        return pa.Array.from_buffers(kind, self._count, [validity, pa.py_buffer(values)])

    def _text(self, leaf: Leaf, numbers: Any, validity: pa.Buffer | None) -> pa.Array:
        which, codes = numbered_anew(numbers, self._masks[leaf.mask], leaf.bit, self._codes)
        indices = pa.Array.from_buffers(pa.int32(), self._count, [validity, pa.py_buffer(codes)])
        words = pa.array([self._texts[each] for each in which.tolist()], pa.binary())
        return pa.DictionaryArray.from_arrays(indices, words.cast(pa.string()), safe=False)

    def _validity(self, leaf: Leaf) -> pa.Buffer | None:
        if self._all[leaf.mask] >> leaf.bit & 1:
            return None
        bits = np.empty((self._count + 7) // 8, np.uint8)
        pack_bit(self._masks[leaf.mask], leaf.bit, bits)
        return pa.py_buffer(bits)


_TEXTS: Final = [".".join(path) for path, leaf in LEAVES.items() if leaf.field.type is Type.TEXT]
_ENCODINGS: Final = {
    ".".join(path): "DELTA_BINARY_PACKED"
    for path, leaf in LEAVES.items()
    if leaf.field.type in (Type.INT, Type.LONG)
}
"""Differences of whole numbers are small, so there is less for the compressor to do."""
_CODEC: Final = "lz4"
"""Zstandard makes files smaller by 4 %, and their writing take a third longer."""
_CODECS: Final = {
    ".".join(path): "none" if leaf.field.type is Type.LONG and path != ("connection",) else _CODEC
    for path, leaf in LEAVES.items()
    if leaf.field.type is not Type.CHECK
}
"""Differences of times and durations have nothing left to compress."""
_ASKED_FOR: Final = ["version", "broker", "sequence", "time_us"]
"""Columns by whose least and largest values readers leave out files."""


def file_bytes(table: pa.Table) -> bytes:
    """A whole Parquet file of events or of anything else."""
    names = set(table.schema.names)
    out = io.BytesIO()
    pq.write_table(
        table, out, compression=dict.fromkeys(names, _CODEC) | _CODECS,
        store_schema=False, use_dictionary=_TEXTS,
        write_statistics=[name for name in _ASKED_FOR if name in names],
        column_encoding={name: how for name, how in _ENCODINGS.items()
                         if name.split(".")[0] in names},
    )  # fmt: skip
    return out.getvalue()
