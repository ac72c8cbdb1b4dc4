"""Runs a function over the events of an activity table, in several Spark tasks.

Owns the division of a table into tasks; it must never know what is computed. Invariant: the
function gets each event once, in tables with at least the columns of ``quota_amounts.FIELDS``. How
events are distributed over the calls of the function is unspecified. Kafka has no counterpart.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from minibroker.pipeline import quota_amounts
from minibroker.pipeline.files import files_of, read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TASKS_MAX: Final = 64
TASKS_A_CORE: Final = 4
"""Tasks per core for reading files: several, because tasks differ in size, but limited for tables
of months.
"""

Function = Callable[[Iterable[pa.Table]], Iterator[pa.RecordBatch]]
Scan = Callable[[Function, str], "DataFrame"]
"""Applies a function to all events; the text is the Spark schema of the batches that it yields."""


def freeze_loaded_objects() -> None:
    """Exclude all objects loaded so far from garbage collection.

    Spark's daemon of Python workers runs a full collection after each task, which visits every
    object of every loaded library: 50 ms. Call it at the start of a task, when the previous task's
    garbage is gone.
    """
    gc.freeze()


def scan_of(events: DataFrame, path: str) -> Scan:
    """The scan of ``events``, the activity table at ``path``."""
    files = files_of(path)
    return partial(scan_files, events.sparkSession, files) if files else partial(scan_frame, events)


def scan_frame(events: DataFrame, function: Function, ddl: str) -> DataFrame:
    """Scan by Spark, for tables that are not on a local disk."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return function(pa.Table.from_batches([batch]) for batch in batches)

    return events.select(*quota_amounts.FIELDS).mapInArrow(run, ddl)


def scan_files(
    spark: SparkSession, files: Sequence[str], function: Function, ddl: str
) -> DataFrame:
    """Scan an activity table's local files.

    Faster than reading them by Spark, which would convert its rows to Arrow one by one.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_loaded_objects()
        return function(
            table
            for batch in batches
            for number in batch.column(0).to_pylist()
            for table in read([files[number]], quota_amounts.PATHS, by_group=True)
        )

    most = min(TASKS_MAX, TASKS_A_CORE * spark.sparkContext.defaultParallelism)
    numbers = spark.range(0, len(files), 1, max(1, min(len(files), most)))
    return numbers.mapInArrow(run, ddl)
