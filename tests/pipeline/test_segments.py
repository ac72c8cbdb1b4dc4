from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from minibroker.activity.schema import TOPIC
from minibroker.pipeline.errors import BadInput
from minibroker.pipeline.segments import FORMAT, SegmentSource, pieces, read_piece
from tests.pipeline.made import append

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def values(count: int, start: int = 0) -> list[bytes | None]:
    return [f"value {at}".encode() for at in range(start, start + count)]


def read(data_dir: Path, progress: dict[str, int] | None = None, **options: Any) -> list[Any]:
    found = pieces(str(data_dir), progress or {}, **options)
    return [row for piece in found for batch in read_piece(piece) for row in batch.to_pylist()]


def segment(data_dir: Path) -> Path:
    return max((data_dir / f"{TOPIC}-0").glob("*.log"))


def test_records_come_as_they_were_written(tmp_path: Path) -> None:
    append(tmp_path, [*values(120), None])
    rows = read(tmp_path)
    assert [row["value"] for row in rows] == [*values(120), None]
    assert [row["offset"] for row in rows] == list(range(121))
    assert rows[60] == {
        "topic": TOPIC,
        "partition": 0,
        "offset": 60,
        "timestamp_ms": 57,
        "value": b"value 60",
        "damage": None,
    }


def test_pieces_are_bounded_and_together_everything(tmp_path: Path) -> None:
    append(tmp_path, values(1000), batch=10, segment_bytes=4096)
    append(tmp_path, values(10, 1000), partition=2)
    assert len(list(tmp_path.glob("*-0/*.log"))) > 2
    found = list(pieces(str(tmp_path), {}, piece_bytes=1000))
    assert len(found) > 5
    assert all(piece.end - piece.start <= 1000 for piece in found)
    rows = read(tmp_path, piece_bytes=1000)
    assert sorted(row["value"] for row in rows) == sorted(value for value in values(1010) if value)


def test_reading_goes_on_where_it_ended(tmp_path: Path) -> None:
    append(tmp_path, values(100), segment_bytes=2048)
    last = list(pieces(str(tmp_path), {}))[-1]
    assert list(pieces(str(tmp_path), {"0": last.next_offset})) == []
    append(tmp_path, values(20, 100), segment_bytes=2048)
    assert [row["value"] for row in read(tmp_path, {"0": last.next_offset})] == values(20, 100)


def test_of_a_growing_log_the_last_batch_is_left_until_it_is_whole(tmp_path: Path) -> None:
    append(tmp_path, values(100))
    whole = segment(tmp_path).read_bytes()
    for cut in (1, 30, 200):
        segment(tmp_path).write_bytes(whole[:-cut])
        assert [row["value"] for row in read(tmp_path)] == values(50)
    segment(tmp_path).write_bytes(whole + bytes(500))
    assert [row["value"] for row in read(tmp_path)] == values(100)


def test_a_log_that_is_shorter_than_what_was_read_is_another_one(tmp_path: Path) -> None:
    append(tmp_path, values(50))
    assert len(read(tmp_path, {"0": 10_000})) == 50


def test_records_that_compaction_left_are_read(tmp_path: Path) -> None:
    append(tmp_path, values(150))
    whole = segment(tmp_path).read_bytes()
    first, second, third = (piece.end for piece in pieces(str(tmp_path), {}, piece_bytes=1))
    assert third == len(whole)
    segment(tmp_path).write_bytes(whole[:first] + whole[second:])
    assert [row["offset"] for row in read(tmp_path)] == [*range(50), *range(100, 150)]


def test_a_damaged_batch_is_one_row_that_says_so(tmp_path: Path) -> None:
    append(tmp_path, values(150))
    whole = bytearray(segment(tmp_path).read_bytes())
    first, *_ = (piece.end for piece in pieces(str(tmp_path), {}, piece_bytes=1))
    whole[first + 70] ^= 1
    segment(tmp_path).write_bytes(whole)
    rows = read(tmp_path)
    assert [row["value"] for row in rows if row["damage"] is None] == [
        *values(50), *values(50, 100)]  # fmt: skip
    (torn,) = (row for row in rows if row["damage"] is not None)
    assert f"batch at byte {first} of {segment(tmp_path)}: its checksum is wrong" in torn["damage"]
    assert torn["offset"] == 50
    assert whole[first:].startswith(torn["value"])


def test_the_torn_end_of_a_sealed_file_is_told(tmp_path: Path) -> None:
    append(tmp_path, values(300), segment_bytes=2048)
    sealed = min((tmp_path / f"{TOPIC}-0").glob("*.log"))
    os.truncate(sealed, sealed.stat().st_size - 5)
    rows = read(tmp_path)
    assert [row["damage"].split(": ")[1].split(" ")[0:2] for row in rows if row["damage"]] == [
        ["a", "batch"]
    ]
    assert rows[-1]["value"] == b"value 299"


def test_what_is_no_data_directory_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="No such file"):
        read(tmp_path / "nowhere")
    with pytest.raises(BadInput, match=r"has no topic __minibroker_activity: is it a broker's"):
        read(tmp_path)


def test_retention_that_was_faster_is_said(tmp_path: Path) -> None:
    append(tmp_path, values(50))
    (piece,) = pieces(str(tmp_path), {})
    segment(tmp_path).unlink()
    with pytest.raises(BadInput, match="removed while it was read, as retention does: run"):
        list(read_piece(piece))


def test_spark_reads_partitions_side_by_side(spark: SparkSession, tmp_path: Path) -> None:
    for partition in range(3):
        append(tmp_path, values(200), partition=partition, segment_bytes=2048)
    spark.dataSource.register(SegmentSource)
    frame = spark.read.format(FORMAT).load(str(tmp_path))
    assert frame.rdd.getNumPartitions() == 3
    assert sorted(frame.groupBy("partition").count().collect()) == [(at, 200) for at in range(3)]
    assert spark.read.format(FORMAT).option("pieces", "[]").load(str(tmp_path)).count() == 0
