from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minibroker.activity.schema import (
    CHECK_FIELDS,
    FIELDS,
    ActivityField,
    ActivityKind,
    ActivityType,
)
from minibroker.pipeline import parquet, schemas
from minibroker.pipeline.columns import EventRun
from minibroker.pipeline.events import INT_MAX, LONG_MAX, SIGNED, needed, parse_event
from minibroker.pipeline.parquet import ACTIVITY, Encoder, file_bytes
from tests.pipeline.made import events, run_of, written

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def file_of(run: EventRun) -> bytes:
    return Encoder().file(run, np.arange(run.count))


def test_the_columns_are_those_of_the_table() -> None:
    assert ACTIVITY.names == schemas.ACTIVITY.fieldNames() == [field.name for field in FIELDS]


def test_written_file_is_read_equally_by_all_readers(spark: SparkSession, tmp_path: Path) -> None:
    raws = [raw for raw in events(400, 1) if raw.isascii()]
    content = file_of(run_of(list(raws))[0])
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


def test_statistics_are_written_for_filter_columns_only() -> None:
    content = file_of(run_of(list(events(50, 2)))[0])
    group = pq.read_metadata(io.BytesIO(content)).row_group(0)
    told = {
        group.column(at).path_in_schema: group.column(at).statistics
        for at in range(group.num_columns)
        if group.column(at).is_stats_set
    }
    assert set(told) == {"version", "broker", "sequence", "time_us"}
    assert (told["sequence"].min, told["sequence"].max) == (0, 49)


def test_incompressible_column_is_stored_uncompressed() -> None:
    content = file_of(run_of(list(events(50, 2)))[0])
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


def test_files_of_a_run_are_made_in_the_same_memory() -> None:
    raws = [raw for raw in events(300, 3) if raw.isascii()]
    run, _ = run_of(list(raws))
    encoder = Encoder()
    wanted = pa.Table.from_pylist([parse_event(raw) for raw in raws], ACTIVITY)
    for rows in (range(5, 2, -1), range(40), range(30, 31), range(len(raws))):
        found = encoder.file(run, np.array(rows, np.int64))
        assert pq.read_table(io.BytesIO(found)).equals(wanted.take(list(rows)))


def test_row_groups_have_bounded_row_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "GROUP_ROWS", 64)
    raws = [raw for raw in events(900, 4) if raw.isascii()][:150]
    content = file_of(run_of(list(raws))[0])
    told = pq.read_metadata(io.BytesIO(content))
    assert [told.row_group(at).num_rows for at in range(told.num_row_groups)] == [64, 64, 22]
    wanted = pa.Table.from_pylist([parse_event(raw) for raw in raws], ACTIVITY)
    assert pq.read_table(io.BytesIO(content)).equals(wanted)
    for at in range(3):
        told_of = told.row_group(at).column(ACTIVITY.names.index("sequence")).statistics
        sequences = wanted["sequence"].to_pylist()[64 * at : 64 * at + 64]
        assert (told_of.min, told_of.max) == (sequences[0], sequences[-1])


def test_a_text_may_be_as_long_as_it_is() -> None:
    made = json.loads(next(raw for raw in events(50, 4) if b'"ip"' in raw))
    long = "x" * 5_000_000
    run, faults = run_of([written({**made, "ip": long}), written({**made, "ip": "y"})])
    assert not faults
    assert pq.read_table(io.BytesIO(file_of(run)))["ip"].to_pylist() == [long, "y"]


def whole(field: ActivityField) -> st.SearchStrategy[int]:
    most = INT_MAX if field.type is ActivityType.INT else LONG_MAX
    return st.integers(-most - 1 if field.name in SIGNED else 0, most)


def value(field: ActivityField) -> st.SearchStrategy[Any]:
    if field.type is ActivityType.CHECK:
        return st.fixed_dictionaries(
            {part.name: value(part) for part in CHECK_FIELDS if not part.may_lack},
            optional={part.name: value(part) for part in CHECK_FIELDS if part.may_lack},
        )
    kinds: dict[ActivityType, st.SearchStrategy[Any]] = {
        ActivityType.INT: whole(field),
        ActivityType.LONG: whole(field),
        ActivityType.DOUBLE: st.floats(0, allow_infinity=False),
        ActivityType.TEXT: st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
        ActivityType.FLAG: st.booleans(),
    }
    return kinds[field.type]


def event(kind: ActivityKind) -> st.SearchStrategy[dict[str, Any]]:
    fields = {f.name: value(f) for f in FIELDS if kind in f.kinds}
    fields |= {"version": st.just(1), "kind": st.just(str(kind))}
    lacking = [f.name for f in FIELDS if kind in f.kinds and not needed(f, kind)]
    return st.fixed_dictionaries(
        {name: each for name, each in fields.items() if name not in lacking},
        optional={name: fields[name] for name in lacking},
    )


@settings(deadline=None)
@given(st.lists(st.sampled_from(ActivityKind).flatmap(event), min_size=1), st.integers(1, 40))
def test_every_event_is_read_as_it_was(made: list[dict[str, Any]], times: int) -> None:
    raws: list[bytes | None] = [
        written({**each, "sequence": at}) for at, each in enumerate(made * times)
    ]
    run, faults = run_of(raws)
    assert not faults
    wanted = pa.Table.from_pylist([parse_event(raw) for raw in raws], ACTIVITY)
    rows = np.argsort(run.keys.sequences)  # Those that are not plain come last.
    content = Encoder().file(run, rows)
    assert pq.read_table(io.BytesIO(content)).equals(wanted)
