from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from minibroker.lab.activity.schema import FIELDS, VERSION
from minibroker.pipeline import schemas
from minibroker.pipeline.errors import BadInput, WrongSchema
from minibroker.pipeline.schemas import ACTIVITY, ACTIVITY_TABLE, read_activity, sent_bytes
from tests.pipeline.sample_events import connection, fetched, frame, produced

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_every_field_of_the_schema_is_a_column_of_its_type() -> None:
    found = [(field.name, field.dataType.typeName()) for field in ACTIVITY.fields]
    names = {"int": "integer", "bigint": "long"}
    assert found == [
        (field.name, names.get(field.type.value, field.type.value)) for field in FIELDS
    ]


def table(spark: SparkSession, path: Path, *, version: int = VERSION, drop: str = "") -> str:
    row = {"version": version, "kind": "dropped", "hour": "2026-11-20-14", "bucket": 7}
    frame = spark.createDataFrame([row], ACTIVITY_TABLE)
    frame.drop(drop).write.partitionBy("hour", "bucket").parquet(str(path))
    return str(path)


@pytest.mark.usefixtures("wherever")
def test_table_round_trips_with_its_columns(spark: SparkSession, tmp_path: Path) -> None:
    frame = read_activity(spark, table(spark, tmp_path / "activity"))
    # Files don't say that a column is never null.
    assert frame.schema.simpleString() == ACTIVITY_TABLE.simpleString()
    assert [(row.hour, row.bucket) for row in frame.collect()] == [("2026-11-20-14", 7)]


@pytest.mark.usefixtures("wherever")
def test_missing_column_is_named(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(WrongSchema, match=r"activity.*: column `io_ns` is missing.*ingest"):
        read_activity(spark, table(spark, tmp_path / "activity", drop="io_ns"))


def test_wrong_type_is_named_in_error(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "activity")
    good = spark.read.parquet(table(spark, tmp_path / "good"))
    good.withColumn("io_ns", good.io_ns.cast("string")).write.parquet(path)
    with pytest.raises(WrongSchema, match="`io_ns` is of type string, not bigint: write it"):
        read_activity(spark, path)


def test_replaced_file_is_named(spark: SparkSession, tmp_path: Path) -> None:
    """Spark itself would look at the columns of one of them."""
    path = table(spark, tmp_path / "activity")
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
        monkeypatch.setattr(schemas, "files_of", lambda _: [])


@pytest.mark.usefixtures("wherever")
def test_unknown_version_is_named(spark: SparkSession, tmp_path: Path) -> None:
    path = table(spark, tmp_path / "activity", version=VERSION + 1)
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
