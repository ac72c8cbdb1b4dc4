"""Every event of a table is scanned once, by Spark and from local files."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from minibroker.lab.activity.events import FIELDS, VERSION
from minibroker.pipeline import activity_table, quota_amounts
from minibroker.pipeline.activity_table import (
    ACTIVITY,
    ACTIVITY_TABLE,
    buckets_of,
    files_of,
    footer_of,
    freeze_loaded_objects,
    on_disk,
    read,
    read_activity,
    scan_of,
    sent_bytes,
)
from minibroker.pipeline.errors import BadInput, WrongSchema
from minibroker.pipeline.quota_amounts import Events
from tests.pipeline.sample_events import connection, fetched, frame, many, produced, table
from tests.pipeline.whatif.activity import requests_table
from tests.pipeline.whatif.oracle import Event

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Files on a disk ---------------------------------------------------------------------------------


def write(root: Path, hour: str, bucket: int, name: str, *sequences: int) -> None:
    folder = root / f"hour={hour}" / f"bucket={bucket:02}"
    folder.mkdir(parents=True, exist_ok=True)
    events = requests_table([Event(sequence, sequence) for sequence in sequences])
    pq.write_table(events, folder / f"{name}.parquet", row_group_size=2)


def sequences(root: Path, *, by_group: bool) -> list[list[list[int]]]:
    return [
        [
            part.column("sequence").to_pylist()
            for files in bucket.hours
            for part in read(files, ["sequence"], by_group=by_group)
        ]
        for bucket in buckets_of(str(root))
    ]


def test_buckets_are_read_hour_by_hour(tmp_path: Path) -> None:
    write(tmp_path, "2026-01-01-10", 1, "b", 5, 6, 7)
    write(tmp_path, "2026-01-01-09", 1, "a", 1, 2, 3)
    write(tmp_path, "2026-01-01-09", 11, "a", 4)
    assert sequences(tmp_path, by_group=False) == [[[1, 2, 3], [5, 6, 7]], [[4]]]
    assert sequences(tmp_path, by_group=True) == [[[1, 2], [3], [5, 6], [7]], [[4]]]


def test_hour_of_several_files_is_never_cut(tmp_path: Path) -> None:
    write(tmp_path, "2026-01-01-09", 0, "a", 1, 3, 5)
    write(tmp_path, "2026-01-01-09", 0, "b", 2)
    assert sequences(tmp_path, by_group=True) == [[[1, 3, 5, 2]]]


def test_buckets_of_remote_or_missing_table_are_empty(tmp_path: Path) -> None:
    write(tmp_path, "2026-01-01-09", 0, "a", 1)
    assert len(buckets_of(tmp_path.as_uri())) == 1
    assert buckets_of("hdfs://host/table") == []
    assert buckets_of(str(tmp_path / "nothing")) == []


def test_paths_are_made_absolute_for_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "table", "2026-01-01-09", 0, "a", 1)
    monkeypatch.chdir(tmp_path)
    assert buckets_of("table") == buckets_of(str(tmp_path / "table"))


@pytest.mark.parametrize("statistics", [True, False])
def test_versions_match_all_api_rows(tmp_path: Path, statistics: bool) -> None:
    files = []
    for name, versions in {"a": [1, 1], "b": [1, 2, 1], "c": [1, None]}.items():
        table = pa.table({"version": pa.array(versions, pa.int32())})
        pq.write_table(table, tmp_path / name, row_group_size=2, write_statistics=statistics)
        files.append(str(tmp_path / name))
    assert [footer_of(file).versions for file in files] == [{1}, {1, 2}, {1, None}]


def test_truncated_or_missing_file_is_reported_by_name(tmp_path: Path) -> None:
    write(tmp_path, "2026-01-01-09", 0, "a", *range(1000))
    (file,) = files_of(str(tmp_path))
    whole = Path(file).read_bytes()
    for left in (0, 3, 400, len(whole) - 1):
        Path(file).write_bytes(whole[:left])
        for look in (footer_of, lambda file: [*read([file], ["sequence"], by_group=True)]):
            with pytest.raises(BadInput, match=f"{file} cannot be read as Parquet .*; it may be"):
                look(file)
    # The pages alone: all that the footer says is still there.
    Path(file).write_bytes(whole[:4] + bytes(len(whole) // 2) + whole[4 + len(whole) // 2 :])
    for by_group in (True, False):
        with pytest.raises(BadInput, match="cannot be read as Parquet"):
            list(read([file], ["sequence"], by_group=by_group))
    Path(file).unlink()
    with pytest.raises(
        BadInput, match=r"was removed; the table was compacted in the meantime: run this"
    ):
        footer_of(file)


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("a/b", "a/b"),
        ("a#b?c", "a#b?c"),
        ("a:b", "a:b"),
        ("/a%20b", "/a%20b"),
        ("file:/a", "/a"),
        ("file:///a#1", "/a#1"),
        ("hdfs://host/a", None),
        ("s3a://bucket/a", None),
    ],
)
def test_path_is_parsed_as_in_hadoop(path: str, place: str | None) -> None:
    assert on_disk(path) == (None if place is None else Path(place))


# Scans -------------------------------------------------------------------------------------------


def seen(tables: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
    for each in tables:
        times_us = Events(each).times_us
        read = [set(quota_amounts.FIELDS) <= set(each.column_names)] * len(times_us)
        yield pa.RecordBatch.from_pydict({"time_us": times_us, "whole": read})


@pytest.mark.parametrize("suffix", ["", "/*/*/*.parquet"])
def test_each_event_is_scanned_once(
    suffix: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activity_table, "TASKS_MAX", 3)
    events = list(many(300, seed=5))
    path = f"{table(tmp_path / 'activity', events)}{suffix}"
    activity = spark.read.schema(read_activity(spark, str(tmp_path / "activity")).schema)
    frame = activity.option("basePath", str(tmp_path / "activity")).parquet(path)
    found = scan_of(frame, path)(seen, "time_us bigint, whole boolean").collect()
    assert all(row.whole for row in found)
    assert Counter(row.time_us for row in found) == Counter(each["time_us"] for each in events)


def test_loaded_objects_are_excluded_from_gc() -> None:
    before = gc.get_freeze_count()
    loaded = [[]] * 10  # type: ignore[var-annotated]
    freeze_loaded_objects()
    assert gc.get_freeze_count() > before
    assert not any(each is loaded for each in gc.get_objects())


@pytest.mark.parametrize("turn", [1, 2])
def test_frozen_objects_are_returned_at_the_end_of_a_test(turn: int) -> None:
    assert not gc.get_freeze_count(), turn
    freeze_loaded_objects()


# Validation --------------------------------------------------------------------------------------


def test_every_field_of_the_schema_is_a_column_of_its_type() -> None:
    found = [(field.name, field.dataType.typeName()) for field in ACTIVITY.fields]
    names = {"int": "integer", "bigint": "long"}
    assert found == [
        (field.name, names.get(field.type.value, field.type.value)) for field in FIELDS
    ]


def activity_at(spark: SparkSession, path: Path, *, version: int = VERSION, drop: str = "") -> str:
    row = {"version": version, "kind": "dropped", "hour": "2026-11-20-14", "bucket": 7}
    frame = spark.createDataFrame([row], ACTIVITY_TABLE)
    frame.drop(drop).write.partitionBy("hour", "bucket").parquet(str(path))
    return str(path)


@pytest.mark.usefixtures("wherever")
def test_table_round_trips_with_its_columns(spark: SparkSession, tmp_path: Path) -> None:
    frame = read_activity(spark, activity_at(spark, tmp_path / "activity"))
    # Files don't say that a column is never null.
    assert frame.schema.simpleString() == ACTIVITY_TABLE.simpleString()
    assert [(row.hour, row.bucket) for row in frame.collect()] == [("2026-11-20-14", 7)]


@pytest.mark.usefixtures("wherever")
def test_missing_column_is_named(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(WrongSchema, match=r"activity.*: column `io_ns` is missing.*ingest"):
        read_activity(spark, activity_at(spark, tmp_path / "activity", drop="io_ns"))


def test_wrong_type_is_named_in_error(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "activity")
    good = spark.read.parquet(activity_at(spark, tmp_path / "good"))
    good.withColumn("io_ns", good.io_ns.cast("string")).write.parquet(path)
    with pytest.raises(WrongSchema, match="`io_ns` is of type string, not bigint: write it"):
        read_activity(spark, path)


def test_replaced_file_is_named(spark: SparkSession, tmp_path: Path) -> None:
    """Spark itself would look at the columns of one of them."""
    path = activity_at(spark, tmp_path / "activity")
    (file,) = (tmp_path / "activity").glob("*/*/*.parquet")
    good = pq.read_table(file, partitioning=None)
    at = good.schema.get_field_index("io_ns")
    for other, problem in (
        (good.set_column(at, "io_ns", good["io_ns"].cast("string")), "is of type string, not big"),
        (good.remove_column(at), "is missing"),
    ):
        pq.write_table(other, file.with_name("z.parquet"))
        with pytest.raises(WrongSchema, match=f"z.parquet: column `io_ns` {problem}"):
            read_activity(spark, path)
    file.with_name("z.parquet").write_bytes(file.read_bytes()[:-9])
    with pytest.raises(
        BadInput, match=r"z.parquet cannot be read as Parquet .*; it may be truncated"
    ):
        read_activity(spark, path)


@pytest.fixture(params=["here", "elsewhere"])
def wherever(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table is on this machine, or only Spark knows the way."""
    if request.param == "elsewhere":
        monkeypatch.setattr(activity_table, "files_of", lambda _: [])


