from __future__ import annotations

import json
import random

import numpy as np

from minibroker.pipeline.arranging import Arranged, arrange
from minibroker.pipeline.columns import EventRun
from minibroker.pipeline.layout import bucket_of
from minibroker.pipeline.sequence_spans import merge_spans
from tests.pipeline.made import event, events, run_of, table_of_run, written


def arranged(values: list[bytes]) -> tuple[EventRun, Arranged]:
    run, faults = run_of(list(values))
    assert not faults
    return run, arrange(run)


def test_every_event_is_at_its_place_in_order() -> None:
    raws = random.Random(1).sample(events(300, 1), 300)
    run, found = arranged(raws)
    seen = 0
    for place, at in found.places.items():
        rows = table_of_run(run, at).to_pylist()
        seen += len(rows)
        for row in rows:
            hour = str(np.datetime64(row["time_us"], "us"))[:13].replace("T", "-")
            of_connection = row["kind"] == "connection"
            who = (row["ip"],) if of_connection else (row["user"], row["client_id"])
            assert place == f"{hour}.{bucket_of(*who):02d}"
        keys = [
            (row["user"] is not None, row["user"] or "", row["client_id"] is not None,
             row["client_id"] or "", row["time_us"], row["sequence"]) for row in rows
        ]  # fmt: skip
        assert keys == sorted(keys)
    assert seen == 300
    assert merge_spans(found.spans).tolist() == [[1, 0, 299]]


def test_of_one_time_the_sequence_decides_and_then_the_broker() -> None:
    chance = random.Random(2)
    made = event(1, chance)
    while made["kind"] != "dropped":
        made = event(1, chance)
    keys = [(sequence, broker) for sequence in range(4) for broker in range(3)]
    mixed = random.Random(3).sample(keys, len(keys))
    run, found = arranged([written({**made, "sequence": s, "broker": b}) for s, b in mixed])
    ((_, rows),) = found.places.items()
    table = table_of_run(run, rows)
    pairs = zip(table["sequence"].to_pylist(), table["broker"].to_pylist(), strict=True)
    assert list(pairs) == keys


def test_duplicate_events_are_kept_once() -> None:
    raws = events(200, 4)
    run, found = arranged([*raws[:150], *raws])
    rows = np.concatenate(list(found.places.values()))
    assert sorted(table_of_run(run, rows)["sequence"].to_pylist()) == list(range(200))
    assert merge_spans(found.spans).tolist() == [[1, 0, 199]]


def test_a_time_that_is_nonsense_has_a_place_too() -> None:
    raw = json.loads(events(1, 3)[0])
    _, found = arranged([json.dumps({**raw, "time_us": 2**63 - 1}).encode()])
    ((place, rows),) = found.places.items()
    assert (place[:13], len(rows)) == ("294247-01-10-", 1)


def test_no_events_yield_no_places() -> None:
    assert arranged([])[1].places == {}
