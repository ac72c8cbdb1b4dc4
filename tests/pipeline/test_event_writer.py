from __future__ import annotations

import io
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from minibroker.pipeline import event_writer
from minibroker.pipeline.errors import BadInput
from minibroker.pipeline.event_writer import FOOTER, EventWriter, write_events
from minibroker.pipeline.layout import COUNTED, QUARANTINED
from tests.pipeline.random_events import arrow_value, event, events, written


def batch(values: list[bytes | None]) -> pa.RecordBatch:
    count = len(values)
    return pa.RecordBatch.from_pydict(
        {
            "topic": ["t"] * count,
            "partition": pa.array([3] * count, pa.int32()),
            "offset": list(range(count)),
            "value": pa.array(values, pa.binary()),
        }
    )


def read(rows: list[pa.RecordBatch]) -> tuple[dict[str, pa.Table], dict[str, Any]]:
    found = {row["place"]: row["content"] for made in rows for row in made.to_pylist()}
    assert len(found) == sum(made.num_rows for made in rows), "two files under one name"
    counted = json.loads(found.pop(COUNTED))
    return {
        place: pq.read_table(io.BytesIO(content + FOOTER)) for place, content in found.items()
    }, counted


def files(*batches: pa.RecordBatch) -> tuple[dict[str, pa.Table], dict[str, Any]]:
    return read(list(write_events("host:9092", 99, None)(iter(batches))))


def sequences(found: dict[str, pa.Table]) -> list[int]:
    return sorted(number for table in found.values() for number in table["sequence"].to_pylist())


def test_all_batches_of_a_place_become_one_file() -> None:
    found, counted = files(batch(list(events(100, 1))), batch(list(events(100, 2, start=100))))
    assert (counted["records"], counted["events"], counted["malformed"]) == (200, 200, 0)
    assert len({place.rpartition(".")[0] for place in found}) == len(found)
    assert sequences(found) == list(range(200))
    spans = counted["spans"]["1"]
    assert sum(last - first + 1 for first, last in zip(spans[::2], spans[1::2], strict=True)) == 200


def test_malformed_record_is_quarantined_with_reason() -> None:
    good = events(3, 1)
    found, counted = files(batch([good[0], b"junk", None, good[1], good[2]]))
    ((name, table),) = ((k, v) for k, v in found.items() if k.startswith(QUARANTINED))
    aside = table.to_pylist()
    assert sequences({k: v for k, v in found.items() if k != name}) == [0, 1, 2]
    assert counted["malformed"] == 2
    assert {(row["offset"], row["raw"], row["reason"].split(":")[0]) for row in aside} == {
        (1, b"junk", "not JSON"),
        (2, None, "it has no value"),
    }
    assert {(row["source"], row["topic"], row["partition"], row["found_ms"]) for row in aside} == {
        ("host:9092", "t", 3, 99)
    }


def test_damaged_batch_counts_as_malformed_record() -> None:
    writer = EventWriter("dir", 7, None)
    rows = [*writer.add_damaged("torn", ("t", 1, 5), b"raw"), *writer.finish()]
    found, counted = read(rows)
    ((row,),) = (table.to_pylist() for table in found.values())
    assert (row["reason"], row["offset"], row["raw"]) == ("torn", 5, b"raw")
    assert (counted["records"], counted["malformed"]) == (1, 1)


def test_more_than_there_is_room_for_is_filed_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_writer, "ROWS_MAX", 64)
    made = events(200, 3)
    found, counted = files(*(batch(list(made[at : at + 50])) for at in range(0, 200, 50)))
    assert counted["events"] == 200
    assert sequences(found) == list(range(200))


def test_many_malformed_events_are_quarantined_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_writer, "FAULTS_MAX", 10)
    found, counted = files(batch([b"junk"] * 25))
    assert [table.num_rows for table in found.values()] == [10, 10, 5]
    assert counted["malformed"] == 25


def test_task_writes_local_files_without_spark(tmp_path: Path) -> None:
    made = batch([*events(100, 1), b"junk"])
    wanted, counted = files(made)
    rows = [row for one in write_events("host:9092", 99, str(tmp_path))(iter([made]))
            for row in one.to_pylist()]  # fmt: skip
    assert json.loads(rows.pop()["content"]) == counted
    assert {row["place"]: pq.read_table(
        tmp_path / f"place={row['place']}" / row["file"], partitioning=None
    ) for row in rows} == wanted  # fmt: skip
    assert {row["content"] for row in rows} == {None}
    again = [row["file"] for one in write_events("host:9092", 99, str(tmp_path))(iter([made]))
             for row in one.to_pylist()]  # fmt: skip
    assert not {row["file"] for row in rows} & set(again), "two attempts at a task wrote one file"


def test_table_missing_on_worker_is_reported(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="gone does not exist on this worker"):
        EventWriter("dir", 7, str(tmp_path / "gone"))


def test_empty_batch_writes_no_file() -> None:
    nothing = {"records": 0, "events": 0, "malformed": 0, "spans": {}}
    assert files(batch([])) == files() == ({}, nothing)


def test_events_beyond_size_limit_go_to_other_files(monkeypatch: pytest.MonkeyPatch) -> None:
    made = events(100, 3)
    batches = batch(list(made[:50])), batch(list(made[50:]))
    together, _ = files(*batches)
    monkeypatch.setattr(event_writer, "RUN_BYTES_MAX", sum(map(len, made)) - 1)
    apart, _ = files(*batches)
    assert sequences(apart) == sequences(together) == list(range(100))
    assert len(apart) > len(together)


def many(count: int, seed: int) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    return [event(number, chance) for number in range(count)]


def test_events_of_both_formats_are_filed_alike() -> None:
    made = many(300, 7)
    as_json, counted = files(batch([written(each) for each in made]))
    arrow = [arrow_value(made[at : at + 100]) for at in range(0, 300, 100)]
    assert files(batch(list(arrow))) == (as_json, counted)


def test_malformed_event_of_a_batch_is_quarantined_alone() -> None:
    made = many(40, 8)
    bad = {**next(each for each in made if each["kind"] == "request"), "queue_ns": -5}
    value = arrow_value([*made[:10], {**bad, "sequence": 99}, *made[10:25]])
    found, counted = files(batch([arrow_value(made[26:]), value, b"\xff\xff\xff\xff"]))
    assert (counted["records"], counted["events"], counted["malformed"]) == (41, 39, 2)
    aside = [row for place, table in found.items() if place.startswith(QUARANTINED)
             for row in table.to_pylist()]  # fmt: skip
    by_offset = {row["offset"]: row for row in aside}
    assert by_offset[1]["reason"] == "field `queue_ns` is negative: -5"
    assert json.loads(by_offset[1]["raw"])["sequence"] == 99
    assert by_offset[2]["raw"] == b"\xff\xff\xff\xff"
    assert by_offset[2]["reason"].startswith("not an Arrow IPC stream: ")
