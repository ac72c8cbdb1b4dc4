"""The log as an I/O worker uses it: append, read, find by time, forget."""

from __future__ import annotations

import errno
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.errors import LogError
from minibroker.broker.log.log import (
    Appended,
    DroppedSegments,
    FileSlice,
    Log,
    LogSegments,
    Origin,
    TimestampOffset,
    count_expired,
)
from minibroker.broker.log.paths import LOG, SNAPSHOT, offset_file
from minibroker.broker.log.producers import AbortedTransaction
from minibroker.broker.log.segment import (
    ActiveSegment,
    SegmentExtent,
    SegmentFiles,
)
from minibroker_protocol.compression import Compression
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.records import (
    Record,
    TimestampType,
    build_batch,
    iter_batches,
    iter_records,
    parse_batch_header,
    verify_crc,
)
from tests.descriptors import open_below

NOW_MS = 1_700_000_000_000
OpenLog = Callable[..., Log]
MakeBatch = Callable[..., bytes]


def files(log: Log, suffix: str = ".log") -> list[int]:
    return sorted(int(path.stem) for path in Path(log.directory).glob("*" + suffix))


def test_append_assigns_consecutive_offsets(open_log: OpenLog, batch: MakeBatch) -> None:
    log = open_log()
    assert (log.log_start_offset, log.log_end_offset, log.size) == (0, 0, 0)
    assert log.append(batch(0, 1, 2), now_ms=NOW_MS) == Appended(0, 2, -1, 0, False)
    assert log.append(batch(3), now_ms=NOW_MS) == Appended(3, 3, -1, 0, False)
    assert log.log_end_offset == 4
    assert log.size == len(batch(0, 1, 2)) + len(batch(3))


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_append_stamps_stored_batch_and_leaves_request_unchanged(
    open_log: OpenLog, batch: MakeBatch, kind: Callable[[bytes], bytes]
) -> None:
    log = open_log()
    log.append(batch(0, 1), now_ms=NOW_MS)
    sent = batch(5, 6, compression=Compression.LZ4)
    request = kind(sent)
    log.append(request, now_ms=NOW_MS, leader_epoch=3)
    assert bytes(request) == sent
    file_slice = log.read(2, 1000)
    assert file_slice is not None
    stored = file_slice.load()
    header = parse_batch_header(stored)
    assert verify_crc(stored)
    assert (header.base_offset, header.last_offset, header.partition_leader_epoch) == (2, 3, 3)
    assert stored[17:] == sent[17:]


def test_bytes_after_batch_are_not_stored(open_log: OpenLog, batch: MakeBatch) -> None:
    log = open_log()
    log.append(batch(0) + b"\x00" * 10, now_ms=NOW_MS)
    assert log.size == len(batch(0))


def test_log_append_time_is_set_by_broker(open_log: OpenLog, batch: MakeBatch) -> None:
    log = open_log(timestamp_type=TimestampType.LOG_APPEND_TIME)
    late = batch(10**12, 5)
    assert log.append(late, now_ms=NOW_MS) == Appended(0, 1, NOW_MS, 0, False)
    file_slice = log.read(0, 1000)
    assert file_slice is not None
    assert verify_crc(file_slice.load())
    assert [record.timestamp for record in iter_records(file_slice.load())] == [NOW_MS, NOW_MS]
    assert log.max_timestamp() == TimestampOffset(NOW_MS, 1, 0)


def test_rejected_batch_leaves_log_unchanged(open_log: OpenLog, batch: MakeBatch) -> None:
    log = open_log(max_message_bytes=200)
    log.append(batch(0), now_ms=NOW_MS)
    before = log.size
    with pytest.raises(LogError, match="MESSAGE_TOO_LARGE"):
        log.append(batch(0, value=bytes(300)), now_ms=NOW_MS)
    assert (log.log_end_offset, log.size) == (1, before)


def test_duplicate_batch_gets_its_original_offsets(open_log: OpenLog, batch: MakeBatch) -> None:
    log = open_log()
    log.append(batch(0), now_ms=NOW_MS)
    once = batch(5, 9, producer_id=1, producer_epoch=0, base_sequence=0)
    assert log.append(once, now_ms=NOW_MS) == Appended(1, 2, -1, 0, False)
    assert log.append(once, now_ms=NOW_MS) == Appended(1, 2, NOW_MS + 9, 0, True)
    assert log.log_end_offset == 3
    with pytest.raises(LogError, match="OUT_OF_ORDER_SEQUENCE_NUMBER"):
        log.append(batch(0, producer_id=1, producer_epoch=0, base_sequence=3), now_ms=NOW_MS)
    assert len(log.producers.producers) == 1


