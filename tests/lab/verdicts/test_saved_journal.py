from __future__ import annotations

import base64
import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from minibroker.lab.journal.entries import EntryKind, JournalEntry
from minibroker.lab.verdicts.saved_journal import (
    LINE_CHARS_MAX,
    InvalidJournal,
    entries_of_lines,
    entry_of_json,
)
from tests.lab.verdicts.written import WrittenJournal


def saved(entry: JournalEntry) -> dict[str, Any]:
    """An entry as the control API writes it."""
    frame = None if entry.frame is None else base64.b64encode(entry.frame).decode()
    return {
        "sequence": entry.sequence,
        "clock_ms": entry.clock_ms,
        "kind": entry.kind.value,
        "role": entry.role,
        "connection": entry.connection,
        "client_id": entry.client_id,
        "address": entry.address,
        "api": entry.api,
        "version": entry.version,
        "correlation_id": entry.correlation_id,
        "throttle_time_ms": entry.throttle_time_ms,
        "stages": {},
        "frame_bytes": entry.frame_bytes,
        "frame": frame,
        "details": dict(entry.details),
        "body": None,
    }


def test_saved_entries_are_read_back() -> None:
    journal = WrittenJournal()
    journal.open("1")
    journal.ask_metadata("1")
    journal.close("1")
    lines = [json.dumps(saved(entry)) + "\n" for entry in journal.entries]
    assert list(entries_of_lines(["\n", *lines])) == journal.entries


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "x"}, "kind must be one of connection_opened"),
        ({"sequence": None}, "sequence is missing"),
        ({"sequence": True}, "sequence has a wrong type"),
        ({"clock_ms": float("inf")}, "clock_ms is not a finite number"),
        ({"version": "1"}, "version has a wrong type"),
        ({"frame": "%"}, "frame is not base64"),
        ({"details": []}, "details has a wrong type"),
    ],
)
def test_wrong_field_is_named(change: dict[str, Any], message: str) -> None:
    entry = JournalEntry(1, 0.0, EntryKind.CLOCK, "controller")
    with pytest.raises(InvalidJournal, match=message):
        entry_of_json({**saved(entry), **change})


def test_wrong_line_is_named() -> None:
    with pytest.raises(InvalidJournal, match="line 2: an entry is a JSON object"):
        list(entries_of_lines(["\n", "[]\n"]))
    with pytest.raises(InvalidJournal, match="line 1 has more than"):
        list(entries_of_lines(["x" * (LINE_CHARS_MAX + 1)]))


LINES = st.text(max_size=200) | st.dictionaries(st.text(max_size=9), st.integers()).map(json.dumps)


@given(line=LINES)
@example(line="[" * 100_000)
def test_any_line_is_an_entry_or_an_error(line: str) -> None:
    with suppress(InvalidJournal):
        list(entries_of_lines([line]))
