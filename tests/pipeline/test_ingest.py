from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from minibroker.broker.log.checkpoint import write_topic_id
from minibroker.lab.activity.events import TOPIC
from minibroker.pipeline import ingest
from minibroker.pipeline.activity_table import read_activity
from minibroker.pipeline.cluster_access import ClusterAccess, ReachableTopic
from minibroker.pipeline.errors import BadInput, PipelineError
from minibroker.pipeline.ingest import (
    Damaged,
    SegmentBatch,
    SegmentPiece,
    ingest_broker,
    ingest_directory,
    pieces,
    skip_deleted,
    steps,
)
from minibroker.pipeline.ingest import read as read_piece
from minibroker.pipeline.table import Counts, Table
from minibroker_protocol.checksum import crc32c
from minibroker_protocol.compression import DECOMPRESSED_MAX_BYTES, Compression, compress
from minibroker_protocol.records import HEADER_BYTES, Record, build_batch
from tests.pipeline.random_events import append, events

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Segment files -----------------------------------------------------------------------------------


def values(count: int, start: int = 0) -> list[bytes | None]:
    return [f"value {at}".encode() for at in range(start, start + count)]


def read(data_dir: Path, progress: dict[str, int] | None = None, **options: Any) -> list[Any]:
    rows: list[Any] = []
    for piece in pieces(str(data_dir), progress or {}, **options):
        for batch in read_piece(piece):
            if isinstance(batch, Damaged):
                rows.append({"offset": batch.offset, "value": batch.data, "damage": batch.reason})
            else:
                rows += [
                    {"offset": offset, "value": value, "damage": None}
                    for offset, value in zip(batch.offsets, batch.values, strict=True)
                ]
    return rows


def segment(data_dir: Path) -> Path:
    return max((data_dir / f"{TOPIC}-0").glob("*.log"))


def test_records_are_read_as_written(tmp_path: Path) -> None:
    append(tmp_path, [*values(120), None])
    rows = read(tmp_path)
    assert [row["value"] for row in rows] == [*values(120), None]
    assert [row["offset"] for row in rows] == list(range(121))


def test_pieces_are_bounded_and_together_everything(tmp_path: Path) -> None:
    append(tmp_path, values(1000), batch=10, segment_bytes=4096)
    append(tmp_path, values(10, 1000), partition=2)
    assert len(list(tmp_path.glob("*-0/*.log"))) > 2
    found = list(pieces(str(tmp_path), {}, piece_bytes=1000))
    assert len(found) > 5
    assert all(piece.end - piece.start <= 1000 for piece in found)
    rows = read(tmp_path, piece_bytes=1000)
    assert sorted(row["value"] for row in rows) == sorted(value for value in values(1010) if value)


def test_fetch_rotates_partitions(tmp_path: Path) -> None:
    append(tmp_path, values(100), batch=50)
    append(tmp_path, values(200), batch=50, partition=1)
    found = list(pieces(str(tmp_path), {}, piece_bytes=1))
    assert [piece.partition for piece in found] == [0, 1, 0, 1, 1, 1]
    assert [piece.next_offset for piece in found] == [50, 50, 100, 100, 150, 200]


def test_reading_resumes_at_last_offset(tmp_path: Path) -> None:
    append(tmp_path, values(100), segment_bytes=2048)
    last = list(pieces(str(tmp_path), {}))[-1]
    assert list(pieces(str(tmp_path), {"0": last.next_offset})) == []
    append(tmp_path, values(20, 100), segment_bytes=2048)
    assert [row["value"] for row in read(tmp_path, {"0": last.next_offset})] == values(20, 100)


def test_incomplete_last_batch_is_read_later(tmp_path: Path) -> None:
    append(tmp_path, values(100))
    whole = segment(tmp_path).read_bytes()
    for cut in (1, 30, 200):
        segment(tmp_path).write_bytes(whole[:-cut])
        assert [row["value"] for row in read(tmp_path)] == values(50)
    segment(tmp_path).write_bytes(whole + bytes(500))
    assert [row["value"] for row in read(tmp_path)] == values(100)


