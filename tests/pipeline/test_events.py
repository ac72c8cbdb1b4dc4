from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minibroker.lab.activity.arrow_format import COLUMNS, SCHEMA, event_of
from minibroker.lab.activity.schema import ActivityField, ActivityType
from minibroker.pipeline.events import (
    REASON_MAX,
    MalformedEvent,
    check_event,
    malformed_rows,
    parse_event,
    why_malformed,
)
from tests.pipeline.random_events import event, table_of, written

GOOD = event(1, random.Random(1))


def request() -> dict[str, object]:
    chance = random.Random(2)
    return next(made for made in iter(lambda: event(1, chance), None) if made["kind"] == "request")


def reason(raw: bytes | None) -> str:
    with pytest.raises(MalformedEvent) as raised:
        parse_event(raw)
    return str(raised.value)


def test_complete_event_is_unchanged() -> None:
    chance = random.Random(3)
    for number in range(200):
        made = event(number, chance)
        assert parse_event(written(made)) == made


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 2}, "version is 2, but only 1 is supported"),
        ({"version": None}, "version is null"),
        ({"version": True}, "version is true"),
        ({"kind": "rumour"}, 'kind "rumour" is unknown'),
        ({"kind": None}, "kind null is unknown"),
        ({"sequence": None}, "field `sequence` is missing"),
        ({"user": None}, "field `user` is missing"),
        ({"sequence": "7"}, 'field `sequence` is of type bigint, not "7"'),
        ({"sequence": 7.0}, "field `sequence` is of type bigint, not 7.0"),
        ({"sequence": True}, "field `sequence` is of type bigint, not true"),
        ({"sequence": 2**63}, "field `sequence` is of type bigint"),
        ({"api_version": 2**31}, "field `api_version` is of type int"),
        ({"ip": 7}, "field `ip` is of type string, not 7"),
        ({"exempt": 1}, "field `exempt` is of type boolean, not 1"),
        ({"sample": "all"}, "field `sample` is of type double"),
        ({"io_ns": -1}, "field `io_ns` is negative: -1"),
        ({"request": {"user": "a"}}, "field `request.client_id` is missing"),
        ({"request": 7}, "field `request` is of type struct, not 7"),
        ({"request": {"colour": "red"}}, "version 1 has no field `request.colour`"),
        ({"colour": "red"}, "version 1 has no field `colour`"),
    ],
)
def test_invalid_field_reports_reason(change: dict[str, object], words: str) -> None:
    assert words in reason(written({**request(), **change}))


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (None, "no value"),
        (b"", "not JSON"),
        (b"hello", "not JSON"),
        (b"[1]", "not a JSON object but [1]"),
        (b'{"version":1}{"version":1}', "not JSON: Extra data"),
        (b'{"version":1,"version":1}', "`version` is given twice"),
        (b'{"version":NaN}', "NaN is not a number"),
        (b'{"user":"\xff"}', "not UTF-8: invalid start byte at byte 9"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_non_event_reports_reason(raw: bytes | None, words: str) -> None:
    assert words in reason(raw)


def test_half_a_surrogate_pair_is_no_text() -> None:
    raw = written({**request(), "ip": "x"}).replace(b'"x"', b'"\\ud800"')
    assert "field `ip` is of type string" in reason(raw)


def test_value_beyond_double_range_is_none() -> None:
    raw = written({**request(), "sample": 0.5}).replace(b"0.5", b"1e999", 1)
    assert "field `sample` is of type double" in reason(raw)


def test_reason_of_long_event_is_bounded() -> None:
    assert len(reason(written({**request(), "kind": "x" * 10_000}))) == REASON_MAX


def test_negative_error_code_is_accepted() -> None:
    assert parse_event(written({**request(), "error_code": -1}))["error_code"] == -1


def cell(field: ActivityField) -> st.SearchStrategy[Any]:
    """Values of a column, valid and not."""
    kinds: dict[ActivityType, st.SearchStrategy[Any]] = {
        ActivityType.INT: st.integers(-2, 2),
        ActivityType.LONG: st.integers(-2, 2),
        ActivityType.DOUBLE: st.sampled_from([0.0, 1.0, -1.0, float("inf"), float("nan")]),
        ActivityType.TEXT: st.sampled_from(["", "request", "connection", "dropped"]),
        ActivityType.FLAG: st.booleans(),
    }
    return st.none() | kinds[field.type]


GOOD_ROWS = table_of(
    [written(event(number, random.Random(number))) for number in range(12)]
).to_pylist()
CHANGES = st.dictionaries(st.sampled_from(list(COLUMNS)), st.none(), max_size=3).flatmap(
    lambda names: st.fixed_dictionaries({name: cell(COLUMNS[name]) for name in names})
)


@settings(deadline=None, max_examples=300)
@given(st.lists(st.tuples(st.sampled_from(GOOD_ROWS), CHANGES), min_size=1, max_size=8))
def test_malformed_rows_are_those_whose_event_is_rejected(
    made: list[tuple[dict[str, Any], dict[str, Any]]],
) -> None:
    rows = [{**row, **change} for row, change in made]
    wanted = []
    for number, row in enumerate(rows):
        try:
            check_event(event_of(row))
        except MalformedEvent:
            wanted.append(number)
            assert why_malformed(event_of(row))
    table = pa.Table.from_pylist(rows, SCHEMA)
    assert malformed_rows(table).tolist() == wanted


def test_reason_of_valid_event_is_an_error() -> None:
    with pytest.raises(ValueError, match="not malformed"):
        why_malformed(dict(GOOD))
