"""Tests."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.log.checkpoint import (
    CLEANER_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    UNDEFINED_END,
    UNDEFINED_EPOCH,
    Checkpoint,
    EpochEnd,
    EpochEntry,
    LeaderEpochFile,
    LeaderEpochs,
    claim_directory,
    decode_epochs,
    encode_epochs,
    has_cleaner_checkpoint,
    read_checkpoint,
    read_cleaner_checkpoint,
    read_topic_id,
    write_checkpoint,
    write_cleaner_checkpoint,
    write_topic_id,
)
from minibroker.broker.log.errors import LogError
from minibroker.broker.log.producers import BatchMetadata, Producer, ProducerTable


@pytest.mark.parametrize("clean", [None, (90, 4096)])
@pytest.mark.parametrize("sync", [False, True])
def test_checkpoint_round_trips(tmp_path: Path, clean: tuple[int, int] | None, sync: bool) -> None:
    producers = {7: Producer(3, 555, (BatchMetadata(4, 80, 4, 554), BatchMetadata(9, 89, 4, 555)))}
    table = ProducerTable(producers.items(), 90)
    write_checkpoint(str(tmp_path), Checkpoint(5, 60, clean, table), sync=sync)
    result = read_checkpoint(str(tmp_path))
    assert result is not None
    assert (result.log_start_offset, result.recovery_point, result.clean) == (5, 60, clean)
    assert (result.producers.producers, result.producers.end_offset) == (producers, 90)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"version": 2}', '{"version": 1}'])
def test_unreadable_checkpoint_is_none(tmp_path: Path, text: str) -> None:
    assert read_checkpoint(str(tmp_path)) is None
    (tmp_path / "checkpoint.json").write_text(text)
    assert read_checkpoint(str(tmp_path)) is None


def test_topic_id_file_has_kafka_format(tmp_path: Path) -> None:
    assert read_topic_id(str(tmp_path)) is None
    write_topic_id(str(tmp_path), bytes(range(16)))
    text = (tmp_path / "partition.metadata").read_text()
    assert text == "version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw"
    assert read_topic_id(str(tmp_path)) == bytes(range(16))


@pytest.mark.parametrize("text", ["", "version: 0", "version: 0\ntopic_id: x", "nonsense"])
def test_malformed_topic_id_file_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "partition.metadata").write_text(text)
    assert read_topic_id(str(tmp_path)) is None


def test_topic_id_file_that_is_not_regular_is_none(tmp_path: Path) -> None:
    for name, make in (("fifo", os.mkfifo), ("folder", os.mkdir)):
        (tmp_path / name).mkdir()
        make(tmp_path / name / "partition.metadata")
        assert read_topic_id(str(tmp_path / name)) is None


def test_topic_id_file_is_synced_before_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def watched(name: str) -> Callable[..., None]:
        original = getattr(os, name)

        def call(*args: object) -> None:
            done.append(name)
            original(*args)

        return call

    for name in ("fsync", "replace"):
        monkeypatch.setattr(os, name, watched(name))
    write_topic_id(str(tmp_path), bytes(16))
    assert done == ["fsync", "replace"]


def test_claim_of_directory_with_unreadable_topic_id_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "partition.metadata").write_text("nonsense")
    with pytest.raises(LogError, match=r"partition\.metadata cannot be read: restore it"):
        claim_directory(str(tmp_path), bytes(16))
    assert (tmp_path / "partition.metadata").read_text() == "nonsense"


def test_claim_of_directory_with_symlinked_segment_is_rejected(tmp_path: Path) -> None:
    write_topic_id(str(tmp_path), bytes(16))
    claim_directory(str(tmp_path), bytes(16))
    (tmp_path / f"{0:020d}.log").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LogError, match=r"0\.log is a symbolic link, which is not followed"):
        claim_directory(str(tmp_path), bytes(16))


def test_claim_completes_interrupted_write_of_topic_id(tmp_path: Path) -> None:
    (tmp_path / "partition.metadata.tmp").touch()
    claim_directory(str(tmp_path), bytes(range(16)))
    assert read_topic_id(str(tmp_path)) == bytes(range(16))


def test_checkpoint_has_kafka_format(tmp_path: Path) -> None:
    directory = str(tmp_path)
    assert not has_cleaner_checkpoint(directory)
    assert read_cleaner_checkpoint(directory) is None
    write_cleaner_checkpoint(directory, "t", 3, 42)
    assert (tmp_path / CLEANER_CHECKPOINT).read_text() == "0\n1\nt 3 42\n"
    assert read_cleaner_checkpoint(directory) == 42


@pytest.mark.parametrize("text", ["", "1\n1\nt 3 42\n", "0\n1\nt 3\n", "0\n2\nt 3 4\n", "\xff"])
def test_damaged_checkpoint_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / CLEANER_CHECKPOINT).write_bytes(text.encode("latin-1"))
    assert read_cleaner_checkpoint(str(tmp_path)) is None
    assert has_cleaner_checkpoint(str(tmp_path))


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
