from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from minibroker.pipeline import columns, parsing
from minibroker.pipeline.columns import parse
from tests.pipeline.made import event, written


def taken(raw: bytes) -> bool:
    leaves = len(columns._PLAN.leaves)
    data = np.frombuffer(raw, np.uint8)
    found = np.zeros(1, np.bool_)
    places, sizes = np.zeros((leaves, 1), np.int64), np.full((leaves, 1), -1, np.int32)
    ends = np.array([0, len(raw)], np.int64)
    plan = columns._PLAN.compiled
    parsing.read_events(data, ends[:1], ends[1:], plan, places, sizes, found)
    return bool(found[0])


def test_the_plain_spelling_is_taken_at_once() -> None:
    chance = random.Random(8)
    plain = [raw for at in range(50) if (raw := written(event(at, chance))).isascii()]
    assert plain
    assert all(taken(raw) for raw in plain)


@pytest.mark.parametrize("odd", ["dörte", 'a"b', "a\\b", "tab\t"])
def test_an_odd_spelling_is_left_to_the_plain_reader_and_read(odd: str) -> None:
    made = {**event(1, random.Random(9)), "ip": odd, "kind": "connection", "happened": "closed"}
    made |= {"sample": 1.0, "listener": "L", "connection": 3}
    assert not taken(written(made))
    assert parse(pa.array([written(made)], pa.binary())).table["ip"].to_pylist() == [odd]


def test_what_is_cut_off_anywhere_is_not_taken() -> None:
    raw = written(event(1, random.Random(11)))
    assert not any(taken(raw[:end]) for end in range(len(raw)))
