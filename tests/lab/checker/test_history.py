from __future__ import annotations

import io
import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.lab.checker import history as history_module
from minibroker.lab.checker.history import (
    KEY_CHARS_MAX,
    LINE_CHARS_MAX,
    LINE_ELEMENTS_MAX,
    ClientOperation,
    Consumers,
    HistorySettings,
    InvalidHistory,
    IsolationLevel,
    OperationKind,
    OperationResult,
    SentRecord,
    check_size,
    decode_line,
    header_line,
    header_of,
    line_of,
    read_history,
)
from tests.lab.checker.written import Line, assign, completed, header, invoked, poll, send

SEND = {"process": 0, "type": "invoke", "operation": "send", "steps": []}
HEADER = {"history": "minibroker", "version": 1}


def test_header_is_read_as_it_is_written() -> None:
    settings = HistorySettings(
        "abort", IsolationLevel.READ_UNCOMMITTED, False, Consumers.SUBSCRIBE, True, {3: "x 1.0"}
    )
    assert header_of(decode_line(json.dumps(header_line(settings)))) == settings


def test_header_has_defaults() -> None:
    assert header_of(HEADER) == HistorySettings()


def test_poll_without_records_differs_from_no_poll() -> None:
    assert line_of({**SEND, "operation": "poll", "steps": [{"poll": {"a": []}}]}).polls == {}
    assert line_of({**SEND, "operation": "poll"}).polls is None


def test_polled_record_is_kept_once_for_all_processes() -> None:
    history = read_history([header(), *poll(0, {A: [(500, 1000)]}), *poll(1, {A: [(500, 1000)]})])
    [first], [second] = (operation.polls[A] for operation in history.operations)
    assert first is second


def test_line_is_decoded() -> None:
    line = line_of({
        "process": 4,
        "type": "ok",
        "operation": "txn",
        "steps": [
            {"send": "a", "value": 1, "offset": 7},
            {"send": "a", "value": "x", "offset": None},
            {"poll": {"b": [[3, 9]], "c": []}},
        ],
        "rebalanced": ["b"],
        "error": "none",
        "time_ms": 1.5,
    })  # fmt: skip
    assert line.sends == [("a", SentRecord(1, 7)), ("a", SentRecord("x", None))]
    assert line.polls == {"b": [(3, 9)]}
    assert line.rebalanced == {"b"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the line is empty"),
        ("{", "this is no JSON"),
        ("[1]", "the line is [1]; it must be an object"),
        ("[" * 100_000, "this is no JSON"),
        (" " * (LINE_CHARS_MAX + 1), f"more than {LINE_CHARS_MAX} characters"),
        ('{"a":[' + "[]," * (LINE_ELEMENTS_MAX // 2) + "0]}", "more than 1000000 values; split"),
    ],
    ids=["empty", "cut", "list", "deep", "long", "full"],
)
def test_line_that_is_no_object_is_rejected(text: str, message: str) -> None:
    with pytest.raises(InvalidHistory) as error:
        decode_line(text)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"history": "jepsen"}, "the first line must be the header"),
        ({"version": 2}, "version 2 of the format is not supported; this minibroker reads version"),
        ({"version": True}, "version true"),
        ({"consumer": "assign"}, 'unknown field "consumer"; did you mean "consumers"?'),
        ({"consumers": "asign"}, 'it is one of assign, subscribe; did you mean "assign"?'),
        ({"isolation_level": 1}, "it is one of read_committed, read_uncommitted"),
        ({"idempotence": "yes"}, '"idempotence" is "yes"; it must be true or false'),
        ({"clients": {"a": "x"}}, 'names process "a"; processes are integers'),
        ({"clients": {"1": 2}}, '"clients" of process 1 is 2; it must be a string'),
    ],
)
def test_wrong_header_is_rejected(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidHistory) as error:
        header_of({**HEADER, **change})
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"operation": "sent"}, 'did you mean "send"?'),
        ({"type": "okay"}, "it is one of invoke, ok, fail, unknown"),
        ({"process": -1}, "it must be an integer of at least 0"),
        ({"process": True}, "it must be an integer of at least 0"),
        ({"proces": 1}, 'did you mean "process"?'),
        ({"keys": ["a"]}, '"keys" has no meaning in operation "send"; it belongs to assign'),
        ({"abort": True}, "it belongs to txn"),
        ({"steps": {}}, '"steps" is {}; it must be a list'),
        ({"steps": [1]}, "step 0 is 1; it must be an object"),
        ({"steps": [{"send": "a"}]}, "step 0 is neither"),
        ({"steps": [{"send": "a", "vlaue": 1}]}, 'did you mean "value"?'),
        ({"steps": [{"send": 1, "value": 1}]}, "a key is a string"),
        ({"steps": [{"send": "a" * (KEY_CHARS_MAX + 1), "value": 1}]}, "of at most"),
        ({"steps": [{"send": "a", "value": 1.5}]}, "a value is an integer or a string"),
        ({"steps": [{"send": "a", "value": "v" * (KEY_CHARS_MAX + 1)}]}, "short identifier"),
        ({"steps": [{"send": "a", "value": 1, "offset": -1}]}, '"offset" of step 0 is -1'),
        ({"steps": [{"poll": {}}]}, 'operation "send" contains a poll; use "txn"'),
        ({"operation": "poll", "steps": [{"send": "a", "value": 1}]}, "contains a send"),
        ({"operation": "poll", "steps": [{"poll": []}]}, "it must be an object"),
        ({"operation": "poll", "steps": [{"poll": {"a": [[1]]}}]}, "record is [OFFSET, VALUE]"),
        ({"operation": "poll", "steps": [{"poll": {"a": [["1", 2]]}}]}, "offset of 'a' in step 0"),
        ({"rebalanced": "a"}, '"rebalanced" is "a"; it must be a list'),
        ({"time_ms": "1"}, '"time_ms" is "1"; it must be a number'),
        ({"error": 1}, '"error" is 1; it must be a string'),
    ],
)
def test_wrong_line_is_rejected(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidHistory) as error:
        line_of({**SEND, **change})
    assert message in str(error.value)


