from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.lab.checker.client_history import (
    Consumers,
    HistorySettings,
    IsolationLevel,
    PolledRecord,
    SentRecord,
)
from minibroker.lab.checker.history_format import (
    KEY_CHARS_MAX,
    LINE_CHARS_MAX,
    LINE_ELEMENTS_MAX,
    InvalidHistory,
    decode_line,
    header_line,
    header_of,
    line_of,
)

SEND = {"process": 0, "type": "invoke", "operation": "send", "steps": []}
HEADER = {"history": "minibroker", "version": 1}


def test_header_is_read_as_it_is_written() -> None:
    settings = HistorySettings(
        "abort", IsolationLevel.READ_UNCOMMITTED, False, Consumers.SUBSCRIBE, True, {3: "x 1.0"}
    )
    assert header_of(decode_line(json.dumps(header_line(settings)))) == settings


def test_header_has_defaults() -> None:
    assert header_of(HEADER) == HistorySettings()


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
    assert line.polls == [("b", PolledRecord(3, 9))]
    assert line.polls_at_all
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
