"""Tests."""

from __future__ import annotations

import errno
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minibroker.broker.log.batch_filter import LastRecord
from minibroker.broker.log.cleaning import (
    Buffers,
    CleanableRange,
    CleanedSegment,
    CleaningFailedError,
    CleaningTask,
    LogFacts,
    SegmentFigures,
    SourceSegment,
    clean,
    cleanable_range,
    group_segments,
)
from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.producers import AbortedTransaction, TransactionIndex
from minibroker.broker.log.segment import OFFSET_ENTRY, TIME_ENTRY
from minibroker_protocol.compression import Compression
from minibroker_protocol.control_records import EndTransactionMarker
from minibroker_protocol.records import (
    BatchHeader,
    Record,
    build_batch,
    iter_batches,
    iter_records,
    parse_batch_header,
)
from tests.broker.log.cleaned_partition import (
    BUFFERS,
    NOW_MS,
    CleanedPartition,
    Found,
    run,
)


def task(directory: Path, size: int, **changes: Any) -> CleaningTask:
    groups = ((SourceSegment(0, size, 0),),)
    whole = CleaningTask(str(directory), groups, 0, 100, 0, 10, 4096, 10, 100, {}, ())
    return whole._replace(**changes)


def write(directory: Path, *batches: bytes) -> int:
    return (directory / f"{0:020}.log").write_bytes(b"".join(batches))


def test_steps_report_the_bytes_of_each_buffer(tmp_path: Path) -> None:
    large = build_batch([Record(key=b"a", value=bytes(300))])
    small = build_batch([Record(key=b"b", value=b"")], base_offset=1)
    steps = clean(task(tmp_path, write(tmp_path, large, small)))
    assert list(steps) == [len(large), len(small), 2 * len(large), 2 * len(small)]