@pytest.mark.usefixtures("wherever")
def test_unknown_version_is_named(spark: SparkSession, tmp_path: Path) -> None:
    path = activity_at(spark, tmp_path / "activity", version=VERSION + 1)
    with pytest.raises(WrongSchema, match=f"`version` contains {VERSION + 1}, .*ingest"):
        read_activity(spark, path)


def test_no_table_is_a_sentence(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"nowhere cannot be read"):
        read_activity(spark, str(tmp_path / "nowhere"))


def test_table_without_events_suggests_ingest(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="contains no events: run `minibroker pipeline ingest`"):
        read_activity(spark, str(tmp_path))


def test_only_a_throttled_fetch_of_a_client_is_not_sent(spark: SparkSession) -> None:
    events = [
        fetched(1, "u", "c", 104),
        fetched(2, "u", "c", 104, throttle_ms=20),
        fetched(3, "u", "c", 104, throttle_ms=20, exempt=True),
        produced(4, "u", "c", 10, response_bytes=50, throttle_ms=20),
        connection(5, "10.0.0.1"),
    ]
    rows = frame(spark, events).orderBy("time_us").select(sent_bytes().alias("sent")).collect()
    assert [row.sent for row in rows] == [100, 0, 100, 50, None]


def test_missing_api_key_is_no_fetch(spark: SparkSession) -> None:
    event = fetched(1, "u", "c", 104, api_key=None, throttle_ms=20)
    (row,) = frame(spark, [event]).select(sent_bytes().alias("sent")).collect()
    assert row.sent == pytest.approx(100)
