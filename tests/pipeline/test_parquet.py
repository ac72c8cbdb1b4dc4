from __future__ import annotations

import io
from typing import TYPE_CHECKING

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from minibroker.activity.schema import FIELDS
from minibroker.pipeline import schemas
from minibroker.pipeline.events import parse_event
from minibroker.pipeline.parquet import ACTIVITY, Tables, file_bytes
from minibroker.pipeline.texts import texts_of
from tests.pipeline.made import events, run_of, table_of_run

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(180)


def test_the_columns_are_those_of_the_table() -> None:
    assert ACTIVITY.names == schemas.ACTIVITY.fieldNames() == [field.name for field in FIELDS]


def test_what_is_written_is_read_alike_by_all(spark: SparkSession, tmp_path: Path) -> None:
    raws = [raw for raw in events(400, 1) if raw.isascii()]
    content = file_bytes(table_of_run(run_of(list(raws))[0]))
    found = pq.read_table(io.BytesIO(content))
    assert found.schema.equals(ACTIVITY)
    wanted = pa.Table.from_pylist([parse_event(raw) for raw in raws], ACTIVITY)
    assert found.equals(wanted)
    file = tmp_path / "one.parquet"
    file.write_bytes(content)
    rows = spark.read.schema(schemas.ACTIVITY).parquet(str(file)).collect()
    assert [row.asDict(recursive=True) for row in rows] == wanted.to_pylist()
    by_duckdb = duckdb.execute(f"select * from '{file}'").fetchall()
    assert [dict(zip(ACTIVITY.names, row, strict=True)) for row in by_duckdb] == wanted.to_pylist()


def test_only_what_readers_ask_for_has_its_ends_written() -> None:
    content = file_bytes(table_of_run(run_of(list(events(50, 2)))[0]))
    group = pq.read_metadata(io.BytesIO(content)).row_group(0)
    told = {
        group.column(at).path_in_schema: group.column(at).statistics
        for at in range(group.num_columns)
        if group.column(at).is_stats_set
    }
    assert set(told) == {"version", "broker", "sequence", "time_us"}
    assert (told["sequence"].min, told["sequence"].max) == (0, 49)


def test_what_gets_no_smaller_is_not_compressed() -> None:
    content = file_bytes(table_of_run(run_of(list(events(50, 2)))[0]))
    group = pq.read_metadata(io.BytesIO(content)).row_group(0)
    columns = [group.column(at) for at in range(group.num_columns)]
    found = {column.path_in_schema: column.compression for column in columns}
    as_it_is = {name for name, codec in found.items() if codec == "UNCOMPRESSED"}
    assert {"time_us", "total_ns", "request.clock_ms"} <= as_it_is
    assert not as_it_is & {"connection", "api_key", "user", "request.rate"}


def test_other_tables_are_written_too() -> None:
    table = pa.table({"reason": ["a", None], "raw": pa.array([b"x" * 999, None], pa.binary())})
    content = file_bytes(table)
    assert pq.read_table(io.BytesIO(content)).equals(table)
    assert len(content) < 999


def test_tables_of_a_run_are_made_in_the_same_memory() -> None:
    raws = [raw for raw in events(300, 3) if raw.isascii()]
    run, _ = run_of(list(raws))
    tables, texts = Tables(), texts_of(run.texts)
    wanted = pa.Table.from_pylist([parse_event(raw) for raw in raws], ACTIVITY)
    for rows in (range(5, 2, -1), range(40), range(30, 31), range(len(raws))):
        found = tables.table(run, np.array(rows, np.int64), texts)
        assert pq.read_table(io.BytesIO(file_bytes(found))).equals(wanted.take(list(rows)))
