from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from minibroker.broker.log.checkpoint import write_topic_id
from minibroker.lab.activity.schema import TOPIC
from minibroker.pipeline import ingest
from minibroker.pipeline.cluster_access import ClusterAccess
from minibroker.pipeline.errors import PipelineError
from minibroker.pipeline.ingest import ingest_broker, ingest_directory, skip_deleted, steps
from minibroker.pipeline.schemas import read_activity
from minibroker.pipeline.segments import SegmentPiece
from minibroker.pipeline.table import Counts, Table
from minibroker.pipeline.topic_lookup import ReachableTopic
from tests.pipeline.random_events import append, events

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
