"""Values of both formats become the same events, and anything else a fault with a reason."""

from __future__ import annotations

import json
import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from minibroker.lab.activity.arrow_format import COLUMNS, SCHEMA, event_of
from minibroker.lab.activity.events import ActivityField, ActivityType
from minibroker.pipeline import decoding
from minibroker.pipeline.decoding import (
    REASON_MAX,
    Batch,
    MalformedEvent,
    MalformedValue,
    check_event,
    decode,
    malformed_rows,
    parse_event,
    valid_events,
    values_of,
    why_malformed,
)
from tests.pipeline.random_events import arrow_value, event, events, table_of, written

# Validity of an event ----------------------------------------------------------------------------

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


# Values of records -------------------------------------------------------------------------------

Found = dict[int, list[dict[str, Any]] | str]


def decoded(values: list[bytes | None]) -> Found:
    """The events of each value, or the reason of its fault."""
    found: Found = {}
    for each in decode(values):
        if isinstance(each, MalformedValue):
            assert each.number not in found
            assert each.raw == values[each.number]
            found[each.number] = each.reason
            continue
        for number, row in zip(each.numbers.tolist(), each.events.to_pylist(), strict=True):
            of_value = found.setdefault(number, [])
            assert isinstance(of_value, list)
            of_value.append(event_of(row))
    return found


def many(count: int, seed: int = 1) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    return [event(number, chance) for number in range(count)]


def test_values_of_both_formats_yield_their_events() -> None:
    made = many(60)
    values = [written(made[0]), arrow_value(made[1:30]), arrow_value(made[30:58])]
    values += [written(each) for each in made[58:]]
    found = decoded(list(values))
    assert found == {0: made[:1], 1: made[1:30], 2: made[30:58], 3: made[58:59], 4: made[59:]}


def test_malformed_value_does_not_affect_others() -> None:
    made = many(3)
    broken = arrow_value(made)[:-9]
    found = decoded([written(made[0]), b"junk", written(made[1]), None, broken, written(made[2])])
    assert (found[0], found[2], found[5]) == (made[:1], made[1:2], made[2:])
    assert str(found[1]).startswith("not JSON: ")
    assert found[3] == "it has no value"
    assert str(found[4]).startswith("not an Arrow IPC stream: ")


def test_many_objects_are_parsed_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "OBJECTS_MAX", 7)
    values: list[bytes | None] = list(events(50, 2))
    sizes = [len(each.events) for each in decode(values) if isinstance(each, Batch)]
    assert sizes == [7] * 7 + [1]


def alternatives(spelled: str) -> list[str]:
    return [
        spelled.replace('"io_ns":', '"io_ns": ', 1),
        spelled.replace("{", "{ ", 1),
        spelled + " ",
        spelled.replace('"version":1', '"version":1.0', 1),
        spelled.replace('"version":1', '"version":1e0', 1),
        spelled.replace('"version":1', '"version":"1"', 1),
        spelled.replace('"version":1', '"version":1,"version":1', 1),
        spelled.replace('"version":1', '"version":01', 1),
        spelled.replace('"version":1', '"version":-0', 1),
        spelled[:-1] + ',"colour":1}',
        spelled[:-1] + ',"request":{}}',
        spelled[:-1] + ',"request":null}',
        spelled[:-1] + ',"dropped":18446744073709551616}',
        spelled[:-1] + ',"strict":1}',
        spelled[:-1] + ',"reason":"\\ud800"}',
        spelled[:-1] + ',"reason":"\\u00e4\\n\\"x"}',
        spelled[:-1] + ',"sample":NaN}',
        spelled[:-1] + ',"sample":1e999}',
        spelled[:-1] + ',"sample":7}',
        spelled[:-1] + ",}",
        spelled + spelled,
        spelled.replace(",", ",\n", 1),
        "[" + spelled + "]",
        "",
        "null",
        "{}",
    ]


@pytest.mark.parametrize("which", range(len(alternatives("{}"))))
def test_objects_are_accepted_as_by_parser_of_one(which: int) -> None:
    """The fast way, of many objects together, has the rules of the plain one."""
    chance = random.Random(which)
    plain = next(e for e in iter(lambda: event(5, chance), None) if e["kind"] == "connection")
    raw = alternatives(written({**plain, "reason": None, "sample": 0.5}).decode())[which].encode()
    check_alike([raw])
    others = events(3, 4, start=10)
    check_alike([others[0], raw, others[1], others[2]])


def check_alike(values: list[bytes]) -> None:
    wanted: Found = {}
    for number, value in enumerate(values):
        try:
            made = parse_event(value)
            wanted[number] = [json.loads(json.dumps(lean(made)))]
        except MalformedEvent as error:
            wanted[number] = str(error)
    assert decoded(list(values)) == wanted


def lean(made: dict[str, Any]) -> dict[str, Any]:
    """Without nulls, which columns do not tell from missing fields."""
    return {
        name: lean(value) if isinstance(value, dict) else value
        for name, value in made.items()
        if value is not None
    }


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=40) | st.sampled_from(events(5, 1)), max_size=6))
@example([b"{", b"}"])
@example([b'{"produce":', b"{}}"])
def test_any_values_are_accepted_as_by_parser_of_one(values: list[bytes]) -> None:
    check_alike([value for value in values if value[:4] != b"\xff\xff\xff\xff"])


def test_valid_events_are_those_without_the_malformed() -> None:
    made = many(20)
    bad = {**next(each for each in made if each["kind"] == "request"), "queue_ns": -1}
    table, malformed = valid_events([arrow_value([*made[:9], bad, *made[9:]]), b"junk", None])
    assert [event_of(row) for row in table.to_pylist()] == made
    assert malformed == 3
    assert valid_events([]) == (SCHEMA.empty_table(), 0)


def test_sliced_array_yields_only_its_values() -> None:
    array = pa.array([b"one", None, b"three", b"four"], pa.binary()).slice(1, 2)
    assert values_of(array) == [None, b"three"]
