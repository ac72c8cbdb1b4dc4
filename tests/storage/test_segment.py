"""A segment is found through its indexes while it grows, sealed, and restored alike."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.storage.batch_search import LargeBatchError, TimestampOffset
from minibroker.storage.index import OFFSET_ENTRY, TIME_ENTRY
from minibroker.storage.segment import RECENT_BATCHES, ActiveSegment, Segment
from minibroker.storage.segment_files import SegmentFiles
from protocol.compression import Compression
from protocol.errors import DecodeError
from protocol.records import Record, TimestampType, build_batch, parse_batch_header

INTERVAL = 300


@pytest.fixture
def segment(tmp_path: Path) -> Iterator[ActiveSegment]:
    segment = ActiveSegment(str(tmp_path), 100, SegmentFiles(), now_ms=0)
    yield segment
    segment.close()


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


def test_index_files_have_one_entry_per_interval(segment: ActiveSegment) -> None:
    fill(segment, [[time] for time in range(40)], Compression.NONE)
    segment.write_indexes()
    size = segment.size // 40
    step = INTERVAL // size + 1
    data = Path(segment.path).with_suffix(".index").read_bytes()
    expected = [(number, number * size) for number in range(step, 40, step)]
    assert list(OFFSET_ENTRY.iter_unpack(data)) == expected
    times = Path(segment.path).with_suffix(".timeindex").read_bytes()
    assert list(TIME_ENTRY.iter_unpack(times)) == [(number, number) for number, _ in expected]


def test_only_new_index_entries_are_written(segment: ActiveSegment) -> None:
    path = Path(segment.path).with_suffix(".index")
    path.write_bytes(b"left by a killed process" * 10)
    fill(segment, [[time] for time in range(20)], Compression.NONE)
    segment.write_indexes()
    first = path.read_bytes()
    fill(segment, [[time] for time in range(20)], Compression.NONE)
    segment.write_indexes()
    assert path.read_bytes() == segment.offset_index.encode()
    assert path.read_bytes().startswith(first)


def test_number_of_recent_batch_positions_is_limited(segment: ActiveSegment) -> None:
    records = fill(segment, [[1]] * (3 * RECENT_BATCHES), Compression.NONE)
    assert RECENT_BATCHES <= len(segment._recent_offsets) <= 2 * RECENT_BATCHES
    check_finds(segment, records[:: RECENT_BATCHES // 4])


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


def test_partial_write_is_completed(
    segment: ActiveSegment, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.pwritev

    def stingy(fd: int, pieces: tuple[bytes, memoryview], position: int) -> int:
        return whole(fd, [b"".join(pieces)[:7]], position)

    monkeypatch.setattr(os, "pwritev", stingy)
    segment.write(b"0123456789", memoryview(b"abcdefghij"))
    assert Path(segment.path).read_bytes() == b"0123456789abcdefghij"


def test_write_to_full_disk_leaves_no_partial_batch(
    segment: ActiveSegment, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.pwritev
    room = [30, 0]

    def full(fd: int, pieces: tuple[bytes, memoryview], position: int) -> int:
        return whole(fd, [b"".join(pieces)[: room.pop(0)]], position)

    monkeypatch.setattr(os, "pwritev", full)
    with pytest.raises(OSError, match="No space") as caught:
        segment.write(bytes(20), memoryview(bytes(20)))
    assert caught.value.errno == errno.ENOSPC
    assert Path(segment.path).read_bytes() == b""


def test_index_files_of_other_segment_are_rejected(segment: ActiveSegment) -> None:
    fill(segment, [[time] for time in range(20)], Compression.NONE)
    segment.write_indexes()
    other = ActiveSegment(segment.directory, 100, SegmentFiles(), now_ms=0)
    with pytest.raises(DecodeError):
        other.restore(100, 101)
    assert (other.size, len(other.offset_index)) == (0, 0)
    other.close()
    other.close()


@pytest.mark.parametrize("groups", [[], [[5, 9], [7]], [[time] for time in range(80)]])
def test_saved_indexes_are_those_of_a_finished_segment(
    segment: ActiveSegment, tmp_path: Path, groups: list[list[int]]
) -> None:
    fill(segment, groups, Compression.NONE)
    (tmp_path / "saved").mkdir()
    segment.save_indexes(str(tmp_path / "saved"))
    assert list(tmp_path.glob("*.index")) == []
    segment.finish_indexes()
    for suffix in ("index", "timeindex"):
        name = f"{100:020d}.{suffix}"
        assert (tmp_path / "saved" / name).read_bytes() == (tmp_path / name).read_bytes()
