"""Leader epochs: the table against a naive model, and the file in Kafka's format."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.log.leader_epochs import (
    LEADER_EPOCH_CHECKPOINT,
    UNDEFINED_END,
    UNDEFINED_EPOCH,
    EpochEnd,
    EpochEntry,
    LeaderEpochFile,
    LeaderEpochs,
    decode_epochs,
    encode_epochs,
)


def table(*entries: tuple[int, int]) -> LeaderEpochs:
    return LeaderEpochs(tuple(EpochEntry(*entry) for entry in entries))


@pytest.mark.parametrize(
    ("assigned", "expected"),
    [
        ([(0, 0)], [(0, 0)]),
        ([(0, 0), (0, 5)], [(0, 0)]),
        ([(0, 5), (0, 3)], [(0, 3)]),
        ([(0, 0), (2, 5), (4, 9)], [(0, 0), (2, 5), (4, 9)]),
        ([(0, 0), (2, 5), (4, 5)], [(0, 0), (4, 5)]),
        ([(0, 0), (2, 5), (4, 9), (3, 7)], [(0, 0), (2, 5), (3, 7)]),
        ([(0, 0), (2, 5), (1, 9)], [(0, 0), (1, 9)]),
        ([(1, 4), (5, 0)], [(5, 0)]),
        ([(-1, 0), (0, -1)], []),
    ],
)
def test_assign_keeps_epochs_and_offsets_increasing(
    assigned: list[tuple[int, int]], expected: list[tuple[int, int]]
) -> None:
    epochs = table(*assigned)
    assert list(epochs.entries) == expected
    assert epochs.latest_epoch == (expected[-1][0] if expected else UNDEFINED_EPOCH)


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [
        (0, EpochEnd(0, 10)),
        (1, EpochEnd(1, 10)),
        (2, EpochEnd(2, 20)),
        (3, EpochEnd(2, 20)),
        (5, EpochEnd(5, 27)),
        (6, UNDEFINED_END),
        (-1, UNDEFINED_END),
        (-2, EpochEnd(-2, 10)),
    ],
)
def test_end_offset_for_epoch_follows_kafka(epoch: int, expected: EpochEnd) -> None:
    assert table((2, 10), (5, 20)).end_offset_for(epoch, 27) == expected


def test_empty_table_has_undefined_epochs() -> None:
    assert {table().end_offset_for(epoch, 5) for epoch in (-2, -1, 0)} == {UNDEFINED_END}
    assert table().epoch_for_offset(0) == UNDEFINED_EPOCH


def test_epoch_for_offset_before_first_entry_is_undefined() -> None:
    epochs = table((2, 10), (5, 20))
    found = [epochs.epoch_for_offset(offset) for offset in (9, 10, 19, 20, 99)]
    assert found == [UNDEFINED_EPOCH, 2, 2, 5, 5]


@pytest.mark.parametrize(
    ("start", "expected"),
    [(0, [(1, 4), (3, 8)]), (4, [(1, 4), (3, 8)]), (6, [(1, 6), (3, 8)]), (9, [(3, 9)])],
)
def test_truncate_from_start_moves_first_entry(start: int, expected: list[tuple[int, int]]) -> None:
    epochs = table((1, 4), (3, 8))
    epochs.truncate_from_start(start)
    assert list(epochs.entries) == expected


@pytest.mark.parametrize(
    ("end", "expected"), [(9, [(1, 4), (3, 8)]), (8, [(1, 4)]), (5, [(1, 4)]), (4, [])]
)
def test_truncate_from_end_removes_entries(end: int, expected: list[tuple[int, int]]) -> None:
    epochs = table((1, 4), (3, 8))
    epochs.truncate_from_end(end)
    assert list(epochs.entries) == expected
    assert epochs.latest_epoch == (expected[-1][0] if expected else UNDEFINED_EPOCH)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 3), st.integers(1, 5)),
        st.tuples(st.sampled_from(["start", "end"]), st.integers(0, 9), st.just(0)),
    ),
    max_size=20,
)


@given(STEPS)
def test_table_matches_model_of_record_epochs(steps: list[tuple[str, int, int]]) -> None:
    epochs = LeaderEpochs()
    start = 0
    records: list[int] = []  # The epoch of each record from ``start`` on.
    for step, number, count in steps:
        if step == "append":
            epoch = (records[-1] if records else 0) + number
            epochs.assign(epoch, start + len(records))
            records += [epoch] * count
        elif step == "start" and number < len(records):
            start += number
            del records[:number]
            epochs.truncate_from_start(start)
        elif step == "end" and number < len(records):
            del records[len(records) - number :]
            epochs.truncate_from_end(start + len(records))
        end = start + len(records)
        assert [epochs.epoch_for_offset(offset) for offset in range(start, end)] == records
        for epoch in range(max(records, default=-1) + 2):
            assert epochs.end_offset_for(epoch, end) == expected_end(records, start, epoch)
        assert decode_epochs(encode_epochs(epochs.entries)) == epochs.entries


def expected_end(records: list[int], start: int, epoch: int) -> EpochEnd:
    if epoch > max(records, default=-1):
        return UNDEFINED_END
    earlier = [each for each in records if each <= epoch]
    return EpochEnd(max(earlier, default=epoch), start + len(earlier))


def test_leader_epoch_file_has_kafka_format(tmp_path: Path) -> None:
    file = LeaderEpochFile(str(tmp_path))
    file.write(table((0, 0), (3, 17)))
    assert (tmp_path / LEADER_EPOCH_CHECKPOINT).read_text() == "0\n2\n0 0\n3 17\n"
    read = LeaderEpochFile(str(tmp_path)).read()
    assert read is not None
    assert list(read.entries) == [(0, 0), (3, 17)]


@pytest.mark.parametrize(
    "text",
    [
        *("", "0\n", "1\n0\n", "x\n0\n", "0\n2\n0 0\n", "0\n1\n0 0\n1 1\n", "0\n1\n0\n"),
        *("0\n1\n0 0 0\n", "0\n1\na 0\n", "0\n2\n1 0\n0 1\n", "0\n2\n0 5\n1 5\n", "0\n1\n-1 0\n"),
        "0\n1\n\u00e9 0\n",
    ],
)
def test_malformed_leader_epoch_file_is_ignored(tmp_path: Path, text: str) -> None:
    (tmp_path / LEADER_EPOCH_CHECKPOINT).write_text(text, encoding="utf-8")
    assert LeaderEpochFile(str(tmp_path)).read() is None


def test_missing_leader_epoch_file_is_ignored(tmp_path: Path) -> None:
    assert LeaderEpochFile(str(tmp_path)).read() is None


def test_leader_epoch_file_is_written_only_if_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    synced: list[int] = []
    replace, fsync = os.replace, os.fsync

    def counting_replace(source: str, target: str) -> None:
        written.append(target)
        replace(source, target)

    def counting_fsync(fd: int) -> None:
        synced.append(fd)
        fsync(fd)

    monkeypatch.setattr(os, "replace", counting_replace)
    monkeypatch.setattr(os, "fsync", counting_fsync)
    file, epochs = LeaderEpochFile(str(tmp_path)), table((0, 0))
    for sync, expected in ((False, (1, 0)), (False, (1, 0)), (True, (2, 1)), (True, (2, 1))):
        file.write(epochs, sync=sync)
        assert (len(written), len(synced)) == expected
    epochs.assign(1, 5)
    file.write(epochs)
    assert (len(written), len(synced)) == (3, 1)