def test_log_shorter_than_read_offset_is_read_from_start(tmp_path: Path) -> None:
    append(tmp_path, values(50))
    assert len(read(tmp_path, {"0": 10_000})) == 50


def test_records_that_compaction_left_are_read(tmp_path: Path) -> None:
    append(tmp_path, values(150))
    whole = segment(tmp_path).read_bytes()
    first, second, third = (piece.end for piece in pieces(str(tmp_path), {}, piece_bytes=1))
    assert third == len(whole)
    segment(tmp_path).write_bytes(whole[:first] + whole[second:])
    assert [row["offset"] for row in read(tmp_path)] == [*range(50), *range(100, 150)]


def test_batch_with_bad_checksum_yields_one_damaged_row(tmp_path: Path) -> None:
    append(tmp_path, values(150))
    whole = bytearray(segment(tmp_path).read_bytes())
    first, *_ = (piece.end for piece in pieces(str(tmp_path), {}, piece_bytes=1))
    whole[first + 70] ^= 1
    segment(tmp_path).write_bytes(whole)
    rows = read(tmp_path)
    assert [row["value"] for row in rows if row["damage"] is None] == [
        *values(50), *values(50, 100)]  # fmt: skip
    (torn,) = (row for row in rows if row["damage"] is not None)
    assert f"batch at byte {first} of {segment(tmp_path)}: its CRC is wrong" in torn["damage"]
    assert torn["offset"] == 50
    assert whole[first:].startswith(torn["value"])


def test_truncated_end_of_sealed_segment_is_reported(tmp_path: Path) -> None:
    append(tmp_path, values(300), segment_bytes=2048)
    sealed = min((tmp_path / f"{TOPIC}-0").glob("*.log"))
    os.truncate(sealed, sealed.stat().st_size - 5)
    rows = read(tmp_path)
    assert [row["damage"].split(": ")[1].split(" ")[0:2] for row in rows if row["damage"]] == [
        ["a", "batch"]
    ]
    assert rows[-1]["value"] == b"value 299"


def test_directory_without_activity_topic_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="No such file"):
        read(tmp_path / "nowhere")
    with pytest.raises(
        BadInput, match=r"has no topic __minibroker_activity: check that it is a broker's"
    ):
        read(tmp_path)


def test_segment_deleted_while_reading_is_reported(tmp_path: Path) -> None:
    append(tmp_path, values(50))
    (piece,) = pieces(str(tmp_path), {})
    segment(tmp_path).unlink()
    with pytest.raises(BadInput, match="removed by retention while it was read: run"):
        list(read_piece(piece))


def test_directory_missing_on_worker_is_reported(tmp_path: Path) -> None:
    append(tmp_path / "data", values(50))
    (piece,) = pieces(str(tmp_path / "data"), {})
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    with pytest.raises(BadInput, match="workers must reach it under the same path"):
        list(read_piece(piece))


@pytest.mark.parametrize("codec", list(Compression))
def test_batch_larger_than_previous_ones_is_read(tmp_path: Path, codec: Compression) -> None:
    chance = random.Random(1)
    large = [chance.randbytes(700_000), bytes(3_000_000), b"last"]
    batches = [build_batch([Record(value=each)], compression=codec) for each in large]
    log = tmp_path / "one.log"
    log.write_bytes(b"".join(batches))
    piece = SegmentPiece(str(log), TOPIC, 0, 0, log.stat().st_size, 3)
    found = [each.values[0] for each in read_piece(piece) if isinstance(each, SegmentBatch)]
    assert found == large


def test_batch_exceeding_decompressed_limit_is_damaged(tmp_path: Path) -> None:
    large = bytes(DECOMPRESSED_MAX_BYTES + 1)
    batch = build_batch([Record(value=large)], compression=Compression.ZSTD)
    log = tmp_path / "one.log"
    log.write_bytes(batch)
    (found,) = read_piece(SegmentPiece(str(log), TOPIC, 0, 0, len(batch), 1))
    assert isinstance(found, Damaged)
    assert "grows past the limit" in found.reason


