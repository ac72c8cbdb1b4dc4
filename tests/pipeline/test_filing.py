from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from minibroker.pipeline import filing
from minibroker.pipeline.columns import EventRun
from minibroker.pipeline.errors import BadInput
from minibroker.pipeline.filing import FOOTER, Filer, file_events, raw_of
from minibroker.pipeline.layout import COUNTED, QUARANTINED
from minibroker.pipeline.parquet import Encoder
from tests.pipeline.made import events


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
    return read(list(file_events("host:9092", 99, None)(iter(batches))))


def sequences(found: dict[str, pa.Table]) -> list[int]:
    return sorted(number for table in found.values() for number in table["sequence"].to_pylist())


def test_all_batches_of_a_place_become_one_file() -> None:
    found, counted = files(batch(list(events(100, 1))), batch(list(events(100, 2, start=100))))
    assert (counted["records"], counted["events"], counted["malformed"]) == (200, 200, 0)
    assert len({place.rpartition(".")[0] for place in found}) == len(found)
    assert sequences(found) == list(range(200))
    spans = counted["held"]["1"]
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
    filer = Filer("dir", 7, None)
    rows = [*filer.damaged("torn", ("t", 1, 5), b"raw"), *filer.end()]
    found, counted = read(rows)
    ((row,),) = (table.to_pylist() for table in found.values())
    assert (row["reason"], row["offset"], row["raw"]) == ("torn", 5, b"raw")
    assert (counted["records"], counted["malformed"]) == (1, 1)


def test_more_than_there_is_room_for_is_filed_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filing, "_spare", [(EventRun(64), Encoder())])
    made = events(200, 3)
    found, counted = files(*(batch(list(made[at : at + 50])) for at in range(0, 200, 50)))
    assert counted["events"] == 200
    assert sequences(found) == list(range(200))
    assert len(filing._spare) == 1


def test_many_that_are_malformed_go_aside_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filing, "FAULTS_MAX", 10)
    found, counted = files(batch([b"junk"] * 25))
    assert [table.num_rows for table in found.values()] == [10, 10, 5]
    assert counted["malformed"] == 25


def test_a_task_writes_files_itself_where_it_can(tmp_path: Path) -> None:
    made = batch([*events(100, 1), b"junk"])
    wanted, counted = files(made)
    rows = [row for one in file_events("host:9092", 99, str(tmp_path))(iter([made]))
            for row in one.to_pylist()]  # fmt: skip
    assert json.loads(rows.pop()["content"]) == counted
    assert {row["place"]: pq.read_table(
        tmp_path / f"place={row['place']}" / row["file"], partitioning=None
    ) for row in rows} == wanted  # fmt: skip
    assert {row["content"] for row in rows} == {None}
    again = [row["file"] for one in file_events("host:9092", 99, str(tmp_path))(iter([made]))
             for row in one.to_pylist()]  # fmt: skip
    assert not {row["file"] for row in rows} & set(again), "two attempts at a task wrote one file"


def test_table_missing_on_worker_is_reported(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="gone does not exist on this worker"):
        Filer("dir", 7, str(tmp_path / "gone"))


def test_nothing_makes_no_file() -> None:
    nothing = {"records": 0, "events": 0, "malformed": 0, "held": {}}
    assert files(batch([])) == files() == ({}, nothing)


def test_sliced_array_yields_only_its_events() -> None:
    raw = raw_of(pa.array([b"one", None, b"three", b"four"], pa.binary()).slice(1, 2))
    assert (raw.sizes.tolist(), raw.data[: raw.sizes[1]].tobytes()) == ([-1, 5], b"three")
