"""Entries and records are read as they were written, and other bytes are an error."""

from __future__ import annotations

import marshal

import pytest

from minibroker.lab.journal.entries import Loss, LossReason
from minibroker.lab.journal.saving import restored, restored_chunks, saved, saved_chunks
from tests.lab.journal.entries_of_tests import entry_of, request_entry
from tests.lab.journal.records_of_tests import chunk, exchange, noted

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
