"""Whatever a kill or a damaged tail leaves behind, what was whole is there and nothing else."""

from __future__ import annotations

import functools
import json
import os
import shutil
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.errors import LogError
from minibroker.broker.log.log import Log
from minibroker.broker.log.recovery import ValidBatches
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.records import Record, build_batch, iter_batches, iter_records

NOW_MS = 1_700_000_000_000
OpenLog = Callable[..., Log]
MakeBatch = Callable[..., bytes]


def contents(log: Log) -> list[Record]:
    """All records, read as a consumer reads them."""
    found: list[Record] = []
    offset = log.log_start_offset
    while (piece := log.read(offset, 1)) is not None:
        data = piece.load()
        for position, header in iter_batches(data):
            found += iter_records(data[position : position + header.size])
            offset = header.next_offset
    return [record for record in found if record.offset >= log.log_start_offset]


def produce(log: Log, sequence: int, count: int = 2, value: bytes = b"value") -> bool:
    """Append an idempotent batch; returns whether it was a duplicate."""
    records = [Record(timestamp=NOW_MS + sequence + i, value=value) for i in range(count)]
    batch = build_batch(records, producer_id=7, producer_epoch=0, base_sequence=sequence)
    return log.append(batch, now_ms=NOW_MS).duplicate


def last_log_file(log: Log) -> Path:
    return max(Path(log.directory).glob("*.log"))


BATCHES = 3
COUNT = 2


@pytest.fixture(scope="module")
def torn_source(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Record], int]:
    """A killed log of three idempotent batches: its folder, records, and the last one's start."""
    folder = tmp_path_factory.mktemp("source")
    log = Log.open(folder, "t", 0, LogConfig(), now_ms=NOW_MS)
    start = 0
    for number in range(BATCHES):
        start = log.size
        produce(log, number * COUNT, COUNT)
    records = contents(log)
    log.abandon()
    return folder, records, start


def reopen_changed(
    source: Path, target: Path, change: Callable[[bytes], bytes]
) -> tuple[Log, list[Record]]:
    shutil.copytree(source, target)
    path = next(target.glob("t-0/*.log"))
    path.write_bytes(change(path.read_bytes()))
    log = Log.open(target, "t", 0, LogConfig(), now_ms=NOW_MS)
    return log, contents(log)


def check_usable(log: Log, survivors: list[Record]) -> None:
    """The producer's lost batch is taken again, its kept ones are duplicates, and all is found."""
    assert log.log_end_offset == len(survivors)
    for number in range(BATCHES):
        assert produce(log, number * COUNT, COUNT) == (number * COUNT < len(survivors))
    assert len(contents(log)) == BATCHES * COUNT
    found = log.offset_for_time(NOW_MS + BATCHES * COUNT - 1)
    assert found is not None
    assert found.offset == BATCHES * COUNT - 1
    assert last_log_file(log).stat().st_size == log.size
    log.close(now_ms=NOW_MS)


def test_recovery_removes_truncated_last_batch(
    torn_source: tuple[Path, list[Record], int], tmp_path: Path
) -> None:
    source, records, start = torn_source
    size = next(source.glob("t-0/*.log")).stat().st_size
    for keep in range(start, size):
        log, found = reopen_changed(source, tmp_path / str(keep), itemgetter(slice(keep)))
        assert found == records[:-COUNT]
        assert (log.truncation.size_bytes if log.truncation else 0) == keep - start
        assert log.truncation is None or log.truncation.records == 0
        check_usable(log, found)


@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_recovery_detects_flipped_bytes_of_last_batch_except_leader_epoch(
    torn_source: tuple[Path, list[Record], int], tmp_path: Path, mask: int
) -> None:
    source, records, start = torn_source
    size = next(source.glob("t-0/*.log")).stat().st_size

    def flip(position: int, data: bytes) -> bytes:
        changed = bytearray(data)
        changed[position] ^= mask
        return bytes(changed)

    for position in range(start, size):
        target = tmp_path / str(position)
        log, found = reopen_changed(source, target, functools.partial(flip, position))
        # Nothing vouches for the leader epoch, and no record depends on it.
        leader_epoch = start + 12 <= position < start + 16
        assert found == (records if leader_epoch else records[:-COUNT])
        check_usable(log, found)


