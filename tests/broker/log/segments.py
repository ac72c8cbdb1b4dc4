"""Segments filled with batches, and the check that their records are found."""

from __future__ import annotations

from minibroker.broker.log.segment import ActiveSegment, Segment, TimestampOffset
from minibroker_protocol.compression import Compression
from minibroker_protocol.records import Record, build_batch, parse_batch_header

INTERVAL = 300


def grow(segment: ActiveSegment, batch: bytes) -> None:
    header = parse_batch_header(batch)
    segment.write(batch[:30], memoryview(batch)[30:])
    segment.record_batch(
        header.base_offset,
        header.last_offset,
        header.size,
        header.max_timestamp,
        index_interval_bytes=INTERVAL,
    )


def fill(segment: ActiveSegment, groups: list[list[int]], codec: Compression) -> list[Record]:
    """Append a batch per group of timestamps; returns all records."""
    records: list[Record] = []
    for group in groups:
        batch = [
            Record(segment.next_offset + i, time, b"key", b"value" * 5)
            for i, time in enumerate(group)
        ]
        grow(segment, build_batch(batch, base_offset=segment.next_offset, compression=codec))
        records += batch
    return records


def check_finds(segment: Segment, records: list[Record]) -> None:
    """Every offset and time leads to the first batch and record that it should lead to."""
    for record in records:
        result = segment.locate(record.offset)
        assert result is not None
        with open(segment.path, "rb") as file:
            header = parse_batch_header(file.read(), result[0])
        assert header.base_offset <= record.offset <= header.last_offset
        assert header.size == result[1]
    times = [record.timestamp for record in records]
    for time in {*times, *(time + 1 for time in times), 0}:
        for first in (records[0].offset, records[len(records) // 2].offset):
            expected = [r for r in records if r.timestamp >= time and r.offset >= first]
            assert segment.find_by_timestamp(time, first) == (
                TimestampOffset(expected[0].timestamp, expected[0].offset, -1) if expected else None
            )
    latest = max(times)
    offset = records[times.index(latest)].offset
    assert segment.find_max_timestamp() == TimestampOffset(latest, offset, -1)
