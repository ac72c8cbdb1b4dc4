from __future__ import annotations

import io
from typing import Any

import pytest

from minibroker.lab.checker import history_reader
from minibroker.lab.checker.client_history import OperationResult, SentRecord
from minibroker.lab.checker.history_format import InvalidHistory
from minibroker.lab.checker.history_reader import check_size, read_history
from tests.lab.checker.written import Line, assign, completed, header, invoked, poll, send

A = "orders-0"


def rejected(*lines: Line, head: Line | None = None) -> str:
    with pytest.raises(InvalidHistory) as error:
        read_history([head or header(), *lines])
    return str(error.value)


def test_completion_adds_offsets_and_polls_to_the_invocation() -> None:
    history = read_history([header(), *send(0, (A, 1, 5)), *poll(1, {A: [(5, 1)]})])
    first, second = history.operations
    assert first.sends == {A: [SentRecord(1, 5)]}
    assert (first.result, first.invoked_line, first.completed_line) == (OperationResult.OK, 2, 3)
    assert second.polls == {A: [(5, 1)]}
    assert history.completed == [first, second]


def test_invocation_without_completion_is_unknown() -> None:
    history = read_history([header(), invoked(0, "send", [(A, 1, None)], None)])
    [operation] = history.operations
    assert operation.result is OperationResult.UNKNOWN
    assert operation.sends == {A: [SentRecord(1, None)]}
    assert history.completed == []


def test_lines_of_text_are_read() -> None:
    assert read_history(['{"history": "minibroker", "version": 1}\n']).operations == []


def test_empty_history_is_rejected() -> None:
    with pytest.raises(InvalidHistory, match="the history is empty"):
        read_history([])


def test_error_names_the_line() -> None:
    assert rejected(*send(0, (A, 1, 0)), {"process": 0}).startswith("line 4: ")


def test_second_invocation_of_a_process_is_rejected() -> None:
    line = invoked(0, "poll", [], {})
    assert "its operation of line 2 is not complete" in rejected(line, line)


def test_completion_without_invocation_is_rejected() -> None:
    assert "did not invoke" in rejected(completed(0, "poll", [], {}, "ok"))


def test_completion_of_another_operation_is_rejected() -> None:
    lines = invoked(0, "poll", [], {}), completed(0, "send", [], None, "ok")
    assert "differs from its invocation in line 2" in rejected(*lines)
    first, second = assign(0, A)[0], assign(0, "orders-1")[1]
    assert "differs from its invocation in line 2" in rejected(first, second)


def test_value_that_is_sent_twice_is_rejected() -> None:
    message = "value 1 of orders-0 was already sent in line 2; values must be unique within a key"
    assert message in rejected(*send(0, (A, 1, 0)), *send(1, (A, 1, 1)))
    assert message in rejected(*send(0, (A, 1, 0), (A, 1, 1)))
    history = read_history([header(), *send(0, (A, 1, 0)), *send(1, ("orders-1", 1, 1))])
    assert len(history.operations) == 2


def test_invocation_with_results_is_rejected() -> None:
    line = invoked(0, "send", [(A, 1, None)], None)
    line["steps"][0]["offset"] = 3
    assert "an invocation cannot contain an offset" in rejected(line)
    line = {**invoked(0, "poll", [], {}), "steps": [{"poll": {A: [[0, 1]]}}]}
    assert "an invocation cannot contain polled records" in rejected(line)


def test_completion_with_other_sends_is_rejected() -> None:
    line = invoked(0, "send", [(A, 1, None)], None)
    other = completed(0, "send", [(A, 2, 0)], None, "ok")
    assert "value 2 of orders-0 is not sent by the invocation in line 2" in rejected(line, other)
    missing = completed(0, "send", [], None, "ok")
    assert "value 1 of orders-0, which line 2 sends, is missing" in rejected(line, missing)
    history = read_history([header(), line, completed(0, "send", [], None, "unknown")])
    assert history.operations[0].sends == {A: [SentRecord(1, None)]}


def test_poll_without_invoked_poll_is_rejected() -> None:
    lines = invoked(0, "txn", [], None), completed(0, "txn", [], {}, "ok")
    assert "the invocation in line 2 contains no poll" in rejected(*lines)


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ("HISTORY_RECORDS_MAX", "more than 2 records (HISTORY_RECORDS_MAX)"),
        ("HISTORY_OPERATIONS_MAX", "more than 2 operations (HISTORY_OPERATIONS_MAX)"),
    ],
)
def test_history_above_a_limit_is_rejected(
    limit: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_reader, limit, 2)
    lines: list[dict[str, Any]] = []
    for value in range(3):
        lines += send(0, (A, value, value))
    assert message in rejected(*lines)


@pytest.mark.parametrize("scanned_bytes", [1, 7, 1 << 20])
def test_file_with_too_many_operations_is_rejected_before_it_is_read(
    monkeypatch: pytest.MonkeyPatch, scanned_bytes: int
) -> None:
    monkeypatch.setattr(history_reader, "HISTORY_OPERATIONS_MAX", 2)
    monkeypatch.setattr(history_reader, "SCAN_BYTES", scanned_bytes)
    lines = [b'{"type":"invoke"}', b'{"type": "ok"}', b'{"type" : "invoke"}']
    lines.append(rb'{"error": "\"type\": \"invoke\""}')  # A text, which is none.
    check_size(io.BytesIO(b"\n".join(lines)))
    with pytest.raises(InvalidHistory, match=r"more than 2 operations \(HISTORY_OPERATIONS_MAX\)"):
        check_size(io.BytesIO(b"\n".join([*lines, lines[0]])))