def test_result_counts_bytes_and_records(tmp_path: Path) -> None:
    batches = [build_batch([Record(key=b"a", value=b"1")], base_offset=at) for at in range(3)]
    size = write(tmp_path, *batches)
    result = run(task(tmp_path, size))
    assert (result.records_read, result.records_kept, result.end_offset) == (3, 1, 100)
    assert (result.bytes_read, result.bytes_written) == (2 * size, size // 3)
    assert result.map_utilization == 0.1
    data = (tmp_path / f"{0:020}.log.cleaned").read_bytes()
    assert [record.offset for record in iter_records(data)] == [2]


def test_log_that_is_clean_loses_expired_tombstones_only(tmp_path: Path) -> None:
    batches = [build_batch([Record(key=b"a", value=None)]), build_batch([Record(key=b"b")])]
    result = run(task(tmp_path, write(tmp_path, *batches), first_dirty_offset=100))
    assert (result.records_kept, result.end_offset) == (2, 100)


@pytest.mark.parametrize("missing", [1, 70])
def test_incomplete_batch_fails_the_cleaning(tmp_path: Path, missing: int) -> None:
    data = build_batch([Record(key=b"a", value=bytes(50))])
    write(tmp_path, data[:-missing])
    with pytest.raises(CleaningFailedError, match=str(tmp_path)):
        run(task(tmp_path, len(data) - missing))


def test_missing_file_fails_the_cleaning(tmp_path: Path) -> None:
    with pytest.raises(CleaningFailedError, match="No such file"):
        run(task(tmp_path, 100))


def test_full_disk_is_no_failure_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = write(tmp_path, build_batch([Record(key=b"a", value=b"1")]))

    def refuse(_fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="No space left"):
        run(task(tmp_path, size))


def test_task_is_plain_data() -> None:
    groups = ((SourceSegment(0, 1, 2),),)
    aborted = (AbortedTransaction(1, 2, 3, 4),)
    task = CleaningTask("d", groups, 0, 1, 2, 3, 4, 5, 6, {1: LastRecord(2, 3)}, aborted)
    assert pickle.loads(pickle.dumps(task)) == task


STEM = f"{100:020}"


def test_cleaned_copy_has_all_indexes(tmp_path: Path) -> None:
    (tmp_path / f"{STEM}.log.cleaned").write_bytes(b"of a killed process")
    copy = CleanedSegment(str(tmp_path), 100, index_interval_bytes=1, buffer_bytes=4096)
    data = b""
    for offset in (100, 105, 109):
        data = build_batch([Record(timestamp=offset, key=b"k")], base_offset=offset)
        copy.write(parse_batch_header(data), data, offset)
    aborted = AbortedTransaction(1, 100, 105, 106)
    group = copy.finish([aborted], has_index=False, modified_ms=7000)
    log = tmp_path / f"{STEM}.log.cleaned"
    assert group.size == log.stat().st_size == 3 * len(data)
    assert (group.next_offset, group.max_timestamp, group.aborted_count) == (110, 109, 1)
    assert log.stat().st_mtime == 7
    assert group.inode == log.stat().st_ino
    offsets = (tmp_path / f"{STEM}.index.cleaned").read_bytes()
    assert list(OFFSET_ENTRY.iter_unpack(offsets)) == [(5, len(data)), (9, 2 * len(data))]
    times = (tmp_path / f"{STEM}.timeindex.cleaned").read_bytes()
    assert list(TIME_ENTRY.iter_unpack(times)) == [(105, 5), (109, 9)]
    index = TransactionIndex((tmp_path / f"{STEM}.txnindex.cleaned").read_bytes())
    assert list(index) == [aborted]


def test_empty_transaction_index_replaces_one(tmp_path: Path) -> None:
    copy = CleanedSegment(str(tmp_path), 100, index_interval_bytes=1, buffer_bytes=4096)
    copy.finish([], has_index=True, modified_ms=0)
    assert (tmp_path / f"{STEM}.txnindex.cleaned").read_bytes() == b""
    copy = CleanedSegment(str(tmp_path), 7, index_interval_bytes=1, buffer_bytes=4096)
    copy.close()
    assert not (tmp_path / f"{7:020}.txnindex.cleaned").exists()


# ----------------------------------- Whole cleanings of a log, against the definition of compaction


DAY_MS = 24 * 3600 * 1000
TRANSACTIONAL = 2
"""Producers 0 and 1 are transactional, 2 is idempotent, and None has no id."""


@pytest.fixture
def partition(tmp_path: Path) -> Iterator[CleanedPartition]:
    made = CleanedPartition(tmp_path)
    yield made
    made.log.abandon()


def test_last_value_of_each_key_is_kept_with_its_offset(partition: CleanedPartition) -> None:
    partition.write((b"a", b"1"), (b"b", b"1"))
    partition.write((b"a", b"2"))
    partition.write((b"c", b"1"), (b"c", b"2"))
    partition.compact()
    assert partition.records() == [(1, b"b", b"1"), (2, b"a", b"2"), (4, b"c", b"2")]
    assert partition.log.log_start_offset == 0
    assert partition.log.log_end_offset == 5


def test_active_segment_is_not_cleaned(partition: CleanedPartition) -> None:
    partition.write((b"a", b"1"))
    partition.roll()
    partition.write((b"a", b"2"), (b"a", b"3"))
    partition.clean()
    assert [offset for offset, _, _ in partition.records()] == [0, 1, 2]


def test_tombstone_is_removed_after_delete_retention(partition: CleanedPartition) -> None:
    partition.write((b"a", b"1"), (b"b", b"1"))
    partition.write((b"a", None), (b"c", b"1"))
    partition.compact()
    kept = [(1, b"b", b"1"), (2, b"a", None), (3, b"c", b"1")]
    assert partition.records() == kept
    times = [at for _, at, _, _ in partition.consume()]
    assert times == [NOW_MS] * 3, "a delete horizon does not change the timestamps"
    partition.now_ms += DAY_MS - 1
    partition.write((b"d", b"1"))
    partition.compact()
    assert partition.records()[:3] == kept
    partition.now_ms += 1
    partition.write((b"e", b"1"))
    partition.compact()
    assert [key for _, key, _ in partition.records()] == [b"b", b"c", b"d", b"e"]


def test_aborted_records_are_removed_and_marker_expires(partition: CleanedPartition) -> None:
    partition.write((b"a", b"1"))
    partition.write((b"a", b"2"), producer=0, transactional=True)
    partition.end(0, committed=False)
    partition.write((b"b", b"1"), producer=0, transactional=True)
    partition.end(0, committed=True)
    partition.compact()
    assert partition.records() == [(0, b"a", b"1"), (3, b"b", b"1")]
    assert [header.base_offset for header in headers(partition)] == [0, 2, 3, 4]
    partition.write((b"c", b"1"))
    partition.compact()  # The marker's data is gone: it gets a delete horizon.
    assert [header.base_offset for header in headers(partition)] == [0, 2, 3, 4, 5]
    partition.now_ms += DAY_MS
    partition.write((b"c", b"2"))
    partition.compact()
    assert [header.base_offset for header in headers(partition)] == [0, 3, 4, 6]


@pytest.mark.parametrize("committed", [False, True])
def test_marker_stays_as_long_as_the_emptied_batch_of_its_transaction(
    partition: CleanedPartition, committed: bool
) -> None:
    partition.write((b"a", b"1"), producer=3, transactional=True)
    marker = EndTransactionMarker(committed, 0)
    partition.partition.append_marker(3, 0, marker, transaction_version=0, now_ms=NOW_MS)
    for _ in range(3):
        partition.write((b"a", b"2"))
        partition.compact()
        partition.now_ms += 2 * partition.config.delete_retention_ms
    assert next(next(iter(partition.log.segments)).headers()).record_count == 0
    partition.log.abandon()
    for path in Path(partition.log.directory).iterdir():
        if path.suffix in (".snapshot", ".json"):
            path.unlink()
    partition.open()
    assert partition.partition.last_stable_offset == partition.log.log_end_offset


def test_earlier_aborted_transaction_does_not_hide_new_keys(partition: CleanedPartition) -> None:
    partition.write((b"a", b"1"))
    partition.write((b"a", b"2"), producer=1, transactional=True)
    partition.end(1, committed=False)
    partition.compact()
    partition.write((b"a", b"3"), producer=1, transactional=True)
    partition.end(1, committed=True)
    partition.compact()
    assert partition.records() == [(3, b"a", b"3")]


def test_open_transaction_limits_the_cleaning(partition: CleanedPartition) -> None:
    partition.write((b"a", b"1"), (b"a", b"2"))
    partition.roll()
    partition.write((b"b", b"1"), producer=0, transactional=True)
    partition.write((b"a", b"3"))
    partition.roll()
    partition.clean()
    assert partition.cleaning.range(NOW_MS).first_dirty == 2
    assert [header.base_offset for header in headers(partition)] == [0, 2, 3]


def test_duplicate_of_a_cleaned_batch_is_recognized_after_restart(
    partition: CleanedPartition,
) -> None:
    partition.write((b"a", b"1"), producer=2)
    partition.write((b"a", b"2"), producer=2)
    partition.write((b"a", b"3"))
    partition.compact()
    for name in os.listdir(partition.log.directory):
        if name.endswith((".snapshot", "checkpoint.json")):
            os.unlink(os.path.join(partition.log.directory, name))
    partition.kill()
    partition.sequences[2] = 1
    assert partition.write((b"a", b"2"), producer=2) == 1
    assert partition.write((b"a", b"4"), producer=2) == 3


def test_full_map_continues_in_the_next_cleaning(partition: CleanedPartition) -> None:
    for number in range(10):
        partition.write((b"%d" % (number % 5), b""), (b"x", b""))
    partition.roll()
    assert partition.clean(Buffers(3, 200)).end_offset < 20
    for _ in range(20):
        partition.clean(Buffers(3, 200))
    assert not partition.cleaning.range(NOW_MS).cleanable_bytes
    assert [offset for offset, _, _ in partition.records()] == [10, 12, 14, 16, 18, 19]


@pytest.mark.parametrize("codec", Compression)
def test_compressed_batch_keeps_its_codec(partition: CleanedPartition, codec: Compression) -> None:
    partition.write((b"a", b"1"), (b"b", b"1" * 1000), compression=codec)
    partition.write((b"a", None), compression=codec)
    partition.compact()
    assert partition.records() == [(1, b"b", b"1" * 1000), (2, b"a", None)]
    assert [header.codec for header in headers(partition)] == [codec, codec]


def test_small_segments_become_one(partition: CleanedPartition) -> None:
    for number in range(6):
        partition.write((b"%d" % number, b""))
        partition.roll()
    assert len(partition.log.segments) == 7
    partition.clean()
    assert len(partition.log.segments) == 2
    assert len(partition.records()) == 6


def test_slice_of_a_replaced_segment_is_still_readable(tmp_path: Path) -> None:
    partition = CleanedPartition(tmp_path, file_delete_delay_ms=1000)
    partition.write((b"a", b"1"))
    partition.write((b"a", b"2"))
    before = partition.log.read(0, 9999)
    assert before is not None
    data = before.load()
    partition.compact()
    assert before.load() == data
    partition.now_ms += 1000
    partition.log.apply_retention(now_ms=partition.now_ms)
    with pytest.raises(FileNotFoundError):
        before.load()
    partition.log.abandon()


def test_result_for_changed_log_is_discarded(partition: CleanedPartition) -> None:
    partition.write((b"a", b"1"))
    partition.write((b"a", b"2"))
    partition.roll()
    task = partition.cleaning.task(partition.cleaning.range(NOW_MS), BUFFERS, NOW_MS)
    sources = partition.cleaning.sources(task)
    result = run(task)
    partition.log.delete_records(2)
    partition.log.apply_retention(now_ms=NOW_MS)
    with pytest.raises(CleaningFailedError, match="has changed"):
        partition.cleaning.apply(result, sources, NOW_MS)
    assert not [name for name in os.listdir(partition.log.directory) if ".cleaned" in name]


def test_damaged_batch_fails_the_cleaning(partition: CleanedPartition) -> None:
    partition.write((b"a", b"1"))
    partition.roll()
    path = Path(partition.log.directory) / f"{0:020}.log"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(CleaningFailedError, match="checksum"):
        partition.clean()


def headers(partition: CleanedPartition) -> list[BatchHeader]:
    return [header for segment in partition.log.segments for header in segment.headers()]


class Killed(Exception):
    """The process ends at this file operation."""


@contextmanager
def killed_after(calls: int) -> Iterator[None]:
    """End with Killed after so many renames and removals of files."""
    remaining = [calls]

    def counted(operation: Callable[..., None]) -> Callable[..., None]:
        def call(*args: str) -> None:
            if not remaining[0]:
                raise Killed
            remaining[0] -= 1
            operation(*args)

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "rename", counted(os.rename))
        patch.setattr(os, "unlink", counted(os.unlink))
        yield


