"""The compiled reader compared with ``parse_event``: the same events and the same errors."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.activity.schema import FIELDS
from minibroker.pipeline.columns import TOGETHER, EventRun, Raw, bytes_in, bytes_of, pieces
from minibroker.pipeline.events import MalformedEvent, parse_event
from minibroker.pipeline.filing import raw_of
from minibroker.pipeline.simd_words import SLACK
from minibroker.pipeline.string_table import STRINGS_MAX
from tests.pipeline.made import event, run_of, table_of_run, written


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
        except MalformedEvent as error:
            faults[at] = str(error)
    run, found = run_of(raws)
    table = table_of_run(run)
    table.validate(full=True)
    assert found == faults
    rows = [without_nulls(row) for row in table.to_pylist()]

    def order(row: dict[str, Any]) -> str:
        return json.dumps(row, sort_keys=True)

    assert sorted(rows, key=order) == sorted(wanted, key=order)


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


def test_integers_beyond_double_precision_are_rounded() -> None:
    made = event(1, random.Random(8))
    for sample in (2**53 + 1, 10**30, 7):
        compare([written({**made, "sample": sample})])


def test_figures_are_those_that_python_reads() -> None:
    chance = random.Random(8)
    spellings = ["0.0", "1e5", "1E-7", "12.5e+3", "0.00012345678901234567", "123456789012345678.5"]
    spellings += [
        "1.7976931348623157e308",
        "5e-324",
        "0.1e-400",
        "99999999999999999999999",
        "1e999",
    ]
    spellings += [repr(chance.random() * 10.0 ** chance.randrange(-20, 20)) for _ in range(200)]
    raw = written({**event(2, chance), "sample": -7.25})
    while b'"sample":-7.25' not in raw:
        raw = written({**event(2, chance), "sample": -7.25})
    compare([raw.replace(b"-7.25", spelling.encode()) for spelling in spellings])


def test_nothing_and_no_value_at_all() -> None:
    compare([])
    compare([None, b"", b"{", b"{}", b"}"])


def test_cleared_run_keeps_no_earlier_events() -> None:
    chance = random.Random(7)
    run = EventRun(10)
    for start in (0, 10):
        run.clear()
        raws = [written(event(start + at, chance)) for at in range(10)]
        assert not run.read(raw_of(pa.array(raws, pa.binary())))
        assert table_of_run(run)["sequence"].to_pylist() == [
            parse_event(raw)["sequence"] for raw in sorted(raws, key=bytes.isascii, reverse=True)
        ]


def test_after_it_was_cleared_no_text_is_taken_for_one_of_before() -> None:
    run = EventRun(20)
    made = event(1, random.Random(9)) | {"kind": "connection", "happened": "closed"}
    made |= {"sample": 1.0, "listener": "L", "connection": 3}
    for ips in ([*"nopqr"], ["", *"bcdefghijklm"]):
        run.clear()
        raws = [written({**made, "ip": ip}) for ip in ips]
        assert not run.read(raw_of(pa.array(raws, pa.binary())))
        assert table_of_run(run)["ip"].to_pylist() == ips


def test_bytes_of_events_are_from_the_first_to_the_last() -> None:
    whole = raw_of(pa.array([b"abc", None, b"defg", b"", None], pa.binary()))
    for begin in range(6):
        for end in range(begin, 6):
            part = whole._replace(starts=whole.starts[begin:end], sizes=whole.sizes[begin:end])
            there = int(np.maximum(part.sizes, 0).sum())
            assert bytes_in(part) == there


def test_there_is_room_for_so_many_rows_and_texts() -> None:
    run = EventRun(10)
    assert run.has_room(10, 1000)
    assert not run.has_room(11, 1000)
    assert not run.has_room(1, 1 << 40)
    run.clear(1 << 26)
    assert run.has_room(1, 1 << 26)
    many = EventRun(STRINGS_MAX)
    assert not many.has_room(STRINGS_MAX // 2, 1)


def test_empty_run_has_room_for_as_many_events_as_are_read_together() -> None:
    run = EventRun()
    events = pa.array([b'{"version":1}'] * TOGETHER)
    raw = raw_of(events)
    assert run.has_room(TOGETHER, bytes_in(raw))
    assert len(run.read(raw)) + run.count == TOGETHER


def test_more_events_than_there_is_room_for_are_rejected() -> None:
    run = EventRun(rows=10)
    with pytest.raises(ValueError, match="no room for 11 events"):
        run.read(raw_of(pa.array([b"{}"] * 11)))
    with pytest.raises(ValueError, match=f"no room for {TOGETHER + 1} events"):
        EventRun().read(raw_of(pa.array([b"{}"] * (TOGETHER + 1))))
    raw = raw_of(pa.array([b"{}", b"{}"]))
    with pytest.raises(ValueError, match="no room for 2 events"):
        run.read(raw._replace(sizes=raw.sizes[:1]))
    assert run.count == 0


@pytest.mark.parametrize(("start", "size"), [(-1, 2), (0, 3), (1 << 40, 0), (2, 1)])
def test_events_outside_of_their_data_are_rejected(start: int, size: int) -> None:
    raw = Raw(np.zeros(2 + SLACK, np.uint8), np.array([start]), np.array([size]))
    with pytest.raises(ValueError, match="events lie from byte"):
        EventRun().read(raw)


def test_events_are_read_in_parts_that_are_together_everything() -> None:
    raw = raw_of(pa.array([b"x" * (at % 5) for at in range(10_000)], pa.binary()))
    found = [(first + at, bytes_of(part, at)) for part, first in pieces(raw)
             for at in range(len(part.sizes))]  # fmt: skip
    assert found == [(at, b"x" * (at % 5)) for at in range(10_000)]
    assert max(len(part.sizes) for part, _ in pieces(raw)) <= TOGETHER


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
