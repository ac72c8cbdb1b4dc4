"""What a process saves before it is killed is read once, by a process of the same start."""

from __future__ import annotations

import marshal
import os
from pathlib import Path

import pytest

from minibroker.broker.metrics.log import EventLog
from minibroker.lab.journal.entries import Loss, LossReason
from minibroker.lab.observers.journal_files import (
    JournalFiles,
    restored,
    restored_chunks,
    saved,
    saved_chunks,
)
from tests.lab.journal.entries_of_tests import entry_of, request_entry
from tests.lab.journal.records_of_tests import chunk, exchange, noted


def files(directory: Path, run: int = 1) -> JournalFiles:
    return JournalFiles(directory, run, EventLog("test"))


def test_journal_is_read_once(tmp_path: Path) -> None:
    entries = [request_entry(stages={"total": 1.5}), entry_of("state", details={"what": "x"})]
    files(tmp_path).save_journal(entries)
    assert files(tmp_path).take_journal() == entries
    assert files(tmp_path).take_journal() == ()


def test_journal_of_another_start_is_removed(tmp_path: Path) -> None:
    files(tmp_path, 1).save_journal([request_entry()])
    assert files(tmp_path, 2).take_journal() == ()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size", [0, 4, 8, 20])
def test_journal_that_is_cut_off_has_nothing(tmp_path: Path, size: int) -> None:
    files(tmp_path).save_journal([request_entry()])
    (file,) = tmp_path.iterdir()
    os.truncate(file, size)
    assert list(files(tmp_path).take_journal()) == []


def test_file_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    files(tmp_path / "none").save_journal([request_entry()])
    assert files(tmp_path / "none").take_journal() == ()


LOSS = Loss("worker-0", 4, LossReason.PROCESS_ENDED, 30.0).entry(10, 45.0)


def test_entries_are_restored() -> None:
    entries = [request_entry(stages={"total": 1.5}), entry_of("clock", details={"to": 1}), LOSS]
    assert restored(saved(entries)) == entries


def test_chunks_are_restored() -> None:
    chunks = [chunk(1, noted(1), exchange(2, 3)), chunk(2, first=3)]
    assert restored_chunks(saved_chunks(chunks)) == chunks


def test_bytes_that_are_neither_are_an_error() -> None:
    whole = saved([entry_of("clock")])
    for data in (b"", b"x", whole[:-3], marshal.dumps([[1]]), marshal.dumps(1)):
        for read in (restored, restored_chunks):
            with pytest.raises(ValueError, match=r"\w"):
                read(data)
