"""Tasks that fail while writing a table's files: the files of failed attempts don't count.

A separate job lets Spark try a task three times, as on a cluster. Of one task the first attempt is
killed between two files, and the second fails after all of its files are written and reported.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa
import pytest

from minibroker.pipeline.event_files import OUTPUT_DDL, write_events
from minibroker.pipeline.session import session
from minibroker.pipeline.table import Counts, Table
from system_tests.harness.waiting import SPARK_PATIENCE_S
from tests.pipeline.random_events import events

pytestmark = pytest.mark.java

EVENTS: Final = 600
FILES_BEFORE_THE_KILL: Final = 3
RAW: Final = "topic string, partition int, offset bigint, value binary"


def test_files_of_failed_task_attempts_are_ignored(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "system_tests.pipeline.test_task_retries", str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=SPARK_PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    table = tmp_path / "activity"
    query = f"select sequence from '{table}/hour=*/bucket=*/*.parquet' order by all"
    assert duckdb.execute(query).fetchall() == [(sequence,) for sequence in range(EVENTS)]
    assert not (table / "_staging").exists()
    attempts = sorted(path.name for path in tmp_path.glob("attempt-*"))
    assert attempts == ["attempt-0", "attempt-1", "attempt-2"]


def take_in(folder: Path) -> None:
    """Run the job's work."""
    with session("attempts", master="local[2,3]") as spark:
        table = Table(spark, str(folder / "activity"))
        filed = write_events("test", 0, table.make_output_folder())

        def fails_twice(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            from pyspark import TaskContext

            context = TaskContext.get()
            assert context is not None
            attempt = context.attemptNumber() if context.partitionId() == 0 else EVENTS
            if attempt < EVENTS:
                (folder / f"attempt-{attempt}").touch()
            for number, row in enumerate(filed(batches)):
                if (attempt, number) == (0, FILES_BEFORE_THE_KILL):
                    os.kill(os.getpid(), signal.SIGKILL)
                yield row
            if attempt == 1:
                raise RuntimeError("after all")

        rows = [("t", 0, at, value) for at, value in enumerate(events(EVENTS, 1))]
        records = spark.createDataFrame(rows, RAW).repartition(2)
        counts = table.commit_output(records.mapInArrow(fails_twice, OUTPUT_DDL), {"test": EVENTS})
        assert counts == Counts(EVENTS, EVENTS, 0), counts


if __name__ == "__main__":
    take_in(Path(sys.argv[1]))
