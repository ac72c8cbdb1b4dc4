"""Encodes rows of a run as complete Parquet files.

Owns the Parquet type, encoding and codec of each field, and the size of row groups; it must never
know where files go. Invariant: the columns are those of the schema in its order, null where an
event has no value, and strings are dictionary-encoded.
"""

from __future__ import annotations

import io
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from minibroker.activity.schema import CHECK_FIELDS, FIELDS, ActivityType
from minibroker.pipeline.columns import LEAVES, MASKS, EventRun, Leaf
from minibroker.pipeline.encoding import pages
from minibroker.pipeline.encoding.footer import (
    Chunk,
    Codec,
    Column,
    Encoding,
    Page,
    Physical,
    RowGroup,
    nothing,
    whole_file,
)
from minibroker.pipeline.encoding.gathering import TOGETHER, gather
from minibroker.pipeline.encoding.values import BLOCK, put_texts, renumber, texts_bytes
from minibroker.pipeline.simd_words import SLACK
from minibroker.pipeline.string_table import STRINGS_MAX

GROUP_ROWS: Final = 1 << 16
"""Rows of a row group, in which each column is one page of at most half a mebibyte."""

_ARROW: Final = {
    ActivityType.INT: pa.int32(),
    ActivityType.LONG: pa.int64(),
    ActivityType.DOUBLE: pa.float64(),
    ActivityType.TEXT: pa.string(),
    ActivityType.FLAG: pa.bool_(),
}
_CHECK: Final = pa.struct([(field.name, _ARROW[field.type]) for field in CHECK_FIELDS])
ACTIVITY: Final = pa.schema([(field.name, _ARROW.get(field.type, _CHECK)) for field in FIELDS])
"""The columns of an event in Arrow, as they are read back."""

_HOW: Final = {
    ActivityType.INT: (Physical.INT32, Encoding.DELTA_BINARY_PACKED, pages.NARROW),
    ActivityType.LONG: (Physical.INT64, Encoding.DELTA_BINARY_PACKED, pages.WHOLE),
    ActivityType.DOUBLE: (Physical.DOUBLE, Encoding.PLAIN, pages.WORDS),
    ActivityType.TEXT: (Physical.BYTE_ARRAY, Encoding.RLE_DICTIONARY, pages.PLACES),
    ActivityType.FLAG: (Physical.BOOLEAN, Encoding.PLAIN, pages.BITS),
}
_ASKED_FOR: Final = ("version", "broker", "sequence", "time_us")
"""Columns with statistics, by which readers skip files."""
_CODEC: Final = "lz4_raw"
"""Zstandard makes files 4 % smaller, but writing takes a third longer."""


class _Plan(NamedTuple):
    """How a field is encoded."""

    column: Column
    encoding: Encoding
    how: int
    codec: Codec
    number: int
    """The leaf's number."""
    around: int
    """The number of the enclosing leaf; of the leaf itself if there is none."""
    asked_for: bool


def _plan(path: tuple[str, ...], leaf: Leaf, numbers: dict[tuple[str, ...], int]) -> _Plan:
    physical, encoding, how = _HOW[leaf.field.type]
    # Delta-encoded times and durations do not compress any further.
    compressed = leaf.field.type is not ActivityType.LONG or path == ("connection",)
    codec = Codec.LZ4_RAW if compressed else Codec.UNCOMPRESSED
    return _Plan(
        Column(path, physical), encoding, how, codec, numbers[path], numbers[path[:1]],
        path[0] in _ASKED_FOR,
    )  # fmt: skip


def _plans() -> list[_Plan]:
    numbers = {path: number for number, path in enumerate(LEAVES)}
    paths: list[tuple[str, ...]] = []
    for field in FIELDS:
        inner = CHECK_FIELDS if field.type is ActivityType.CHECK else ()
        paths += [(field.name, part.name) for part in inner] or [(field.name,)]
    return [_plan(path, LEAVES[path], numbers) for path in paths]