@pytest.mark.parametrize("name", ["process", "type", "operation", "steps"])
def test_missing_field_is_named(name: str) -> None:
    line = {key: value for key, value in SEND.items() if key != name}
    with pytest.raises(InvalidHistory, match=f'"{name}" is missing'):
        line_of(line)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda each: (
        st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=5), each, max_size=3)
    ),
    max_leaves=8,
)


@given(st.fixed_dictionaries({}, optional={
    "process": JSON | st.just(0),
    "type": JSON | st.just("ok"),
    "operation": JSON | st.sampled_from(["send", "poll", "txn", "assign", "reopen"]),
    "steps": JSON | st.just([{"poll": {}}]),
    "keys": JSON,
    "rebalanced": JSON,
    "abort": JSON,
}))  # fmt: skip
def test_any_object_is_read_or_rejected(line: dict[str, Any]) -> None:
    with suppress(InvalidHistory):
        line_of(line)


def test_line_of_an_operation_is_that_of_its_completion_if_there_is_one() -> None:
    operation = ClientOperation(0, 3, OperationKind.SEND, invoked_line=5)
    assert operation.line == 5
    operation.completed_line = 9
    assert operation.line == 9


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
    monkeypatch.setattr(history_module, limit, 2)
    lines: list[dict[str, Any]] = []
    for value in range(3):
        lines += send(0, (A, value, value))
    assert message in rejected(*lines)


@pytest.mark.parametrize("scanned_bytes", [1, 7, 1 << 20])
def test_file_with_too_many_operations_is_rejected_before_it_is_read(
    monkeypatch: pytest.MonkeyPatch, scanned_bytes: int
) -> None:
    monkeypatch.setattr(history_module, "HISTORY_OPERATIONS_MAX", 2)
    monkeypatch.setattr(history_module, "SCAN_BYTES", scanned_bytes)
    lines = [b'{"type":"invoke"}', b'{"type": "ok"}', b'{"type" : "invoke"}']
    lines.append(rb'{"error": "\"type\": \"invoke\""}')  # A text, which is none.
    check_size(io.BytesIO(b"\n".join(lines)))
    with pytest.raises(InvalidHistory, match=r"more than 2 operations \(HISTORY_OPERATIONS_MAX\)"):
        check_size(io.BytesIO(b"\n".join([*lines, lines[0]])))
