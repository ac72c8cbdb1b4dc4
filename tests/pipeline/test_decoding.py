"""Values of both formats become the same events, and anything else a fault with a reason."""

from __future__ import annotations

import json
import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from minibroker.lab.activity.arrow_format import SCHEMA, event_of
from minibroker.pipeline import decoding
from minibroker.pipeline.decoding import Batch, MalformedValue, decode, valid_events, values_of
from minibroker.pipeline.events import MalformedEvent, parse_event
from tests.pipeline.random_events import arrow_value, event, events, written

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
