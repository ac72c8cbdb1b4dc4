"""Tests."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from minibroker.broker.log.checkpoint import (
    CLEANER_CHECKPOINT,
    Checkpoint,
    claim_directory,
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
