"""Events in chunks, and Arrow batches that tasks exchange as bytes.

Owns the limits of a chunk, and the compression of exchanged batches; it must never know what is in
them. Invariant: a chunk keeps the order of its events, and no event is lost or repeated.
A whole batch travels in one row, because Spark's cost is per row. Kafka has no counterpart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

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


def packed(batches: Iterable[pa.RecordBatch]) -> list[pa.Array]:
    """Two columns with a row for each batch: its size in bytes, and its compressed bytes."""
    bodies = [batch.serialize() for batch in batches]
    return [
        pa.array([body.size for body in bodies], pa.int32()),
        # Copied to bytes: Arrow never releases a Python buffer passed to it.
        pa.array([_CODEC.compress(body, asbytes=True) for body in bodies], pa.binary()),
    ]


def unpacked(sizes: pa.Array, bodies: pa.Array) -> Iterator[pa.Buffer]:
    """The serialized batches of two columns that `packed` made."""
    for size, body in zip(sizes.to_pylist(), bodies, strict=True):
        yield _CODEC.decompress(body.as_buffer(), size)