def clean_until(partition: CleanedPartition, calls: int) -> None:
    """Clean; the process is killed after so many file operations, and again while it recovers."""
    try:
        with killed_after(calls):
            partition.clean()
    except Killed:
        partition.log.abandon()
        with suppress(Killed), killed_after(calls // 2):
            partition.open()
        partition.kill()


@pytest.mark.parametrize("calls", range(24))
def test_kill_at_each_step_of_a_swap_loses_nothing(tmp_path: Path, calls: int) -> None:
    partition = CleanedPartition(tmp_path)
    for number in range(3):
        partition.write((b"a", b"%d" % number))
        partition.write((b"%d" % number, b""), producer=0, transactional=True)
        partition.end(0, committed=number != 1)
        partition.roll()
    expected = {key: value for _, key, value in partition.records()}
    clean_until(partition, calls)
    assert {key: value for _, key, value in partition.records()} == expected
    names = os.listdir(partition.log.directory)
    assert not [name for name in names if name.endswith((".swap", ".cleaned"))]
    logs = sorted(name for name in names if name.endswith(".log"))
    assert {name[:20] for name in names if "index" in name} <= {name[:20] for name in logs}
    partition.compact()
    assert [key for _, key, _ in partition.records()] == [b"0", b"a", b"2"]
    partition.log.abandon()


KEYS = [b"a", b"b", b"c", b"long key " * 10]
KINDS = [
    *("write", "write", "write", "pair", "delete", "end", "abort"),
    *("roll", "clean", "clean", "small map", "kill", "restart", "crash", "wait"),
]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(KINDS),
        st.sampled_from(KEYS),
        st.sampled_from([0, 1, TRANSACTIONAL, None]),
        st.integers(0, 12),
    ),
    max_size=50,
)