@pytest.mark.parametrize("codec", [Compression.ZSTD, Compression.LZ4])
def test_undecompressible_batch_is_quarantined_and_others_are_read(
    tmp_path: Path, codec: Compression
) -> None:
    good = build_batch([Record(value=value) for value in values(50)], compression=codec)
    section = good[HEADER_BYTES:]
    torn, other = section[:-9], bytes([section[0] ^ 1]) + section[1:]
    path = tmp_path / "x.log"
    path.write_bytes(b"".join([good, holding(good, torn), good, holding(good, other), good]))
    piece = SegmentPiece(str(path), TOPIC, 0, 0, path.stat().st_size, 0)
    reasons = [batch.reason if isinstance(batch, Damaged) else None for batch in read_piece(piece)]
    expected = [codec.name.lower() + " data" in reason if reason else None for reason in reasons]
    assert expected == [None, True, None, True, None]


def test_batch_of_several_frames_is_read(tmp_path: Path) -> None:
    plain = build_batch([Record(value=value) for value in values(50)])
    packed = build_batch([Record(value=b"")], compression=Compression.ZSTD)
    halves = plain[HEADER_BYTES:400], plain[400:]
    frames = b"".join(compress(Compression.ZSTD, half) for half in halves)
    path = tmp_path / "x.log"
    path.write_bytes(holding(plain[:22] + packed[22:23] + plain[23:], frames))
    (batch,) = read_piece(SegmentPiece(str(path), TOPIC, 0, 0, path.stat().st_size, 0))
    assert isinstance(batch, SegmentBatch)
    assert batch.values == values(50)


def holding(batch: bytes, section: bytes) -> bytes:
    """The batch with another section of records, which its length and checksum are of."""
    checked = batch[21:HEADER_BYTES] + section
    length = HEADER_BYTES - 12 + len(section)
    return b"".join(
        [batch[:8], length.to_bytes(4), batch[12:17], crc32c(checked).to_bytes(4), checked]
    )


# Sources -----------------------------------------------------------------------------------------


def run(spark: SparkSession, tmp_path: Path) -> tuple[Counts, list[Counts]]:
    counts: list[Counts] = []
    table = Table(spark, str(tmp_path / "activity"))
    return ingest_directory(table, str(tmp_path / "data"), counts.append), counts


def test_second_ingest_reads_only_new_records(spark: SparkSession, tmp_path: Path) -> None:
    made = events(300, 1)
    append(tmp_path / "data", list(made[:200]))
    assert run(spark, tmp_path) == (Counts(200, 200, 0), [Counts(200, 200, 0)])
    assert run(spark, tmp_path) == (Counts(), [])
    append(tmp_path / "data", [*made[200:], b"junk"])
    assert run(spark, tmp_path)[0] == Counts(101, 100, 1)
    assert read_activity(spark, str(tmp_path / "activity")).count() == 300


def test_recreated_topic_is_ingested_from_its_start(spark: SparkSession, tmp_path: Path) -> None:
    """A broker restarted with an empty folder has a new topic id, and more events than before."""
    for begin, end in ((0, 100), (100, 300)):
        shutil.rmtree(tmp_path / "data", ignore_errors=True)
        append(tmp_path / "data", list(events(end - begin, 1, start=begin)))
        (log,) = (tmp_path / "data").glob("*/*.log")
        write_topic_id(str(log.parent), bytes([end % 256] * 16))
        assert run(spark, tmp_path)[0] == Counts(end - begin, end - begin, 0)
        assert run(spark, tmp_path)[0] == Counts()


