"""The active segment writes batches completely, and its index files for as many as it has."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.log.segment import (
    OFFSET_ENTRY,
    RECENT_BATCHES,
    TIME_ENTRY,
    ActiveSegment,
    SegmentFiles,
)
from minibroker.broker.log.transaction_index import AbortedTransaction
from minibroker_protocol.compression import Compression
from minibroker_protocol.errors import DecodeError
from tests.broker.log.segments import INTERVAL, check_finds, fill


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