def test_coordinator_batches_are_not_checked_for_sequences(
    open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log()
    entry = batch(0, producer_id=1, producer_epoch=0, base_offset=17)
    log.append(entry, now_ms=NOW_MS, origin=Origin.COORDINATOR)
    log.append(entry, now_ms=NOW_MS, origin=Origin.COORDINATOR)
    assert log.log_end_offset == 2


@pytest.mark.parametrize("expected", [Compression.NONE, Compression.ZSTD])
@pytest.mark.parametrize("sent", [Compression.NONE, Compression.GZIP, Compression.ZSTD])
def test_batch_is_stored_with_codec_of_topic(
    open_log: OpenLog, batch: MakeBatch, sent: Compression, expected: Compression
) -> None:
    log = open_log(compression=expected)
    log.append(batch(1, 2, compression=sent), now_ms=NOW_MS)
    file_slice = log.read(0, 10_000)
    assert file_slice is not None
    data = file_slice.load()
    assert verify_crc(data)
    assert parse_batch_header(data).codec == expected
    assert [record.timestamp - NOW_MS for record in iter_records(data)] == [1, 2]


def test_batch_too_large_or_invalid_after_recompression_is_rejected(
    open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(compression=Compression.NONE, max_message_bytes=1000)
    packed = batch(0, value=bytes(2000), compression=Compression.ZSTD)
    with pytest.raises(LogError, match="MESSAGE_TOO_LARGE"):
        log.append(packed, now_ms=NOW_MS)
    broken = bytearray(packed)
    broken[21:23] = (1).to_bytes(2, "big")
    broken[17:21] = crc32c(bytes(broken[21:])).to_bytes(4, "big")
    with pytest.raises(LogError, match="INVALID_RECORD"):
        log.append(broken, now_ms=NOW_MS)


@given(
    counts=st.lists(st.integers(1, 4), min_size=1, max_size=30),
    segment_bytes=st.sampled_from([400, 1000, 10**6]),
    max_bytes=st.integers(0, 1500),
)
def test_read_starts_at_any_offset(
    tmp_path_factory: pytest.TempPathFactory,
    counts: list[int],
    segment_bytes: int,
    max_bytes: int,
) -> None:
    config = LogConfig(segment_bytes=segment_bytes, index_interval_bytes=150)
    log = Log.open(tmp_path_factory.mktemp("log"), "t", 0, config, now_ms=NOW_MS)
    bounds = []
    for count in counts:
        records = [Record(timestamp=NOW_MS, value=bytes(20))] * count
        appended = log.append(build_batch(records), now_ms=NOW_MS)
        bounds.append((appended.base_offset, appended.last_offset))
    for base, last in bounds:
        for offset in range(base, last + 1):
            file_slice = log.read(offset, max_bytes)
            assert file_slice is not None
            header = parse_batch_header(file_slice.load())
            assert (header.base_offset, header.last_offset) == (base, last)
            assert header.size <= len(file_slice) <= max(max_bytes, header.size)
            strict = log.read(offset, max_bytes, min_one=False)
            assert strict is not None
            assert len(strict) == (len(file_slice) if header.size <= max_bytes else 0)
    assert log.read(log.log_end_offset, max_bytes) is None
    log.abandon()


@pytest.mark.parametrize("offset", [-1, 3, 2**62])
def test_read_outside_of_log_is_offset_out_of_range(
    open_log: OpenLog, batch: MakeBatch, offset: int
) -> None:
    log = open_log()
    log.append(batch(0, 1), now_ms=NOW_MS)
    with pytest.raises(LogError) as caught:
        log.read(offset, 100)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_reads_continue_across_segments(open_log: OpenLog, batch: MakeBatch) -> None:
    log = open_log(segment_bytes=250)
    for number in range(10):
        log.append(batch(number), now_ms=NOW_MS)
    records_found, offset = [], 0
    while (file_slice := log.read(offset, 10**6)) is not None:
        for _, header in iter_batches(file_slice.load()):
            records_found.append(header.base_offset)
            offset = header.next_offset
    assert records_found == list(range(10))
    assert files(log) == [0, 3, 6, 9]


def test_offset_for_time_is_found_across_segments(open_log: OpenLog, batch: MakeBatch) -> None:
    log = open_log(segment_bytes=300)
    groups = [(5, 1), (3, 9), (2, 2), (9, 9), (4, 30), (7, 8), (30, 6)]
    for group in groups:
        log.append(batch(*group, compression=Compression.GZIP), now_ms=NOW_MS, leader_epoch=1)
    times = [time for group in groups for time in group]
    assert len(log.segments) > 2
    for start in (0, 4, 9):
        log.delete_records(start)
        for time in range(33):
            expected = [(t, o) for o, t in enumerate(times) if t >= time and o >= start]
            records_found = log.offset_for_time(NOW_MS + time)
            assert records_found == (
                TimestampOffset(NOW_MS + expected[0][0], expected[0][1], 1) if expected else None
            )
    assert log.max_timestamp() == TimestampOffset(NOW_MS + 30, 9, 1)


def test_empty_log_has_no_offset_for_time(open_log: OpenLog) -> None:
    log = open_log()
    assert log.max_timestamp() is None
    assert log.offset_for_time(0) is None


def test_segments_roll_by_size_and_time(open_log: OpenLog, batch: MakeBatch) -> None:
    log = open_log(segment_bytes=2 * len(batch(0)), segment_ms=100)
    for after in (0, 1, 2, 103, 104):
        log.append(batch(after), now_ms=NOW_MS)
    assert files(log) == [0, 2, 3]
    assert files(log, ".index") == [0, 2]
    assert files(log, ".timeindex") == [0, 2]
    assert files(log, ".snapshot") == [2, 3]


def test_empty_segment_is_not_rolled(open_log: OpenLog, batch: MakeBatch) -> None:
    log = open_log()
    log.roll(now_ms=NOW_MS)
    log.append(batch(0), now_ms=NOW_MS)
    log.roll(now_ms=NOW_MS)
    log.roll(now_ms=NOW_MS)
    assert files(log) == [0, 1]


def test_log_keeps_only_active_segment_open(
    open_log: OpenLog, batch: MakeBatch, tmp_path: Path
) -> None:
    log = open_log(segment_bytes=len(batch(0)))
    before = open_below(tmp_path)
    for number in range(20):
        log.append(batch(number), now_ms=NOW_MS)
    log.read(3, 100)
    log.offset_for_time(NOW_MS + 7)
    assert open_below(tmp_path) == before
    log.abandon()
    assert open_below(tmp_path) == before - 1


def test_retention_by_time_deletes_files_after_delay(open_log: OpenLog, batch: MakeBatch) -> None:
    log = open_log(segment_bytes=2 * len(batch(0)), retention_ms=1000, file_delete_delay_ms=60_000)
    for after in (0, 100, 200, 300, 400):
        log.append(batch(after), now_ms=NOW_MS)
    file_slice = log.read(0, 1000)
    assert file_slice is not None
    assert log.apply_retention(now_ms=NOW_MS + 1100) == 0
    assert log.apply_retention(now_ms=NOW_MS + 1101) == 1
    assert (log.log_start_offset, len(log.segments)) == (2, 2)
    assert parse_batch_header(file_slice.load()).base_offset == 0
    with pytest.raises(LogError, match="OFFSET_OUT_OF_RANGE"):
        log.read(1, 100)
    log.apply_retention(now_ms=NOW_MS + 61_100)
    assert 0 in files(log)
    log.apply_retention(now_ms=NOW_MS + 61_101)
    assert 0 not in files(log)


def test_retention_by_time_deletes_expired_active_segment(
    open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(retention_ms=1000, file_delete_delay_ms=0)
    log.append(batch(0, 1), now_ms=NOW_MS)
    assert log.apply_retention(now_ms=NOW_MS + 1002) == 1
    assert files(log) == [2]
    assert (log.log_start_offset, log.log_end_offset, log.size) == (2, 2, 0)
    assert log.apply_retention(now_ms=NOW_MS + 9999) == 0
    assert log.append(batch(0), now_ms=NOW_MS).base_offset == 2


def test_retention_by_size_deletes_oldest_segments(open_log: OpenLog, batch: MakeBatch) -> None:
    size = len(batch(0))
    log = open_log(segment_bytes=size, retention_bytes=2 * size, file_delete_delay_ms=0)
    for after in range(5):
        log.append(batch(after), now_ms=NOW_MS)
    assert log.apply_retention(now_ms=NOW_MS) == 3
    assert (log.log_start_offset, log.size, files(log)) == (3, 2 * size, [3, 4])
    assert [log.read(offset, 1) is not None for offset in (3, 4)] == [True, True]


def test_idle_producers_expire(open_log: OpenLog, batch: MakeBatch) -> None:
    log = open_log(producer_id_expiration_ms=1000)
    log.append(batch(0, producer_id=1, producer_epoch=0, base_sequence=0), now_ms=NOW_MS)
    log.expire_producers(now_ms=NOW_MS + 999)
    assert len(log.producers.producers) == 1
    log.expire_producers(now_ms=NOW_MS + 1000)
    assert len(log.producers.producers) == 0


def test_delete_records_advances_log_start_and_drops_segments(
    open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log(segment_bytes=len(batch(0, 1)), file_delete_delay_ms=0)
    for _ in range(3):
        log.append(batch(0, 1), now_ms=NOW_MS)
    assert log.delete_records(3) == 3
    assert log.delete_records(1) == 3
    assert log.apply_retention(now_ms=NOW_MS) == 1
    assert files(log) == [2, 4]
    for offset in (-1, 7):
        with pytest.raises(LogError, match="OFFSET_OUT_OF_RANGE"):
            log.delete_records(offset)
    log.delete_records(6)
    assert (log.log_start_offset, log.read(6, 1)) == (6, None)


def test_log_is_flushed_by_message_count_and_interval(
    open_log: OpenLog, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    log = open_log(flush_messages=3, flush_ms=500)
    log.append(batch(0, 1), now_ms=NOW_MS)
    assert not synced
    log.append(batch(0), now_ms=NOW_MS)
    assert len(synced) == 1
    assert not log.is_flush_due(now_ms=NOW_MS + 10_000)
    log.append(batch(0), now_ms=NOW_MS + 100)
    assert not log.is_flush_due(now_ms=NOW_MS + 499)
    assert log.is_flush_due(now_ms=NOW_MS + 500)
    log.flush(now_ms=NOW_MS + 500)
    assert len(synced) == 2


def test_rolled_segment_is_flushed_when_due(
    open_log: OpenLog, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    log = open_log(segment_bytes=len(batch(0)))
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    log.append(batch(0), now_ms=NOW_MS)
    log.append(batch(0), now_ms=NOW_MS)
    assert not synced
    assert log.is_flush_due(now_ms=NOW_MS)
    assert [Path(path).name for path in log.unflushed_files()] == [
        "00000000000000000000.log",
        "00000000000000000001.log",
    ]
    log.flush(now_ms=NOW_MS)
    assert not log.is_flush_due(now_ms=NOW_MS)
    assert [Path(path).name for path in synced] == [
        "00000000000000000000.log",
        "00000000000000000001.log",
        "leader-epoch-checkpoint.tmp",
        "checkpoint.json.tmp",
    ]


def test_unused_snapshots_are_removed(open_log: OpenLog, batch: MakeBatch) -> None:
    log = open_log()
    for _ in range(5):
        log.close(now_ms=NOW_MS)
        log = open_log(segment_bytes=2 * len(batch(0)))
        log.append(batch(0), now_ms=NOW_MS)
    log.close(now_ms=NOW_MS)
    log.close(now_ms=NOW_MS)
    assert files(log) == [0, 2, 4]
    assert files(log, ".snapshot") == [4, 5]


def test_failed_write_is_kafka_storage_error(
    open_log: OpenLog, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log()
    log.append(batch(0), now_ms=NOW_MS)

    def full(*args: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as context:
        context.setattr(os, "pwritev", full)
        with pytest.raises(LogError) as caught:
            log.append(batch(0), now_ms=NOW_MS)
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert "No space left" in caught.value.text
        for use in (log.flush, log.roll):
            with pytest.raises(LogError, match="KAFKA_STORAGE_ERROR"):
                use(now_ms=NOW_MS)
    assert log.append(batch(0), now_ms=NOW_MS).base_offset == 1


def test_missing_segment_file_is_kafka_storage_error(open_log: OpenLog, batch: MakeBatch) -> None:
    log = open_log(segment_bytes=len(batch(0)), retention_ms=0)
    for after in range(3):
        log.append(batch(after), now_ms=NOW_MS)
    for path in Path(log.directory).glob("*0.log"):
        path.unlink()
    for use in (
        lambda: log.read(0, 1),
        lambda: log.offset_for_time(NOW_MS),
        lambda: log.flush(now_ms=NOW_MS),
    ):
        with pytest.raises(LogError, match="KAFKA_STORAGE_ERROR"):
            use()


def test_log_is_closed_even_if_its_checkpoint_cannot_be_written(
    open_log: OpenLog, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log()
    log.append(batch(0), now_ms=NOW_MS)

    def broken(*args: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as context:
        context.setattr(os, "replace", broken)
        with pytest.raises(LogError, match="KAFKA_STORAGE_ERROR"):
            log.delete_records(1)
        with pytest.raises(LogError, match="KAFKA_STORAGE_ERROR"):
            log.close(now_ms=NOW_MS)
    reopened = open_log()
    assert (reopened.opened_clean, reopened.log_end_offset) == (False, 1)


def test_directory_of_other_topic_id_is_rejected(tmp_path: Path) -> None:
    def open_as(topic_id: bytes) -> Log:
        return Log.open(tmp_path, "t", 0, LogConfig(), now_ms=NOW_MS, topic_id=topic_id)

    open_as(b"1" * 16).close(now_ms=NOW_MS)
    open_as(b"1" * 16).close(now_ms=NOW_MS)
    with pytest.raises(LogError) as caught:
        open_as(b"2" * 16)
    assert caught.value.code is ErrorCode.INCONSISTENT_TOPIC_ID
    text = (tmp_path / "t-0" / "partition.metadata").read_text()
    assert text.startswith("version: 0\ntopic_id: MTExMTEx")


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


def test_files_of_dropped_segments_are_removed_when_due(tmp_path: Path) -> None:
    def make(offset: int, suffix: str) -> Path:
        path = Path(offset_file(str(tmp_path), offset, suffix))
        path.touch()
        return path

    first, second, third = make(0, LOG), make(5, LOG), make(9, LOG)
    snapshot, kept = make(0, SNAPSHOT), make(12, LOG)
    dropped = DroppedSegments(str(tmp_path))
    dropped.add([0, 5], 1000)
    dropped.add([9], 2000)
    dropped.remove_due(999)
    assert first.exists()
    dropped.remove_due(1000)
    assert not any(path.exists() for path in (first, second, snapshot))
    assert third.exists()
    dropped.remove_all()
    assert not third.exists()
    assert kept.exists()
    dropped.remove_due(5000)


def rolls(
    *,
    size: int = 500,
    base_offset: int = 0,
    index_entries: int = 0,
    time_index_entries: int = 0,
    first_timestamp: int = NOW_MS,
    created_ms: int = NOW_MS,
    batch_size: int = 100,
    last_offset: int = 10,
    max_timestamp: int = NOW_MS,
    **settings: Any,
) -> bool:
    with TemporaryDirectory() as directory:
        segment = ActiveSegment(directory, base_offset, SegmentFiles(), now_ms=created_ms)
        segment.close()
    segment.size, segment.first_timestamp = size, first_timestamp
    for entry in range(index_entries):
        segment.offset_index.append(base_offset + entry, entry)
    for entry in range(time_index_entries):
        segment.time_index.append(entry, base_offset + entry)
    return segment.must_roll(
        LogConfig(**settings),
        batch_size=batch_size,
        last_offset=last_offset,
        max_timestamp=max_timestamp,
        now_ms=NOW_MS,
    )


def test_segment_rolls_if_batch_does_not_fit() -> None:
    assert not rolls(segment_bytes=600)
    assert rolls(segment_bytes=599)


def test_segment_rolls_if_relative_offset_exceeds_int32() -> None:
    assert not rolls(base_offset=7, last_offset=2**31 - 1 + 7)
    assert rolls(base_offset=7, last_offset=2**31 + 7)


def test_segment_rolls_if_index_is_full() -> None:
    assert not rolls(segment_index_bytes=80, index_entries=9)
    assert rolls(segment_index_bytes=80, index_entries=10)
    assert not rolls(segment_index_bytes=120, time_index_entries=8)
    assert rolls(segment_index_bytes=120, time_index_entries=9)


def test_segment_rolls_by_record_timestamps() -> None:
    assert not rolls(segment_ms=50, max_timestamp=NOW_MS + 50)
    assert rolls(segment_ms=50, max_timestamp=NOW_MS + 51)
    assert not rolls(segment_ms=50, max_timestamp=NOW_MS + 51, size=0)


def test_segment_without_timestamps_rolls_by_wall_clock() -> None:
    assert not rolls(segment_ms=50, first_timestamp=-1, created_ms=NOW_MS - 50)
    assert rolls(segment_ms=50, first_timestamp=-1, created_ms=NOW_MS - 51)


SEGMENTS = [
    SegmentExtent(0, 100, NOW_MS - 300),
    SegmentExtent(10, 100, NOW_MS - 200),
    SegmentExtent(20, 100, NOW_MS - 100),
]
EMPTY_END = SegmentExtent(30, 0, NOW_MS - 400)


def gone(segments: list[SegmentExtent], start: int = 0, **settings: Any) -> int:
    config = LogConfig(**{"retention_ms": -1, **settings})
    return count_expired(segments, config, log_start_offset=start, now_ms=NOW_MS)


@pytest.mark.parametrize(("limit", "count"), [(300, 0), (299, 1), (99, 3), (-1, 0)])
def test_retention_by_time_deletes_segments_with_expired_newest_record(
    limit: int, count: int
) -> None:
    assert gone(SEGMENTS, retention_ms=limit) == count


@pytest.mark.parametrize(
    ("limit", "count"), [(301, 0), (201, 0), (200, 1), (101, 1), (100, 2), (0, 3), (-1, 0)]
)
def test_retention_by_size_deletes_segments_while_limit_is_exceeded(limit: int, count: int) -> None:
    assert gone(SEGMENTS, retention_bytes=limit) == count


@pytest.mark.parametrize(("start", "count"), [(0, 0), (9, 0), (10, 1), (25, 2), (30, 2)])
def test_segments_below_log_start_are_deleted_except_the_last(start: int, count: int) -> None:
    assert gone(SEGMENTS, start, delete=False, retention_ms=0, retention_bytes=0) == count


def test_empty_last_segment_is_kept() -> None:
    assert gone([*SEGMENTS, EMPTY_END], retention_ms=0) == 3
    assert gone([EMPTY_END], retention_ms=0, retention_bytes=0) == 0


def test_unexpired_segment_keeps_later_segments() -> None:
    segments = [
        SegmentExtent(0, 100, NOW_MS - 100),
        SegmentExtent(10, 100, NOW_MS - 300),
        EMPTY_END,
    ]
    assert gone(segments, retention_ms=150) == 0


@given(
    sizes=st.lists(st.integers(1, 1000), min_size=1, max_size=10),
    limit=st.integers(0, 5000),
)
def test_retention_by_size_deletes_exactly_the_excess_segments(
    sizes: list[int], limit: int
) -> None:
    segments = [SegmentExtent(i, size, NOW_MS) for i, size in enumerate(sizes)]
    count = gone(segments, retention_bytes=limit)
    if count:
        assert sum(sizes[count:]) >= limit
    if count < len(sizes):
        assert sum(sizes[count + 1 :]) < limit


def test_file_slice_loads_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"0123456789")
    piece = FileSlice(str(path), 2, 5)
    assert (len(piece), piece.load()) == (5, b"23456")
    assert FileSlice(str(path), 8, 5).load() == b"89"


def test_file_slice_can_be_pickled_and_compares_by_value() -> None:
    piece = FileSlice("/x", 2, 1 << 30)
    copy = pickle.loads(pickle.dumps(piece))
    assert copy == piece
    assert hash(copy) == hash(piece)
    assert copy != FileSlice("/x", 3, 1 << 30)
    assert repr(copy) == "FileSlice('/x', 2, 1073741824)"
