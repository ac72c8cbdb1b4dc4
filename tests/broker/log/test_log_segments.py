from __future__ import annotations

from pathlib import Path

import pytest

from minibroker.broker.log.log_segments import LogSegments
from minibroker.broker.log.segment import ActiveSegment, SegmentFiles
from minibroker.broker.log.transaction_index import AbortedTransaction
from minibroker_protocol.records import Record, build_batch

FILES = SegmentFiles()


def active(directory: Path, base_offset: int, batches: int) -> ActiveSegment:
    segment = ActiveSegment(str(directory), base_offset, FILES, now_ms=0)
    for offset in range(base_offset, base_offset + batches):
        batch = build_batch([Record(timestamp=offset, value=b"v")], base_offset=offset)
        segment.write(b"", memoryview(batch))
        segment.record_batch(offset, offset, len(batch), offset, index_interval_bytes=1)
    return segment


@pytest.fixture
def segments(tmp_path: Path) -> LogSegments:
    """Segments of offsets 0 to 2, 3 to 5 and 6 to 8, one batch an offset."""
    made = LogSegments([], active(tmp_path, 0, 3))
    for base_offset in (3, 6):
        made.active.finish_indexes()
        made.roll_to(active(tmp_path, base_offset, 3))
    return made


def test_segments_are_adjacent(segments: LogSegments) -> None:
    assert segments.base_offsets == (0, 3, 6)
    assert [segment.next_offset for segment in segments] == [3, 6, 9]
    assert len(segments) == 3
    assert segments.size == sum(segment.size for segment in segments)
    assert [segments.next_base_offset(offset) for offset in (0, 3, 5, 8)] == [3, 6, 6, None]


def test_read_stays_within_segment_and_before_end(segments: LogSegments) -> None:
    segment, piece = segments.read(1, 1 << 20, None, min_one=True)
    batch = segment.size // 3
    assert (piece.path, piece.position, piece.length) == (segment.path, batch, 2 * batch)
    _, piece = segments.read(3, 1 << 20, 4, min_one=True)
    assert (piece.position, piece.length) == (0, batch)


def test_removed_segments_are_the_first_ones(segments: LogSegments) -> None:
    assert segments.remove_first(2) == [0, 3]
    assert segments.base_offsets == (6,)


def test_record_is_found_by_timestamp_in_later_segment(segments: LogSegments) -> None:
    found = segments.find_by_timestamp(4, 0)
    assert found is not None
    assert found.offset == 4
    assert segments.find_by_timestamp(9, 0) is None
    latest = segments.find_max_timestamp()
    assert latest is not None
    assert latest.offset == 8


def test_aborted_transaction_is_found_in_segment_of_its_marker(tmp_path: Path) -> None:
    segments = LogSegments([], active(tmp_path, 0, 3))
    for base_offset in (3, 6):
        segments.active.finish_indexes()
        segments.roll_to(active(tmp_path, base_offset, 3))
        segments.active.record_aborted(
            AbortedTransaction(1, base_offset - 2, base_offset + 1, base_offset + 2)
        )
    for offset, expected in [(0, [1]), (3, [1, 4]), (6, [4]), (8, [])]:
        segment, piece = segments.read(offset, 1 << 20, None, min_one=True)
        aborted = segments.aborted_transactions(segment, piece, offset, 9)
        assert [each.first_offset for each in aborted] == expected
