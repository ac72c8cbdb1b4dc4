"""Writes events as complete Parquet files.

Owns the encoding and codec of each column, and the size of row groups; it must never know where
files go. Invariant: the columns are those of the schema in its order, and strings are
dictionary-encoded.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from minibroker.lab.activity.arrow_format import COLUMNS, parts_of
from minibroker.lab.activity.schema import FIELDS, ActivityType

GROUP_ROWS: Final = 1 << 16
"""Rows of a row group."""

DICTIONARY_MAX: Final = 1000
"""Entries of a dictionary that is written although rows may not use all of them."""

_OF_EVENTS: Final[dict[str, Any]] = {
    "row_group_size": GROUP_ROWS,
    "use_dictionary": [name for name, part in COLUMNS.items() if part.type is ActivityType.TEXT],
    # Times and numbers of consecutive events differ little.
    "column_encoding": {
        name: "DELTA_BINARY_PACKED"
        for name, part in COLUMNS.items()
        if part.type in (ActivityType.INT, ActivityType.LONG)
    },
    # By which readers skip files.
    "write_statistics": ["version", "broker", "sequence", "time_us"],
}


def events_file(events: pa.Table) -> bytes:
    """A complete file with these events, in their order."""
    return _file(nested(events, _without_unused), **_OF_EVENTS)


def nested(
    events: pa.Table, text: Callable[[pa.Array], pa.Array] = lambda array: array
) -> pa.Table:
    """The table of events with a struct column for each quota check.

    ``text`` converts the columns of strings, which are dictionary-encoded.
    """
    columns: dict[str, pa.Array] = {}
    for field in FIELDS:
        parts = {part: events[name].combine_chunks() for name, part in parts_of(field)}
        arrays = [
            text(array) if part.type is ActivityType.TEXT else array
            for part, array in parts.items()
        ]
        if field.type is ActivityType.CHECK:
            names, lacking = [part.name for part in parts], arrays[0].is_null()
            columns[field.name] = pa.StructArray.from_arrays(arrays, names=names, mask=lacking)
        else:
            [columns[field.name]] = arrays
    return pa.table(columns)


def _without_unused(texts: pa.DictionaryArray) -> pa.DictionaryArray:
    """Remove texts that no row has, if there are many."""
    if len(texts.dictionary) <= DICTIONARY_MAX:
        return texts
    return texts.cast(pa.string()).dictionary_encode()


def faults_file(faults: pa.Table) -> bytes:
    """A complete file with records that are no events."""
    return _file(faults, write_statistics=False)


def _file(table: pa.Table, **options: Any) -> bytes:
    out = io.BytesIO()
    # Zstandard makes files 4 % smaller, but writing takes a quarter longer.
    pq.write_table(table, out, compression="lz4", store_schema=False, **options)
    return out.getvalue()
