"""Numbers texts, groups rows by integer keys, adds up their values, and packs batches for exchange.

Owns the numbering of texts and groups, the limits of a chunk of events, and the compression of
batches that tasks exchange; it must never know files or the schema. Invariant: groups are numbered
in the order of their first row, only integers are added, so sums do not depend on the order of
rows, and no event is lost or repeated. A whole batch travels in one row, because Spark's cost is
per row. Kafka has no counterpart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

# Groups ------------------------------------------------------------------------------------------

Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
Floats = np.ndarray[tuple[int], np.dtype[np.float64]]
Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]

KEYS_MAX: Final = 1 << 62
"""Largest range of a combined key; larger ones are renumbered."""


def numbered(keys: Ints) -> tuple[Ints, Ints]:
    """(the row of each distinct key's first occurrence, the number of each row's key)."""
    encoded = pa.array(keys).dictionary_encode()
    numbers: Ints = encoded.indices.to_numpy().astype(np.int64)
    first = np.empty(len(encoded.dictionary), np.int64)
    first[numbers[::-1]] = np.arange(len(numbers) - 1, -1, -1)  # The last assignment counts.
    return first, numbers


def joined(codes: Sequence[NDArray[np.integer]]) -> Ints:
    """Combine codes: one integer from 0 on for each distinct combination."""
    whole, span = np.zeros(len(codes[0]), np.int64), 1
    for code in codes:
        low, high = (int(code.min()), int(code.max())) if len(code) else (0, 0)
        size = high - low + 1
        if span * size >= KEYS_MAX:
            (heads, whole), (others, numbers) = numbered(whole), numbered(code.astype(np.int64))
            span, size = len(heads), len(others)
        else:
            numbers = code.astype(np.int64) - low
        whole = whole * size + numbers
        span *= size
    return whole


def added(groups: Ints, count: int, values: Ints | Flags) -> Ints:
    """The sum of each group's values."""
    found = np.zeros(count, np.int64)
    if values.any():
        np.add.at(found, groups, values.astype(np.int64, copy=False))
    return found


def largest(groups: Ints, count: int, values: Floats) -> Floats:
    """The largest of each group's values; nan if it has none but nan."""
    found = np.full(count, -np.inf)
    np.maximum.at(found, groups, np.where(np.isnan(values), -np.inf, values))
    found[np.isneginf(found)] = np.nan
    return found


def starts_of(groups: Ints, count: int) -> Ints:
    """Where each of ``count`` groups starts in rows that are sorted by group, and the end."""
    found: Ints = np.searchsorted(groups, np.arange(count + 1))
    return found


def interpolated(
    starts: Ints, counts: Ints, share: float, value_at: Callable[[Ints], NDArray[Any]]
) -> Floats:
    """The percentile of each span that starts at one of ``starts`` and is not empty, interpolated
    between the two nearest values as in SQL. ``value_at`` gives the values, which ascend within a
    span, at some positions.
    """
    positions = (counts - 1) * share
    below = np.floor(positions).astype(np.int64)
    low = value_at(starts + below)
    high = value_at(starts + np.minimum(below + 1, counts - 1))
    above = positions - below
    found: Floats = (1 - above) * low + above * high
    return found


def coded(texts: pa.Array | pa.ChunkedArray) -> tuple[Ints, pa.Array]:
    """(the number of each row's text, the texts by number); null has the number after the last."""
    if not pa.types.is_dictionary(texts.type):
        texts = texts.dictionary_encode()
    if isinstance(texts, pa.ChunkedArray):
        texts = texts.unify_dictionaries().combine_chunks()
    numbers = texts.indices.fill_null(len(texts.dictionary)).to_numpy()
    return numbers.astype(np.int64), texts.dictionary


def combined(column: pa.ChunkedArray) -> pa.Array:
    """The column in one piece."""
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


# Exchange between tasks --------------------------------------------------------------------------

CHUNK_ROWS: Final = 262_144
CHUNK_BYTES: Final = 128 * 1024 * 1024
"""Events are processed in chunks, which end as soon as one of these limits is reached."""

_CODEC: Final = pa.Codec("lz4_raw")
"""Compresses exchanged batches, which Spark keeps in memory while it sorts."""


def chunks(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Combine and split tables into chunks within the limits."""
    pending: list[pa.Table] = []
    rows = size = 0
    for table in tables:
        for at in range(0, len(table), CHUNK_ROWS):
            pending.append(table.slice(at, CHUNK_ROWS))
            rows += len(pending[-1])
            size += pending[-1].nbytes
            if rows >= CHUNK_ROWS or size >= CHUNK_BYTES:
                # Copied to release the tables that were read.
                chunk, pending, rows, size = pa.concat_tables(pending).combine_chunks(), [], 0, 0
                yield chunk
                del chunk
    if pending:
        yield pa.concat_tables(pending).combine_chunks()


def packed(keys: Mapping[str, Ints], batch: pa.RecordBatch, starts: Ints) -> pa.RecordBatch:
    """A row for each slice of a batch, from one of ``starts`` to the next one.

    Its columns are the slice's keys, its ``size`` in bytes, and its compressed ``content``.
    """
    ends = np.append(starts[1:], len(batch))
    slices = [batch.slice(at, end - at).serialize() for at, end in zip(starts, ends, strict=True)]
    # Copied to bytes: Arrow never releases a Python buffer passed to it.
    content = [_CODEC.compress(body, asbytes=True) for body in slices]
    sizes = pa.array([body.size for body in slices], pa.int32())
    return pa.RecordBatch.from_pydict(
        {**keys, "size": sizes, "content": pa.array(content, pa.binary())}
    )


def unpacked(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema
) -> Iterator[tuple[tuple[int, ...], pa.RecordBatch]]:
    """The slices that `packed` made, each with its keys."""
    for batch in batches:
        *keys, sizes, content = batch.columns
        all_keys = zip(*(key.to_pylist() for key in keys), strict=True)
        for slice_keys, size, body in zip(all_keys, sizes.to_pylist(), content, strict=True):
            plain = _CODEC.decompress(body.as_buffer(), size)
            yield slice_keys, pa.ipc.read_record_batch(plain, schema)