@pytest.mark.parametrize(
    ("done", "starts", "gone"),
    [
        ([], {0: 9}, 0),
        ([0, 1], {0: 40, 1: 7}, 0),
        ([0, 1], {0: 45, 1: 8, 2: 90}, 6),
        ([0], {0: 45, 1: 0}, 25),  # it is unknown whether step 1 was done
    ],
)
def test_records_deleted_before_ingest_are_counted(
    spark: SparkSession, tmp_path: Path, done: list[int], starts: dict[int, int], *, gone: int
) -> None:
    checkpoint = tmp_path / "activity" / "_checkpoints" / "there-9092-id"
    for number, read in enumerate(({"0": 20}, {"0": 40, "1": 7})):
        offsets = json.dumps({TOPIC: read})
        (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
        (checkpoint / "offsets" / str(number)).write_text(f"v1\n{{}}\n{offsets}")
    for number in done:
        (checkpoint / "commits").mkdir(exist_ok=True)
        (checkpoint / "commits" / str(number)).write_text("v1\n{}")
    table = Table(spark, str(tmp_path / "activity"))
    assert skip_deleted(table, ClusterAccess("there:9092"), ReachableTopic("id", starts)) == gone
    assert checkpoint.exists() == (not gone)


def test_damaged_batch_is_one_that_is_malformed(spark: SparkSession, tmp_path: Path) -> None:
    append(tmp_path / "data", list(events(100, 3)))
    (log,) = (tmp_path / "data").glob("*/*.log")
    raw = bytearray(log.read_bytes())
    raw[70] ^= 1
    log.write_bytes(raw)
    assert run(spark, tmp_path)[0] == Counts(51, 50, 1)


def test_progress_committed_before_kill_is_not_reread(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for partition in range(3):
        append(tmp_path / "data", list(events(50, 2, start=50 * partition)), partition=partition)
    sizes = [log.stat().st_size for log in (tmp_path / "data").glob("*/*.log")]
    monkeypatch.setattr(ingest, "TASK_BYTES", max(sizes))
    monkeypatch.setattr(ingest, "LEAST_BYTES", 1)
    table = Table(spark, str(tmp_path / "activity"))

    class Killed(Exception):
        pass

    def once(_: Counts) -> None:
        raise Killed

    with pytest.raises(Killed):
        ingest_directory(table, str(tmp_path / "data"), once)
    total, counts = run(spark, tmp_path)
    assert (total, len(counts)) == (Counts(50, 50, 0), 1)  # Two of three were read side by side.


def cut(sizes: list[int], tasks: int) -> list[list[list[int]]]:
    """Numbers of the pieces of each task of each step."""
    found = [SegmentPiece("path", "t", 0, 0, size, at) for at, size in enumerate(sizes)]
    return [
        [[piece.next_offset for piece in task] for task in step] for step in steps(found, tasks)
    ]


def test_step_size_is_bounded_per_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "TASK_BYTES", 10)
    monkeypatch.setattr(ingest, "LEAST_BYTES", 1)
    assert cut([4, 6, 1, 30, 9, 2], 2) == [[[0], [1, 2]], [[3]], [[4], [5]]]
    assert cut([4, 6, 1, 30, 9, 2], 1) == [[[0, 1]], [[2]], [[3]], [[4]], [[5]]]
    assert cut([], 2) == []


def test_tasks_are_balanced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "TASK_BYTES", 1000)
    monkeypatch.setattr(ingest, "LEAST_BYTES", 5)
    assert cut([3] * 8, 2) == [[[0, 1, 2, 3], [4, 5, 6, 7]]]
    assert cut([3] * 8, 3) == [[[0, 1, 2], [3, 4], [5, 6, 7]]]
    assert cut([3] * 3, 3) == [[[0, 1, 2]]], "less than twice the least is one task's"


def test_missing_connector_reports_spark_option(spark: SparkSession, tmp_path: Path) -> None:
    table = Table(spark, str(tmp_path / "activity"))
    with pytest.raises(PipelineError, match=r"--conf spark\.jars\.packages=org\.apache\.spark:"):
        ingest_broker(
            table,
            ClusterAccess("127.0.0.1:1"),
            ReachableTopic("id", {}),
            lambda _: None,
            follow=False,
        )