_PLANS: Final = _plans()
_COLUMNS: Final = tuple(plan.column for plan in _PLANS)
_FIELDS: Final = np.array([[leaf.column, leaf.mask, leaf.bit] for leaf in LEAVES.values()])


class Encoder:
    """Encodes one file after another in the same buffers."""

    def __init__(self) -> None:
        self._codec = pa.Codec(_CODEC)
        self._codes = np.full(STRINGS_MAX, -1, np.int32)
        self._which = np.empty(GROUP_ROWS, np.int32)
        self._work = np.empty(BLOCK, np.int64)
        self._places = np.empty(TOGETHER, np.uint64)
        self._counts = np.zeros(len(LEAVES), np.int64)
        self._bits = np.zeros((len(LEAVES), GROUP_ROWS // TOGETHER), np.uint64)
        self._room = np.empty((len(LEAVES), GROUP_ROWS + pages.SPARE), np.int64)
        self._bytes_of_bits, self._values = [*self._bits.view(np.uint8)], [*self._room]
        self._out = np.empty(pages.page_bytes(GROUP_ROWS), np.uint8)

    def file(self, run: EventRun, rows: Any) -> bytes:
        """Encode rows of a run, in the given order, as a file; there is at least one row."""
        groups = []
        for begin in range(0, len(rows), GROUP_ROWS):
            part = rows[begin : begin + GROUP_ROWS]
            gather(
                run.values, part, MASKS, _FIELDS, self._places, self._room, self._bits, self._counts
            )
            groups.append(RowGroup(len(part), [self._chunk(run, len(part), at) for at in _PLANS]))
        return whole_file(_COLUMNS, groups)

    def _chunk(self, run: EventRun, rows: int, plan: _Plan) -> Chunk:
        if not self._counts[plan.around]:
            return Chunk(plan.column, Codec.UNCOMPRESSED, None, nothing(rows), rows, None)
        count, values = int(self._counts[plan.number]), self._values[plan.number]
        dictionary, encoding, how, width = None, plan.encoding, plan.how, 0
        if not count:
            encoding, how = Encoding.PLAIN, pages.NOTHING
        elif how == pages.PLACES:
            found = renumber(values, count, self._codes, self._which)
            dictionary = self._dictionary(run, self._which[:found], plan.codec)
            width = max(int(found - 1).bit_length(), 1)
        ends = None
        if plan.asked_for:
            kind = np.int32 if plan.column.physical is Physical.INT32 else np.int64
            seen = values[:count]
            ends = kind(seen.min()).tobytes(), kind(seen.max()).tobytes()
        outer, inner = self._bytes_of_bits[plan.around], self._bytes_of_bits[plan.number]
        nested = plan.around != plan.number
        size = pages.put_page(how, width, nested, outer, inner, rows, values, count, self._work,
                              self._out)  # fmt: skip
        data = self._page(self._out[:size], rows, encoding, plan.codec)
        return Chunk(plan.column, plan.codec, dictionary, data, rows - count, ends)

    def _dictionary(self, run: EventRun, which: Any, codec: Codec) -> Page:
        content, ends = run.texts.content, run.texts.ends
        most = texts_bytes(which, ends) + SLACK
        out = self._out if most <= len(self._out) else np.empty(most, np.uint8)
        size = put_texts(which, len(which), content, ends, out)
        return self._page(out[:size], len(which), Encoding.PLAIN, codec)

    def _page(self, written: Any, values: int, encoding: Encoding, codec: Codec) -> Page:
        size = len(written)
        if codec is Codec.UNCOMPRESSED:
            return Page(written.tobytes(), size, values, encoding)
        return Page(self._codec.compress(written, asbytes=True), size, values, encoding)


def file_bytes(table: pa.Table) -> bytes:
    """A complete Parquet file of a table that has no events."""
    out = io.BytesIO()
    pq.write_table(table, out, compression="lz4", store_schema=False, write_statistics=False)
    return out.getvalue()