@settings(max_examples=120, deadline=None)
@given(steps=STEPS, segment_bytes=st.sampled_from([400, 1000, 99999]))
def test_compaction_keeps_what_its_definition_says(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[str, bytes, int | None, int]],
    segment_bytes: int,
) -> None:
    directory = tmp_path_factory.mktemp("log")
    partition = CleanedPartition(
        directory, segment_bytes=segment_bytes, index_interval_bytes=100, delete_retention_ms=10
    )
    open_producers: set[int] = set()
    for number, (step, key, producer, extra) in enumerate(steps):
        before = list(partition.consume())
        is_transactional = producer is not None and producer < TRANSACTIONAL
        value = b"%d" % number
        if step in {"write", "pair", "delete"}:
            first = (key, None if step == "delete" else value)
            records = [first, (KEYS[extra % len(KEYS)], value)] if step == "pair" else [first]
            partition.write(*records, producer=producer, transactional=is_transactional)
            if is_transactional and producer is not None:
                open_producers.add(producer)
            continue
        if step in {"end", "abort"} and producer in open_producers:
            assert producer is not None
            partition.end(producer, committed=step == "end")
            open_producers.discard(producer)
            continue
        apply_step(partition, step, extra)
        check(before, list(partition.consume()), partition)
    while open_producers:
        partition.end(open_producers.pop(), committed=True)
    before = list(partition.consume())
    partition.compact()
    after = list(partition.consume())
    check(before, after, partition)
    keys = [key for _, _, key, _ in after]
    assert len(keys) == len(set(keys)), "a key has one record after a complete cleaning"
    partition.log.abandon()
    shutil.rmtree(directory)


