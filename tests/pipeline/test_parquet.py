from __future__ import annotations

import io
import random
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from minibroker.lab.activity.arrow_format import SCHEMA
from minibroker.lab.activity.schema import FIELDS
from minibroker.pipeline import parquet, schemas
from minibroker.pipeline.decoding import OBJECT_SCHEMA
from minibroker.pipeline.events import parse_event
from minibroker.pipeline.parquet import events_file, faults_file, nested
from tests.pipeline.random_events import event, events, table_of, written

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def wanted_of(raws: list[bytes]) -> pa.Table:
    return pa.Table.from_pylist([parse_event(raw) for raw in raws], OBJECT_SCHEMA)


def read(content: bytes) -> pa.Table:
    return pq.read_table(io.BytesIO(content))


def test_columns_match_the_table() -> None:
    found = nested(SCHEMA.empty_table()).schema.names
    assert found == schemas.ACTIVITY.fieldNames() == [field.name for field in FIELDS]


def test_written_file_is_read_equally_by_all_readers(spark: SparkSession, tmp_path: Path) -> None:
    raws = events(400, 1)
    content = events_file(table_of(raws))
    wanted = wanted_of(raws)
    assert read(content).equals(wanted)
    file = tmp_path / "one.parquet"
    file.write_bytes(content)
    rows = spark.read.schema(schemas.ACTIVITY).parquet(str(file)).collect()
    assert [row.asDict(recursive=True) for row in rows] == wanted.to_pylist()
    by_duckdb = duckdb.execute(f"select * from '{file}'").fetchall()
    assert [
        dict(zip(OBJECT_SCHEMA.names, row, strict=True)) for row in by_duckdb
    ] == wanted.to_pylist()


def metadata(content: bytes) -> pq.FileMetaData:
    return pq.read_metadata(io.BytesIO(content))


def test_statistics_are_written_for_filter_columns_only() -> None:
    group = metadata(events_file(table_of(events(50, 2)))).row_group(0)
    found = {
        group.column(at).path_in_schema: group.column(at).statistics
        for at in range(group.num_columns)
        if group.column(at).is_stats_set
    }
    assert set(found) == {"version", "broker", "sequence", "time_us"}
    assert (found["sequence"].min, found["sequence"].max) == (0, 49)


def test_columns_are_encoded_by_their_type() -> None:
    group = metadata(events_file(table_of(events(50, 2)))).row_group(0)
    columns = [group.column(at) for at in range(group.num_columns)]
    found = {column.path_in_schema: set(column.encodings) for column in columns}
    for name in ("time_us", "total_ns", "request.clock_ms"):
        assert "DELTA_BINARY_PACKED" in found[name]
    for name in ("user", "ip", "request.client_id"):
        assert "RLE_DICTIONARY" in found[name]
    assert {column.compression for column in columns} == {"LZ4"}


def test_faults_are_written_compressed() -> None:
    table = pa.table({"reason": ["a", None], "raw": pa.array([b"x" * 999, None], pa.binary())})
    content = faults_file(table)
    assert read(content).equals(table)
    assert len(content) < 999


def test_row_groups_have_bounded_row_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(parquet._OF_EVENTS, "row_group_size", 64)
    raws = events(150, 4)
    content = events_file(table_of(raws))
    found = metadata(content)
    assert [found.row_group(at).num_rows for at in range(found.num_row_groups)] == [64, 64, 22]
    assert read(content).equals(wanted_of(raws))


def test_text_of_any_length_is_written() -> None:
    chance = random.Random(4)
    made = next(e for e in iter(lambda: event(1, chance), None) if e["kind"] == "request")
    long = "x" * 5_000_000
    table = table_of([written({**made, "ip": long}), written({**made, "ip": "y"})])
    assert read(events_file(table))["ip"].to_pylist() == [long, "y"]


def test_large_dictionary_is_written_without_unused_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(5)
    made: list[dict[str, Any]] = []
    while len(made) < 200:
        one = event(len(made), chance)
        if one["kind"] == "request":
            made.append({**one, "client_id": f"a rather long client-id {len(made)}"})
    table = table_of([written(each) for each in made])
    whole = events_file(table.slice(10, 20))
    monkeypatch.setattr(parquet, "DICTIONARY_MAX", 50)
    content = events_file(table.slice(10, 20))
    assert read(content).equals(wanted_of([written(each) for each in made[10:30]]))
    assert len(content) < len(whole)


def test_nulls_stay_null_without_unused_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "DICTIONARY_MAX", 0)
    raws = events(100, 6)
    assert read(events_file(table_of(raws))).equals(wanted_of(raws))
