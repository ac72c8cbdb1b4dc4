"""The metadata of a Parquet file: page headers, and the footer.

Owns Parquet's structs, with the field numbers of its ``parquet.thrift``; it must never know what
columns mean or how pages are encoded. Invariant: files use version 1 of data pages, every column is
optional, and each column of a row group is one data page, after its dictionary page if it has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Final, NamedTuple

from minibroker.pipeline.encoding.thrift import (
    Value,
    array,
    binary,
    int16,
    int32,
    int64,
    struct,
    varint,
)

MAGIC: Final = b"PAR1"
"""The first and last bytes of every file."""

KEPT_MAX: Final = 1024
"""Size of the caches of encoded structs that many files or columns share."""

_VERSION: Final = 2
_DATA_PAGE, _DICTIONARY_PAGE = 0, 2
_OPTIONAL: Final = 1
_UTF8: Final = 0
_LENGTH: Final = 4
_WRITTEN_BY: Final = b"minibroker"


class Physical(IntEnum):
    """The type of a column's values."""

    BOOLEAN = 0
    INT32 = 1
    INT64 = 2
    DOUBLE = 5
    BYTE_ARRAY = 6


class Encoding(IntEnum):
    """How values are written."""

    PLAIN = 0
    RLE = 3
    DELTA_BINARY_PACKED = 5
    RLE_DICTIONARY = 8


class Codec(IntEnum):
    """How a page is compressed."""

    UNCOMPRESSED = 0
    LZ4_RAW = 7


class Column(NamedTuple):
    """A column of the schema; byte arrays are strings."""

    path: tuple[str, ...]
    physical: Physical


class Page(NamedTuple):
    """A page's content, without its header."""

    content: bytes
    size: int
    """Before compression."""
    values: int
    """Including nulls."""
    encoding: Encoding


@lru_cache(KEPT_MAX)
def nothing(rows: int) -> Page:
    """A page of rows that are all null, including the object around the column."""
    levels = varint(rows << 1) + b"\0"
    content = len(levels).to_bytes(_LENGTH, "little") + levels
    return Page(content, len(content), rows, Encoding.PLAIN)


class Chunk(NamedTuple):
    """A column in a row group."""

    column: Column
    codec: Codec
    dictionary: Page | None
    data: Page
    nulls: int
    ends: tuple[bytes, bytes] | None
    """Smallest and largest value in plain encoding, if the column has statistics."""


class RowGroup(NamedTuple):
    """A row group."""

    rows: int
    chunks: Sequence[Chunk]


_LEVELS: Final = {3: int32(Encoding.RLE), 4: int32(Encoding.RLE)}


@lru_cache(KEPT_MAX)
def _head(kind: int, size: int, stored: int, values: int, encoding: Encoding) -> bytes:
    told = {1: int32(values), 2: int32(encoding)}
    if kind == _DATA_PAGE:
        told |= _LEVELS
    return struct(
        {
            1: int32(kind),
            2: int32(size),
            3: int32(stored),
            5 if kind == _DATA_PAGE else 7: struct(told),
        }
    ).content


@lru_cache(KEPT_MAX)
def _of_column(column: Column, encodings: tuple[Encoding, ...], codec: Codec) -> dict[int, Value]:
    return {
        1: int32(column.physical),
        2: array(map(int32, encodings)),
        3: array(binary(name.encode()) for name in column.path),
        4: int32(codec),
    }


def _of_chunk(chunk: Chunk, out: list[bytes], position: int) -> tuple[Value, int, int]:
    """Append a column's pages to ``out``, which continue the file at ``position``: (its metadata
    for the footer, its size, its uncompressed size).
    """
    begin, whole = position, 0
    told = [(chunk.data, _DATA_PAGE)]
    encodings: tuple[Encoding, ...] = (Encoding.RLE, chunk.data.encoding)
    if chunk.dictionary is not None:
        told.insert(0, (chunk.dictionary, _DICTIONARY_PAGE))
        encodings += (chunk.dictionary.encoding,)
    at = []
    for page, kind in told:
        head = _head(kind, page.size, len(page.content), page.values, page.encoding)
        out += [head, page.content]
        at.append(position)
        position += len(head) + len(page.content)
        whole += len(head) + page.size
    fields = {
        **_of_column(chunk.column, encodings, chunk.codec),
        5: int64(chunk.data.values),
        6: int64(whole),
        7: int64(position - begin),
        9: int64(at[-1]),
    }
    if chunk.dictionary is not None:
        fields[11] = int64(begin)
    if chunk.ends is not None:
        least, largest = chunk.ends
        fields[12] = struct({3: int64(chunk.nulls), 5: binary(largest), 6: binary(least)})
    return struct({2: int64(begin), 3: struct(fields)}), position - begin, whole


@lru_cache(KEPT_MAX)
def _schema(columns: tuple[Column, ...]) -> Value:
    """All schema elements in depth-first order, beginning with the root."""
    elements, top = [], 0
    inner: dict[str, int] = {}
    for column in columns:
        inner[column.path[0]] = inner.get(column.path[0], 0) + 1
    for column in columns:
        name, nested = column.path[0], len(column.path) > 1
        if name in inner:
            top += 1
            if nested:
                about = {3: int32(_OPTIONAL), 4: binary(name.encode()), 5: int32(inner[name])}
                elements.append(struct(about))
            del inner[name]
        about = {
            1: int32(column.physical),
            3: int32(_OPTIONAL),
            4: binary(column.path[-1].encode()),
        }
        if column.physical is Physical.BYTE_ARRAY:
            about |= {6: int32(_UTF8), 10: struct({1: struct({})})}
        elements.append(struct(about))
    return array([struct({4: binary(b"schema"), 5: int32(top)}), *elements])


def whole_file(columns: tuple[Column, ...], groups: Sequence[RowGroup]) -> bytes:
    """A file of row groups, each with all columns in the same order.

    Columns of one object, with paths (object, name), must be adjacent.
    """
    out, position = [MAGIC], len(MAGIC)
    told = []
    for number, group in enumerate(groups):
        begin, whole, about = position, 0, []
        for chunk in group.chunks:
            found, size, before = _of_chunk(chunk, out, position)
            about.append(found)
            position += size
            whole += before
        told.append(
            struct(
                {
                    1: array(about),
                    2: int64(whole),
                    3: int64(group.rows),
                    5: int64(begin),
                    6: int64(position - begin),
                    7: int16(number),
                }
            )
        )
    footer = struct(
        {
            1: int32(_VERSION),
            2: _schema(columns),
            3: int64(sum(group.rows for group in groups)),
            4: array(told),
            6: binary(_WRITTEN_BY),
            # The type-defined order, without which readers must ignore the statistics.
            7: array(struct({1: struct({})}) for _ in columns),
        }
    ).content
    return b"".join([*out, footer, len(footer).to_bytes(_LENGTH, "little"), MAGIC])