def apply_step(partition: CleanedPartition, step: str, extra: int) -> None:
    if step == "roll":
        partition.roll()
    elif step == "clean":
        partition.clean()
    elif step == "small map":
        partition.roll()
        partition.clean(Buffers(1 + extra % 3, 100))
    elif step == "crash":
        partition.roll()
        clean_until(partition, extra)
    elif step == "kill":
        partition.kill()
    elif step == "restart":
        partition.restart()
    elif step == "wait":
        partition.now_ms += extra


def check(before: list[Found], after: list[Found], partition: CleanedPartition) -> None:
    """The records after a step are a part of those before it, and the last of each key remains."""
    assert [each for each in before if each in set(after)] == after
    last = {key: (offset, value) for offset, _, key, value in before}
    remaining = {key: (offset, value) for offset, _, key, value in after}
    for key, (offset, value) in last.items():
        if key in remaining:
            assert remaining[key] == (offset, value)
        else:
            assert value is None, "only tombstones end"
    end_offset = partition.log.log_end_offset
    for offset in (0, end_offset // 3, end_offset // 2, end_offset):
        found = [each for each in after if each[0] >= offset]
        assert list(partition.consume(offset)) == found
    timed = partition.log.offset_for_time(NOW_MS)
    assert timed is None or timed.offset >= 0


def test_headers_are_readable_by_iteration(partition: CleanedPartition) -> None:
    partition.write((b"a", b"1"))
    partition.write((b"a", b"2"))
    partition.compact()
    piece = partition.log.read(0, 9999)
    assert piece is not None
    assert [header.next_offset for _, header in iter_batches(piece.load())] == [2]


def segments(*sizes: int) -> list[SegmentFigures]:
    """Segments of ten offsets each, of which the last one is active."""
    return [
        SegmentFigures(10 * n, size, NOW_MS - 100 + n, NOW_MS - 100 + n)
        for n, size in enumerate(sizes)
    ]


def found(
    sizes: tuple[int, ...],
    *,
    clean: int | None = None,
    stable: int = 1000,
    start: int = 0,
    **config: Any,
) -> CleanableRange:
    facts = LogFacts(segments(*sizes), start, stable, clean)
    return cleanable_range(facts, LogConfig(compact=True, **config), NOW_MS)


def test_whole_log_is_dirty_without_checkpoint() -> None:
    assert found((100, 100, 100)) == CleanableRange(0, 20, 0, 200, 0)


def test_clean_part_counts_for_the_ratio() -> None:
    part = found((300, 100, 100), clean=10)
    assert part == CleanableRange(10, 20, 300, 100, 0)
    assert part.ratio == 0.25
    assert not part.is_due(LogConfig())
    assert part.is_due(LogConfig(min_cleanable_dirty_ratio=0.2))


def test_nothing_is_cleanable_in_a_clean_log() -> None:
    part = found((300, 100, 100), clean=20)
    assert part == CleanableRange(20, 20, 400, 0, 0)
    assert not part.is_due(LogConfig(min_cleanable_dirty_ratio=0))
    assert found((0,)).ratio == 0


def test_stable_offset_limits_to_whole_segments() -> None:
    assert found((100, 100, 100), stable=15).first_uncleanable == 10
    assert found((100, 100, 100), stable=9).first_uncleanable == 0


def test_min_compaction_lag_limits() -> None:
    assert found((100, 100, 100), min_compaction_lag_ms=99).first_uncleanable == 20
    assert found((100, 100, 100), min_compaction_lag_ms=100).first_uncleanable == 10
    assert found((100, 100, 100), min_compaction_lag_ms=101).first_uncleanable == 0


def test_max_compaction_lag_makes_a_log_due() -> None:
    config = LogConfig(max_compaction_lag_ms=99)
    part = found((900, 100, 0), clean=10, max_compaction_lag_ms=98)
    assert part.delay_ms == 1
    assert part.is_due(config)
    assert not found((900, 100, 0), clean=10, max_compaction_lag_ms=99).is_due(config)


@pytest.mark.parametrize("clean", [5, 999])
def test_checkpoint_outside_the_log_is_ignored(clean: int) -> None:
    assert found((100, 100, 100), clean=clean, start=7).first_dirty == 7


@given(
    st.lists(st.integers(0, 50), max_size=30),
    st.integers(1, 100),
    st.integers(1, 100),
)
def test_groups_are_adjacent_and_as_large_as_possible(
    sizes: list[int], segment_bytes: int, index_bytes: int
) -> None:
    given_segments = [
        SegmentFigures(10 * n, size, index_bytes=size // 2, time_index_bytes=size // 3)
        for n, size in enumerate(sizes)
    ]
    config = LogConfig(segment_bytes=segment_bytes, segment_index_bytes=index_bytes)
    groups = group_segments(given_segments, config, 10 * len(sizes))
    assert [each for group in groups for each in group] == given_segments
    for group in groups:
        assert len(group) == 1 or sum(each.size for each in group) <= segment_bytes
        assert len(group) == 1 or sum(each.index_bytes for each in group) <= index_bytes
    for group, following in pairwise(groups):
        total = sum(each.size for each in group) + following[0].size
        index = sum(each.index_bytes for each in group) + following[0].index_bytes
        assert total > segment_bytes or index > index_bytes


def test_group_spans_no_more_than_relative_offsets_allow() -> None:
    far = [SegmentFigures(0, 1), SegmentFigures(2**31 - 10, 1), SegmentFigures(2**31, 1)]
    assert [len(group) for group in group_segments(far, LogConfig(), 2**31 + 10)] == [2, 1]