@given(tail=st.binary(min_size=1, max_size=200))
def test_recovery_removes_any_invalid_tail(
    torn_source: tuple[Path, list[Record], int],
    tmp_path_factory: pytest.TempPathFactory,
    tail: bytes,
) -> None:
    source, records, _ = torn_source
    target = tmp_path_factory.mktemp("torn") / "log"
    log, found = reopen_changed(source, target, lambda data: data + tail)
    assert found == records
    assert log.truncation is not None
    assert log.truncation.size_bytes == len(tail)
    check_usable(log, found)


def test_recovery_removes_repeated_batch_at_end_of_log(
    torn_source: tuple[Path, list[Record], int], tmp_path: Path
) -> None:
    source, records, start = torn_source
    log, found = reopen_changed(source, tmp_path / "x", lambda data: data + data[start:])
    assert found == records
    log.abandon()


def test_log_closed_cleanly_is_not_scanned(open_log: OpenLog) -> None:
    log = open_log(segment_bytes=500)
    for number in range(12):
        produce(log, number * 2)
    records = contents(log)
    log.close(now_ms=NOW_MS)
    again = open_log(segment_bytes=500)
    assert again.opened_clean
    assert contents(again) == records
    assert produce(again, 22)
    assert not produce(again, 24)
    again.abandon()
    killed = open_log(segment_bytes=500)
    assert not killed.opened_clean
    assert killed.log_end_offset == 26


def test_last_five_batches_are_known_as_duplicates_after_close(open_log: OpenLog) -> None:
    log = open_log()
    for number in range(7):
        produce(log, number * 2)
    log.close(now_ms=NOW_MS)
    again = open_log()
    assert [produce(again, number * 2) for number in range(2, 7)] == [True] * 5


def test_duplicates_are_detected_after_roll_and_kill(open_log: OpenLog) -> None:
    log = open_log()
    for number in range(4):
        produce(log, number * 2)
    log.roll(now_ms=NOW_MS)
    log.flush(now_ms=NOW_MS)
    produce(log, 8)
    log.abandon()
    again = open_log()
    assert [produce(again, number * 2) for number in range(5)] == [True] * 5
    assert again.log_end_offset == 10


def test_clean_marker_is_used_once(open_log: OpenLog) -> None:
    log = open_log()
    produce(log, 0)
    log.close(now_ms=NOW_MS)
    opened = open_log()
    produce(opened, 2)
    opened.abandon()
    again = open_log()
    assert not again.opened_clean
    assert again.log_end_offset == 4


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("how", ["lost", "cut"])
def test_missing_or_damaged_index_files_are_rebuilt(
    open_log: OpenLog, suffix: str, clean: bool, how: str
) -> None:
    settings = {"segment_bytes": 1000, "index_interval_bytes": 100}
    log = open_log(**settings)
    for number in range(40):
        produce(log, number * 2)
    log.flush(now_ms=NOW_MS)
    records = contents(log)
    wanted = {path: path.read_bytes() for path in Path(log.directory).glob("*" + suffix)}
    assert len(wanted) > 2
    if clean:
        log.close(now_ms=NOW_MS)
    else:
        log.abandon()
    for path in sorted(wanted)[-1:] if how == "cut" else wanted:
        path.write_bytes(wanted[path][:-1]) if how == "cut" else path.unlink()
    again = open_log(**settings)
    assert contents(again) == records
    assert again.max_timestamp() == (NOW_MS + 79, 79, 0)
    found = again.offset_for_time(NOW_MS + 33)
    assert found is not None
    assert found.offset == 33
    again.close(now_ms=NOW_MS)
    for path, data in sorted(wanted.items())[:-1]:
        assert path.read_bytes() == data


def test_log_is_truncated_at_corrupt_batch_of_unflushed_segment(open_log: OpenLog) -> None:
    log = open_log(segment_bytes=500)
    for number in range(20):
        produce(log, number * 2)
    files = sorted(Path(log.directory).glob("*.log"))
    assert len(files) > 3
    log.abandon()
    with files[1].open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\xff")
    again = open_log(segment_bytes=500)
    survivors = contents(again)
    assert [record.offset for record in survivors] == list(range(again.log_end_offset))
    assert 0 < again.log_end_offset < 40
    lost = again.truncation
    assert lost is not None
    assert lost.records == 40 - again.log_end_offset > 0
    assert lost.segments > 0
    assert lost.reason == "the batch's checksum is wrong"
    assert lost.file.endswith(".log")
    assert lost.size_bytes > 0
    assert sorted(Path(log.directory).glob("*.log")) == files[:2]
    sequence = again.log_end_offset
    assert produce(again, sequence - 2)
    assert not produce(again, sequence)


