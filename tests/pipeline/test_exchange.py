"""Chunks of events, and batches that are exchanged as bytes."""

from __future__ import annotations

import pyarrow as pa
import pytest

from minibroker.pipeline import exchange
from minibroker.pipeline.exchange import chunks, packed, unpacked


def numbers(first: int, count: int) -> pa.Table:
    return pa.table({"number": range(first, first + count)})


def test_chunks_end_at_rows_or_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = [numbers(0, 5), numbers(5, 1), numbers(6, 0), numbers(6, 7)]
    monkeypatch.setattr(exchange, "CHUNK_ROWS", 4)
    found = list(chunks(tables))
    assert [len(chunk) for chunk in found] == [4, 6, 3]
    assert pa.concat_tables(found).equals(numbers(0, 13))
    monkeypatch.setattr(exchange, "CHUNK_BYTES", 8)
    assert [len(chunk) for chunk in chunks(tables)] == [4, 1, 1, 4, 3]
    assert list(chunks([])) == []


def test_packed_batches_are_unpacked_in_order() -> None:
    tables = [numbers(0, 1000), numbers(7, 1), numbers(0, 0)]
    batches = [table.combine_chunks().to_batches()[0] for table in tables[:2]]
    sizes, bodies = packed(batches)
    assert len(bodies[0].as_py()) < sizes[0].as_py()
    found = [pa.ipc.read_record_batch(each, tables[0].schema) for each in unpacked(sizes, bodies)]
    assert found == batches
