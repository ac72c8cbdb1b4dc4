"""A segment is found through its indexes while it grows, sealed, and restored alike."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.log.batch_search import LargeBatchError, TimestampOffset
from minibroker.broker.log.segment import ActiveSegment, SegmentFiles
from minibroker_protocol.compression import Compression
from minibroker_protocol.records import Record, TimestampType, build_batch
from tests.broker.log.segments import check_finds, fill, grow


@given(
    groups=st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=5), min_size=1, max_size=25),
    codec=st.sampled_from([Compression.NONE, Compression.GZIP]),
)
def test_lookups_are_exact_in_active_sealed_and_restored_segment(
    tmp_path_factory: pytest.TempPathFactory, groups: list[list[int]], codec: Compression
) -> None:
    directory = str(tmp_path_factory.mktemp("segment"))
    growing = ActiveSegment(directory, 100, SegmentFiles(), now_ms=0)
    records = fill(growing, groups, codec)
    check_finds(growing, records)
    growing.finish_indexes()
    sealed = growing.seal()
    check_finds(sealed, records)
    assert [header.record_count for header in sealed.headers()] == [len(g) for g in groups]
    restored = ActiveSegment(directory, 100, SegmentFiles(), now_ms=0)
    restored.restore(sealed.size, sealed.next_offset)
    assert restored.max_timestamp == sealed.max_timestamp
    assert restored.first_timestamp == max(groups[0])
    check_finds(restored, records)
    records += fill(restored, groups, codec)
    check_finds(restored, records)
    restored.finish_indexes()
    check_finds(restored.seal(), records)


def test_records_without_timestamp_are_not_found_by_time(segment: ActiveSegment) -> None:
    assert segment.find_max_timestamp() is None
    fill(segment, [[-1], [-1]], Compression.NONE)
    assert segment.find_max_timestamp() is None
    assert segment.find_by_timestamp(0, 100) is None
    assert segment.extent == (100, segment.size, 0)


def test_max_timestamp_of_log_append_time_batch_is_at_its_last_record(
    segment: ActiveSegment,
) -> None:
    kind = TimestampType.LOG_APPEND_TIME
    batch = build_batch([Record(timestamp=9)] * 3, base_offset=100, timestamp_type=kind)
    grow(segment, batch)
    assert segment.find_max_timestamp() == TimestampOffset(9, 102, -1)
    assert segment.find_by_timestamp(9, 100) == TimestampOffset(9, 100, -1)


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.GZIP])
def test_undecodable_batch_does_not_hide_later_batches(
    segment: ActiveSegment, codec: Compression
) -> None:
    nonsense = bytearray(build_batch([Record(timestamp=5)] * 3, base_offset=100, compression=codec))
    nonsense[61:] = b"\xff" * len(nonsense[61:])
    grow(segment, bytes(nonsense))
    records = fill(segment, [[3], [9]], Compression.NONE)
    assert segment.find_by_timestamp(6, 100) == TimestampOffset(9, records[1].offset, -1)
    try:
        result = segment.find_by_timestamp(4, 100)
    except LargeBatchError as large:
        result = large.search()
    assert result == TimestampOffset(5, 102, -1)
    assert segment.find_max_timestamp() == TimestampOffset(9, records[1].offset, -1)
