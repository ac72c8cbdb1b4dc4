from __future__ import annotations

import random

import numpy as np
import pytest

from minibroker.pipeline import columns, parsing
from minibroker.pipeline.simd_words import SLACK
from tests.pipeline.made import event, run_of, table_of_run, written


def taken(raw: bytes) -> bool:
    run = columns.EventRun(1)
    data = np.frombuffer(raw + bytes(SLACK), np.uint8)
    starts, ends = np.zeros(1, np.int64), np.array([len(raw)], np.int64)
    rows, _ = parsing.read_events(
        data, starts, ends, 0, columns._SCHEMA.plan, run._follow, run._recent, run.values,
        run.texts, run._left,
    )  # fmt: skip
    return bool(rows)


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
    assert table_of_run(run_of([written(made)])[0])["ip"].to_pylist() == [odd]


def test_truncated_event_is_not_parsed() -> None:
    raw = written(event(1, random.Random(11)))
    assert not any(taken(raw[:end]) for end in range(len(raw)))


def test_bytes_after_event_end_are_not_parsed() -> None:
    raw = written({**event(1, random.Random(11)), "sequence": 12})
    at = raw.index(b'"sequence":12') + len(b'"sequence":12')
    run = columns.EventRun(2)
    data = np.frombuffer(raw + bytes(SLACK), np.uint8)
    starts, ends = np.zeros(2, np.int64), np.array([at, at - 1], np.int64)
    rows, others = parsing.read_events(
        data, starts, ends, 0, columns._SCHEMA.plan, run._follow, run._recent, run.values,
        run.texts, np.zeros(2, np.int64),
    )  # fmt: skip
    assert (rows, others) == (0, 2)


def test_the_order_of_keys_may_change_from_event_to_event() -> None:
    chance = random.Random(12)
    raws: list[bytes | None] = []
    for at in range(60):
        pairs = list(event(at, chance).items())
        if at % 3:
            pairs.reverse()
        raws.append(written(dict(pairs)))
    run, faults = run_of(raws)
    assert not faults
    assert sorted(table_of_run(run)["sequence"].to_pylist()) == list(range(60))


def test_a_text_is_taken_for_the_one_before_only_if_it_is_that_one() -> None:
    made = event(1, random.Random(9)) | {"kind": "connection", "happened": "closed"}
    made |= {"sample": 1.0, "listener": "L", "connection": 3}
    ips = ["abc", "abc", "ab", "abcd", "", "", "abc", "a" * 8, "a" * 9, "a" * 9, "a" * 8, "ab\\",
           "ab\\", 'ab"', "ab"]  # fmt: skip
    run, faults = run_of([written({**made, "ip": ip, "sequence": at}) for at, ip in enumerate(ips)])
    assert not faults
    table = table_of_run(run).sort_by("sequence")
    assert table["ip"].to_pylist() == ips
    raw = written({**made, "ip": "ab"})
    torn = raw.replace(b'"ip":"ab"', b'"ip":"ab')
    assert sorted(run_of([raw, torn, raw])[1]) == [1]


def test_repeated_text_resolves_to_same_named_field() -> None:
    made = event(1, random.Random(10))
    while made["kind"] != "request":
        made = event(1, random.Random(made["time_us"]))
    check = {"user": "u", "client_id": "c", "rate": 1.0, "throttle_ms": 0, "clock_ms": 7}
    made |= {"user": "u", "client_id": "c", "produce": check, "fetch": {**check, "user": "c"}}
    row = table_of_run(run_of([written(made)])[0]).to_pylist()[0]
    assert (row["produce"]["user"], row["produce"]["client_id"]) == ("u", "c")
    assert (row["fetch"]["user"], row["fetch"]["client_id"]) == ("c", "c")
