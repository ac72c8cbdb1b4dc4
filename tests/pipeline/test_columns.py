"""The compiled reader beside the plain one: the same events, the same faults."""

from __future__ import annotations

import json
import random
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from minibroker.activity.schema import FIELDS
from minibroker.pipeline import schemas
from minibroker.pipeline.columns import ACTIVITY, parse
from minibroker.pipeline.events import Malformed, parse_event
from tests.pipeline.made import event, written


def without_nulls(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: without_nulls(value) if isinstance(value, dict) else value
        for name, value in row.items()
        if value is not None
    }


def compare(raws: list[bytes | None]) -> None:
    wanted, faults = [], {}
    for at, raw in enumerate(raws):
        try:
            wanted.append(without_nulls(parse_event(raw)))
        except Malformed as error:
            faults[at] = str(error)
    parsed = parse(pa.array(raws, pa.binary()))
    parsed.table.validate(full=True)
    assert dict(parsed.faults) == faults
    rows = [without_nulls(row) for row in parsed.table.to_pylist()]

    def order(row: dict[str, Any]) -> str:
        return json.dumps(row, sort_keys=True)

    assert sorted(rows, key=order) == sorted(wanted, key=order)


def test_the_columns_are_those_of_the_table() -> None:
    assert ACTIVITY.names == schemas.ACTIVITY.fieldNames() == [field.name for field in FIELDS]


def test_whole_events_are_rows() -> None:
    chance = random.Random(5)
    compare([written(event(at, chance)) for at in range(500)])


def test_keys_come_in_any_order() -> None:
    chance = random.Random(6)
    raws: list[bytes | None] = []
    for at in range(100):
        pairs = list(event(at, chance).items())
        chance.shuffle(pairs)
        raws.append(written(dict(pairs)))
    compare(raws)


def test_whole_numbers_that_doubles_hold_not_quite_are_rounded() -> None:
    made = event(1, random.Random(8))
    for sample in (2**53 + 1, 10**30, 7):
        compare([written({**made, "sample": sample})])


def test_nothing_and_no_value_and_a_part_of_an_array() -> None:
    compare([])
    compare([None, b"", b"{", b"{}", b"}"])
    chance = random.Random(7)
    raws = pa.array([b"junk", *(written(event(at, chance)) for at in range(9))], pa.binary())
    assert sorted(parse(raws.slice(3, 4)).table["sequence"].to_pylist()) == [2, 3, 4, 5]


@st.composite
def spelled(draw: st.DrawFn) -> bytes:
    """An event with a mistake or an odd spelling, often of bytes alone."""
    made = event(draw(st.integers(0, 2**62)), random.Random(draw(st.integers(0, 99))))
    name = draw(st.sampled_from([field.name for field in FIELDS]))
    odd = st.one_of(
        st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=5),
        st.just({}), st.just([]), st.just({"user": "a", "client_id": "", "rate": -1.5e-7,
                                           "throttle_ms": 0, "clock_ms": 3}),
    )  # fmt: skip
    if draw(st.booleans()):
        made[name] = draw(odd)
    raw = json.dumps(
        made,
        ensure_ascii=draw(st.booleans()),
        separators=draw(st.sampled_from([(",", ":"), (", ", ": ")])),
    ).encode("utf-8", "surrogatepass")
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(raw)))
        raw = raw[:at] + draw(st.binary(max_size=2)) + raw[at + draw(st.integers(0, 2)) :]
    return raw


@given(st.lists(spelled(), max_size=6))
def test_both_readers_agree_on_everything(raws: list[bytes]) -> None:
    compare(list(raws))