def test_flushed_segments_are_not_scanned(open_log: OpenLog) -> None:
    log = open_log(segment_bytes=500)
    for number in range(20):
        produce(log, number * 2)
    log.flush(now_ms=NOW_MS)
    files = sorted(Path(log.directory).glob("*.log"))
    log.abandon()
    with files[0].open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\xff")
    again = open_log(segment_bytes=500)
    assert (again.log_end_offset, again.truncation) == (40, None)


@pytest.mark.parametrize("lost", ["checkpoint.json", "*.snapshot", "*"])
def test_producer_state_is_rebuilt_if_snapshot_files_are_missing(
    open_log: OpenLog, lost: str
) -> None:
    log = open_log(segment_bytes=500)
    for number in range(20):
        produce(log, number * 2)
    log.flush(now_ms=NOW_MS)
    log.abandon()
    for path in Path(log.directory).glob(lost):
        if path.suffix in (".json", ".snapshot"):
            path.unlink()
    again = open_log(segment_bytes=500)
    assert produce(again, 38)
    assert not produce(again, 40)


def test_corrupt_snapshot_is_ignored_in_recovery(open_log: OpenLog) -> None:
    log = open_log(segment_bytes=500)
    for number in range(20):
        produce(log, number * 2)
    log.abandon()
    (Path(log.directory) / "checkpoint.json").unlink()
    snapshots = sorted(Path(log.directory).glob("*.snapshot"))
    for path in snapshots:
        path.write_bytes(path.read_bytes()[:-1])
    again = open_log(segment_bytes=500)
    assert produce(again, 38)
    assert not produce(again, 40)


def test_log_truncated_below_log_start_restarts_at_log_start(open_log: OpenLog) -> None:
    log = open_log()
    for number in range(5):
        produce(log, number * 2)
    log.delete_records(7)
    path = last_log_file(log)
    log.abandon()
    path.write_bytes(path.read_bytes()[:150])
    again = open_log()
    assert (again.log_start_offset, again.log_end_offset) == (7, 7)
    assert produce(again, 50) is False
    assert [record.offset for record in contents(again)] == [7, 8]


def test_log_start_offset_survives_kill(open_log: OpenLog) -> None:
    log = open_log()
    for number in range(5):
        produce(log, number * 2)
    log.delete_records(5)
    log.abandon()
    again = open_log()
    assert [record.offset for record in contents(again)] == list(range(5, 10))
    with pytest.raises(LogError) as caught:
        again.read(4, 100)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_segments_dropped_before_kill_are_removed_at_recovery(open_log: OpenLog) -> None:
    log = open_log(segment_bytes=500)
    for number in range(20):
        produce(log, number * 2)
    log.delete_records(log.log_end_offset)
    assert log.apply_retention(now_ms=NOW_MS) == 3
    assert len(list(Path(log.directory).glob("*.log"))) > 3
    log.abandon()
    again = open_log(segment_bytes=500)
    assert len(list(Path(log.directory).glob("*.log"))) == len(again.segments) == 1
    assert (again.log_start_offset, again.log_end_offset) == (40, 40)


def test_unreadable_checkpoint_causes_scan_without_data_loss(open_log: OpenLog) -> None:
    log = open_log(segment_bytes=500)
    for number in range(20):
        produce(log, number * 2)
    records = contents(log)
    log.close(now_ms=NOW_MS)
    (Path(log.directory) / "checkpoint.json").write_text('{"version": 1')
    again = open_log(segment_bytes=500)
    assert not again.opened_clean
    assert contents(again) == records


@pytest.mark.parametrize("field", ["end_offset", "size"])
def test_inconsistent_clean_marker_is_ignored(open_log: OpenLog, field: str) -> None:
    log = open_log()
    produce(log, 0)
    log.close(now_ms=NOW_MS)
    path = Path(log.directory) / "checkpoint.json"
    document: dict[str, Any] = json.loads(path.read_text())
    document["clean"][0 if field == "end_offset" else 1] += 1
    path.write_text(json.dumps(document))
    again = open_log()
    assert not again.opened_clean
    assert again.log_end_offset == 2
    assert produce(again, 0)


