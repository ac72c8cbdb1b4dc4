"""Every event of a table is scanned once, by Spark and from local files."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from minibroker.pipeline import scan
from minibroker.pipeline.quota_amounts import FIELDS, Events
from minibroker.pipeline.scan import freeze_loaded_objects, scan_of
from minibroker.pipeline.schemas import read_activity
from tests.pipeline.sample_events import many, table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def seen(tables: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
    for each in tables:
        times_us = Events(each).times_us
        read = [set(FIELDS) <= set(each.column_names)] * len(times_us)
        yield pa.RecordBatch.from_pydict({"time_us": times_us, "whole": read})


@pytest.mark.parametrize("suffix", ["", "/*/*/*.parquet"])
def test_each_event_is_scanned_once(
    suffix: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "TASKS_MAX", 3)
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
