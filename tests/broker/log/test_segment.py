"""A segment is found through its indexes while it grows, sealed, and restored alike."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.log import Log
from minibroker.broker.log.producers import AbortedTransaction
from minibroker.broker.log.segment import (
    OFFSET_ENTRY,
    RECENT_BATCHES,
    SEARCH_STEP_RECORDS_MAX,
    TIME_ENTRY,
    ActiveSegment,
    LargeBatchError,
    OffsetIndex,
    SegmentFiles,
    TimeIndex,
    TimeQuery,
    TimestampOffset,
    last_in_file,
    search_file,
    search_in_step,
    sync_files,
)
from minibroker.broker.log.validation import STEP_BYTES_MAX
from minibroker_protocol.compression import Compression
from minibroker_protocol.errors import DecodeError
from minibroker_protocol.records import (
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    Record,
    TimestampType,
    build_batch,
    parse_batch_header,
)
from tests.broker.log.segments import INTERVAL, check_finds, fill, grow
from tests.descriptors import open_below
from tests.runtime.test_system import no_descriptor_left


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


_GROUPS = st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=5), max_size=25)


@given(kept=_GROUPS, removed=_GROUPS, added=_GROUPS, is_flushed=st.booleans())
def test_truncated_segment_equals_one_that_never_grew(
    tmp_path_factory: pytest.TempPathFactory,
    kept: list[list[int]],
    removed: list[list[int]],
    added: list[list[int]],
    is_flushed: bool,
) -> None:
    truncated, expected = (
        ActiveSegment(str(tmp_path_factory.mktemp("segment")), 100, SegmentFiles(), now_ms=0)
        for _ in range(2)
    )
    for segment in (truncated, expected):
        fill(segment, kept, Compression.NONE)
        segment.record_aborted(AbortedTransaction(1, 100, 101, 102))
    end = truncated.end
    fill(truncated, removed, Compression.NONE)
    truncated.record_aborted(AbortedTransaction(2, 100, 103, 104))
    if is_flushed:
        truncated.write_indexes()
    truncated.truncate_to(end)
    assert truncated.end == expected.end
    for segment in (truncated, expected):
        records = fill(segment, [*added, [61]], Compression.NONE)
        check_finds(segment, records)
        segment.finish_indexes()
        segment.close()
    files = [sorted(Path(segment.directory).iterdir()) for segment in (truncated, expected)]
    assert [path.name for path in files[0]] == [path.name for path in files[1]]
    assert [path.read_bytes() for path in files[0]] == [path.read_bytes() for path in files[1]]


def test_files_that_share_the_records_are_counted(segment: ActiveSegment, tmp_path: Path) -> None:
    assert segment.link_count == 1
    os.link(segment.path, tmp_path / "copy")
    assert segment.link_count == 2


GROWING = st.lists(st.integers(0, 2**31 - 1), unique=True, max_size=60).map(sorted)


@given(offsets=GROWING, base=st.integers(0, 2**50), asked=st.integers(-5, 2**31))
def test_index_in_memory_and_in_file_find_same_position(
    tmp_path_factory: pytest.TempPathFactory, offsets: list[int], base: int, asked: int
) -> None:
    index = OffsetIndex(base)
    for slot, offset in enumerate(offsets):
        index.append(base + offset, slot * 7)
    below = [slot for slot, offset in enumerate(offsets) if offset <= asked]
    path = tmp_path_factory.mktemp("index") / "file"
    path.write_bytes(index.encode())
    assert index.position(base + asked) == (below[-1] * 7 if below else 0)
    assert search_file(str(path), OFFSET_ENTRY, asked) == (below[-1] * 7 if below else None)
    decoded = OffsetIndex.decode(path.read_bytes(), base)
    assert (decoded.encode(), len(decoded)) == (index.encode(), len(offsets))
    assert decoded.last_position == index.last_position
    last = (offsets[-1], (len(offsets) - 1) * 7) if offsets else None
    assert last_in_file(str(path), OFFSET_ENTRY) == last


def test_offset_index_has_kafka_encoding() -> None:
    index = OffsetIndex(1000)
    index.append(1007, 4200)
    index.append(1019, 9000)
    assert index.encode() == bytes.fromhex("00000007 00001068 00000013 00002328")
    assert index.encode(1) == index.encode()[8:]


def test_time_index_has_kafka_encoding_and_only_increasing_times() -> None:
    index = TimeIndex(1000)
    assert index.last == (-1, 1000)
    index.append(-1, 1000)
    index.append(77, 1004)
    index.append(77, 1006)
    index.append(50, 1007)
    index.append(78, 1009)
    assert index.encode() == bytes.fromhex("000000000000004d 00000004 000000000000004e 00000009")
    assert (index.last, len(index)) == ((78, 1009), 2)
    assert [index.offset(time) for time in (76, 77, 78, 99)] == [1000, 1004, 1009, 1009]
    assert TimeIndex.decode(index.encode(), 1000).last == (78, 1009)


def test_time_index_is_searched_in_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(TIME_ENTRY.pack(5, 1) + TIME_ENTRY.pack(9, 3))
    result = [search_file(str(path), TIME_ENTRY, time) for time in (4, 5, 8, 9)]
    assert result == [None, 1, 1, 3]


@pytest.mark.parametrize("data", [b"\x00" * 7, bytes(16), OFFSET_ENTRY.pack(5, 0) * 2])
def test_index_with_nonincreasing_entries_is_rejected(data: bytes) -> None:
    with pytest.raises(DecodeError):
        OffsetIndex.decode(data, 0)


NOW_MS = 1_700_000_000_000
MakeBatch = Callable[..., bytes]


def created(tmp_path: Path, *names: str) -> list[str]:
    paths = [str(tmp_path / name) for name in names]
    for path in paths:
        Path(path).touch()
    return paths


def test_segment_files_beyond_the_limit_close_the_least_recently_used(tmp_path: Path) -> None:
    before = open_below(tmp_path)
    a, b, c = created(tmp_path, "a", "b", "c")
    files = SegmentFiles(2)
    first = files.descriptor(a)
    files.descriptor(b)
    assert files.descriptor(a) == first
    files.descriptor(c)  # b was used least recently
    assert (len(files), open_below(tmp_path)) == (2, before + 2)
    assert files.descriptor(a) == first
    for path in (a, b, c):
        os.pwrite(files.descriptor(path), path.encode(), 0)
        files.close(path)
        files.close(path)
    assert open_below(tmp_path) == before
    assert [Path(path).read_text() for path in (a, b, c)] == [a, b, c]


def test_segment_files_create_files_by_create_only(tmp_path: Path) -> None:
    files = SegmentFiles(2)
    path = str(tmp_path / "new")
    with pytest.raises(FileNotFoundError):
        files.descriptor(path)
    assert files.create(path) == files.descriptor(path) == files.create(path)
    files.close_directory(str(tmp_path))
    assert len(files) == 0


def test_segment_files_of_other_directories_stay_open(tmp_path: Path) -> None:
    (tmp_path / "t-1").mkdir()
    (tmp_path / "t-11").mkdir()
    files = SegmentFiles(9)
    for name in ("t-1/0.log", "t-1/5.log", "t-11/0.log"):
        files.create(str(tmp_path / name))
    files.close_directory(str(tmp_path / "t-1"))
    assert len(files) == 1
    files.close_directory(str(tmp_path / "t-11"))


def test_segment_files_with_limit_zero_are_rejected() -> None:
    with pytest.raises(ValueError, match="at least one"):
        SegmentFiles(0)


def test_segment_files_out_of_descriptors_close_least_recently_used(tmp_path: Path) -> None:
    a, b, c, d = created(tmp_path, "a", "b", "c", "d")
    files = SegmentFiles(100)
    for path in (a, b, c):
        files.descriptor(path)
    with no_descriptor_left():
        assert files.descriptor(d) >= 0
        assert len(files) == 2
    files.close_directory(str(tmp_path))
    with no_descriptor_left(), pytest.raises(OSError, match="Too many open files"):
        files.descriptor(a)
    assert len(files) == 0


def test_logs_beyond_descriptor_limit_are_written_read_and_recovered(
    tmp_path: Path, batch: MakeBatch
) -> None:
    before, files = open_below(tmp_path), SegmentFiles(3)
    config = LogConfig(segment_bytes=300)

    def opened() -> list[Log]:
        return [
            Log.open(tmp_path, "t", number, config, now_ms=NOW_MS, files=files)
            for number in range(20)
        ]

    logs = opened()
    for _ in range(5):
        for log in logs:
            log.append(batch(0), now_ms=NOW_MS)
            assert open_below(tmp_path) <= before + 3
    assert all(len(log.segments) > 1 for log in logs)
    for log in logs:
        pieces = [log.read(offset, 1000) for offset in range(5)]
        assert all(piece is not None and piece.load() for piece in pieces)
        log.abandon()
    assert open_below(tmp_path) == before
    again = opened()
    assert [log.log_end_offset for log in again] == [5] * 20
    for log in again:
        log.close(now_ms=NOW_MS)
    assert open_below(tmp_path) == before
    assert all(log.opened_clean for log in opened())
    for number in range(20):
        files.close_directory(str(tmp_path / f"t-{number}"))


def test_failed_recovery_leaves_no_descriptor_open(
    tmp_path: Path, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, files = open_below(tmp_path), SegmentFiles(3)
    log = Log.open(tmp_path, "t", 0, LogConfig(), now_ms=NOW_MS, files=files)
    log.append(batch(0), now_ms=NOW_MS)
    log.abandon()

    def fail(*_: object, **__: object) -> None:
        raise OSError("no")

    with monkeypatch.context() as context:
        context.setattr(os, "pwritev", fail)
        with pytest.raises(OSError, match="no"):
            Log.open(tmp_path, "t", 0, LogConfig(), now_ms=NOW_MS, files=files)
    assert open_below(tmp_path) == before


def test_closed_log_does_not_write_to_new_log_of_same_name(
    tmp_path: Path, batch: MakeBatch
) -> None:
    log = Log.open(tmp_path, "t", 0, LogConfig(), now_ms=NOW_MS)
    log.append(batch(0), now_ms=NOW_MS)
    log.abandon()
    os.rename(tmp_path / "t-0", tmp_path / "aside")
    again = Log.open(tmp_path, "t", 0, LogConfig(), now_ms=NOW_MS)
    with pytest.raises(Exception, match="the log is closed"):
        log.append(batch(0), now_ms=NOW_MS)
    assert os.path.getsize(tmp_path / "t-0" / f"{0:020d}.log") == 0
    again.abandon()


def test_files_that_are_gone_need_no_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    (tmp_path / "there").write_bytes(b"")
    sync_files([str(tmp_path / "gone"), str(tmp_path / "there")])
    assert len(synced) == 1


@dataclass
class Searched:
    """A batch and the answer to a query about it, however it was found."""

    answer: TimestampOffset | None
    was_large: bool


def search(records: list[Record], query: TimeQuery, **options: Any) -> Searched:
    data = build_batch(records, base_offset=100, partition_leader_epoch=4, **options)
    header = parse_batch_header(data)
    try:
        return Searched(search_in_step(data, header, query), was_large=False)
    except LargeBatchError as large:
        return Searched(large.search(), was_large=True)


@given(
    times=st.lists(st.integers(0, 20), min_size=1, max_size=20),
    timestamp=st.integers(0, 21),
    first_offset=st.integers(95, 125),
    codec=st.sampled_from(Compression),
)
def test_search_finds_first_record_at_or_after_timestamp(
    times: list[int], timestamp: int, first_offset: int, codec: Compression
) -> None:
    expected = next(
        (
            TimestampOffset(time, offset, 4)
            for offset, time in enumerate(times, 100)
            if time >= timestamp and offset >= first_offset
        ),
        None,
    )
    records = [Record(timestamp=time) for time in times]
    result = search(records, TimeQuery(timestamp, first_offset), compression=codec)
    assert result == Searched(expected, was_large=False)


@given(timestamp=st.integers(8, 10), first_offset=st.integers(95, 105))
def test_search_in_log_append_time_batch_uses_batch_timestamp(
    timestamp: int, first_offset: int
) -> None:
    kind = TimestampType.LOG_APPEND_TIME
    result = search(
        [Record(timestamp=9)] * 3, TimeQuery(timestamp, first_offset), timestamp_type=kind
    )
    late = timestamp > 9 or first_offset > 102
    assert result.answer == (None if late else TimestampOffset(9, max(100, first_offset), 4))


@pytest.mark.parametrize(
    ("records", "codec"),
    [
        ([Record(timestamp=5)] * (SEARCH_STEP_RECORDS_MAX + 1), Compression.NONE),
        ([Record(timestamp=5, value=bytes(STEP_BYTES_MAX))], Compression.ZSTD),
    ],
    ids=["records", "bytes"],
)
def test_large_batch_is_searched_outside_of_event_loop(
    records: list[Record], codec: Compression
) -> None:
    result = search(records, TimeQuery(5), compression=codec)
    assert result == Searched(TimestampOffset(5, 100, 4), was_large=True)
    assert search(records, TimeQuery(6), compression=codec).answer is None


def test_records_of_all_sizes_are_found() -> None:
    """Varints of more than one byte: of lengths, and of deltas of times and offsets."""
    records = [
        Record(timestamp=time * 1000, key=bytes(time), value=bytes(time), headers=(("h", b"v"),))
        for time in range(200)
    ]
    for time in range(200):
        expected = TimestampOffset(time * 1000, 100 + time, 4)
        assert search(records, TimeQuery(time * 1000)).answer == expected


@pytest.mark.parametrize("section", [b"", b"\xff" * 40, b"\x01\0\0\0\0\0\0" * 2])
def test_damaged_batch_is_found_as_a_whole(section: bytes) -> None:
    """Earlier versions stored batches without checking their records."""
    batch = bytearray(build_batch([Record(timestamp=5)] * 2, base_offset=100))
    batch[HEADER_BYTES:] = section
    struct.pack_into(">i", batch, 8, len(batch) - LENGTH_OVERHEAD_BYTES)
    header = parse_batch_header(batch)
    found = search_in_step(bytes(batch), header, TimeQuery(5))
    assert found == TimestampOffset(5, 101, header.partition_leader_epoch)