def test_valid_batches_stops_at_first_invalid_batch(
    torn_source: tuple[Path, list[Record], int],
) -> None:
    source, _, start = torn_source
    path = next(source.glob("t-0/*.log"))
    headers = [header for header, _ in ValidBatches(str(path.parent), 0)]
    assert (len(headers), sum(header.size for header in headers[:-1])) == (BATCHES, start)
    path.rename(path.with_name(f"{1:020d}.log"))
    shifted = ValidBatches(str(path.parent), 1)
    assert list(shifted) == []
    assert shifted.problem == "the batch has offset 0 instead of 1"
    path.with_name(f"{1:020d}.log").rename(path)


def test_logs_without_checkpoints_do_not_share_their_producers(tmp_path: Path) -> None:
    def open_partition(index: int) -> Log:
        return Log.open(tmp_path, "t", index, LogConfig(), now_ms=NOW_MS)

    for index, count in ((0, 3), (1, 5)):
        log = open_partition(index)
        for sequence in range(count):
            produce(log, sequence, count=1)
        log.abandon()
        (Path(log.directory) / "checkpoint.json").unlink()
    first, second = open_partition(0), open_partition(1)
    assert not produce(first, 3, count=1)
    assert produce(second, 4, count=1)
    assert not produce(second, 5, count=1)
    for log in (first, second):
        log.abandon()


# Segments of another broker ---------------------------------------------------------------------


def batch_at(offset: int, value: bytes) -> bytes:
    records = [Record(timestamp=NOW_MS, key=b"k", value=value)]
    return offset.to_bytes(8, "big") + build_batch(records)[8:]


@pytest.fixture
def imported(tmp_path: Path) -> Path:
    """What a cleaner of Kafka left of a log: two segments with gaps, and no checkpoint of ours."""
    partition = tmp_path / "t-0"
    partition.mkdir()
    for base, offsets in ((0, (90, 91)), (100, (103, 110))):
        data = b"".join(batch_at(offset, b"v%d" % offset) for offset in offsets)
        (partition / f"{base:020}.log").write_bytes(data)
    return tmp_path


def test_segments_of_another_broker_may_have_gaps(imported: Path) -> None:
    ends = []
    for _ in range(2):  # The second time, after a crash.
        log = Log.open(imported, "t", 0, LogConfig(), now_ms=NOW_MS)
        assert [record.offset for record in contents(log)][:4] == [90, 91, 103, 110]
        assert log.truncation is None
        produce(log, 0)
        ends.append(log.log_end_offset)
        log.abandon()
    assert ends == [113, 113]  # The second batch is a duplicate of the first.


@pytest.mark.parametrize("segment", [0, 100])
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda data: data[:-1], "the file ends earlier"),
        (lambda data: data[:-1] + b"x", "checksum is wrong"),
        (lambda data: data + bytes(61), "batch"),
    ],
)
def test_damaged_segments_of_another_broker_are_rejected_and_not_changed(
    imported: Path, segment: int, change: Callable[[bytes], bytes], problem: str
) -> None:
    path = imported / "t-0" / f"{segment:020}.log"
    path.write_bytes(change(path.read_bytes()))
    before = {file: file.read_bytes() for file in path.parent.iterdir()}
    with pytest.raises(LogError, match=rf"{segment:020}.*written by another broker.*{problem}"):
        Log.open(imported, "t", 0, LogConfig(), now_ms=NOW_MS)
    assert {file: file.read_bytes() for file in path.parent.iterdir()} == before


def test_log_whose_own_tail_is_torn_is_still_truncated(imported: Path) -> None:
    log = Log.open(imported, "t", 0, LogConfig(), now_ms=NOW_MS)
    produce(log, 0)
    path = last_log_file(log)
    log.abandon()
    path.write_bytes(path.read_bytes()[:-1])
    log = Log.open(imported, "t", 0, LogConfig(), now_ms=NOW_MS)
    assert [record.offset for record in contents(log)] == [90, 91, 103, 110]
    assert log.truncation is not None
    log.abandon()
