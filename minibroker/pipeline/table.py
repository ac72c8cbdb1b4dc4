"""Writes an activity table: ingest steps, and compaction of small files.

Owns the parts of a step: write to staging, remove events that the table has already, commit. It
must never know where records come from or what is printed. Invariant: a step and its source's
progress are committed together or not at all, and an event, identified by (broker, sequence), is in
the table once however often it is ingested. Spans of sequences usually prove that a step contains
only new events; otherwise its hours and buckets are compared, because a duplicate is in the same
ones.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from minibroker.pipeline.filing import FOOTER, PLACED, file_events, folder_aside
from minibroker.pipeline.hadoop import PLAIN, Files
from minibroker.pipeline.layout import COUNTED, QUARANTINED, SORTED_BY, folder_of
from minibroker.pipeline.ledger import TableCommits
from minibroker.pipeline.schemas import ACTIVITY, ACTIVITY_TABLE, BUCKET, HOUR
from minibroker.pipeline.sequence_spans import (
    NO_SPANS,
    first_and_last,
    merge_spans,
    spans_from_json,
    spans_overlap,
    spans_to_json,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

FILES_MAX: Final = 16
"""Files of an hour's bucket that trigger a compaction."""
BROKERS_MAX: Final = 64
"""Brokers whose sequences are filtered separately; above that, one common range is used."""

_KEYS: Final = ("broker", "sequence")


def quarantine_of(table: str) -> str:
    """The folder for a table's malformed events, next to the table."""
    return f"{table.rstrip('/')}-quarantine"


@dataclass(frozen=True)
class Counts:
    """Records of one or several steps, by outcome."""

    records: int = 0
    events: int = 0
    """Events that were new in the table."""
    malformed: int = 0

    @property
    def already_there(self) -> int:
        """Records whose events were in the table already."""
        return max(self.records - self.events - self.malformed, 0)

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.records + other.records,
            self.events + other.events,
            self.malformed + other.malformed,
        )


@contextmanager
def writing_to(spark: SparkSession, path: str) -> Iterator[Table]:
    """Open the activity table at ``path`` as its only writer, or raise PipelineError."""
    with Files(spark, path).alone():
        yield Table(spark, path)


class Table:
    """An activity table; there may be only one writer at a time."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.spark = spark
        self.files = Files(spark, path)
        self._ledger = TableCommits(self.files, Files(spark, quarantine_of(path)))

    @property
    def progress(self) -> dict[str, Any]:
        """Source -> how much of it was read."""
        return self._ledger.last.progress

    def step(
        self, records: DataFrame, source: str, progress: dict[str, Any], *, now_ms: int
    ) -> Counts:
        """Ingest records of (topic, partition, offset, value).

        ``source`` names their origin in the quarantine.
        """
        filed = records.mapInArrow(file_events(source, now_ms, self.make_into()), PLACED)
        return self.step_filed(filed, progress)

    def step_filed(self, filed: DataFrame, progress: dict[str, Any]) -> Counts:
        """Commit the files that ``filing`` wrote."""
        written, counted = self._by_tasks(filed) if self.files.folder else self._by_spark(filed)
        counts, spans = _sum_counts(counted)
        held = np.concatenate([self._held(), spans])
        fresh = [one for one in written if one[0] != QUARANTINED]
        if spans_overlap(held):
            fresh = self._new_ones(fresh, first_and_last(spans))
            counts = replace(counts, events=self._count(fresh))
        aside = [one for one in written if one[0] == QUARANTINED]
        self._commit(fresh, aside, [], progress, spans_to_json(merge_spans(held)))
        self.compact({place for place, _ in fresh}, FILES_MAX)
        return counts

    def make_into(self) -> str | None:
        """The folder where tasks write the next step's files; None if Spark has to write them."""
        if self.files.folder is None:
            return None
        into = f"{self.files.folder}/{self._aside}"
        os.makedirs(into, exist_ok=True)
        return into

    @property
    def _aside(self) -> str:
        return f"{self._ledger.staging}/all"

    def _by_tasks(self, filed: DataFrame) -> tuple[list[tuple[str, str]], list[str]]:
        """((place, file) of each written file, the counts) of successful tasks."""
        written, counted = [], []
        for place, file, content in filed.collect():
            if place == COUNTED:
                counted.append(content.decode())
            else:
                written.append((_place(place), f"{folder_aside(self._aside, place)}/{file}"))
        return written, counted

    def _by_spark(self, filed: DataFrame) -> tuple[list[tuple[str, str]], list[str]]:
        """As `_by_tasks`, for file systems to which only Spark can write."""
        # Spark can't write raw bytes, but text, which it doesn't convert. The Parquet magic is set
        # as line separator, which ends the only line and thus the file.
        end = FOOTER.decode()
        finished = filed.selectExpr("place", "cast(content as string) as value")
        writer = finished.write.partitionBy("place").option("lineSep", end).options(**PLAIN)
        writer.text(self.files.path(self._aside))
        written = self._written(self._aside)
        counted = [self.files.read(file).removesuffix(end) for at, file in written if at == COUNTED]
        return [one for one in written if one[0] != COUNTED], counted

    def _held(self) -> Any:
        """Spans of sequences that the table may contain."""
        from pyspark.sql import functions as f

        found = self._ledger.last.held
        if found is not None:
            return spans_from_json(found)
        if not self.places():
            return NO_SPANS
        keys = self.spark.read.schema(_part(ACTIVITY, _KEYS)).parquet(self.files.root)
        rows = keys.groupBy("broker").agg(f.min("sequence"), f.max("sequence"))
        return np.array(rows.collect(), np.int64).reshape(-1, 3)

    def _new_ones(
        self, written: list[tuple[str, str]], brokers: dict[int, tuple[int, int]]
    ) -> list[tuple[str, str]]:
        """Write the staged events that are not in the table yet; return their files."""
        folder = f"{self._ledger.staging}/fresh"
        paths = [self.files.path(file) for _, file in written]
        whole = self.files.path(self._aside)
        places = sorted({place for place, _ in written})
        staged = self.spark.read.schema(_staged()).option("basePath", whole).parquet(*paths)
        # A place's suffix after hour and bucket is only the number of a file.
        staged = staged.selectExpr(
            *ACTIVITY.fieldNames(), "substring_index(place, '.', 2) as place"
        ).dropDuplicates(["place", *_KEYS])
        old = self._old_keys(places, brokers)
        if old is not None:
            staged = staged.join(old, list(_KEYS), "left_anti")
        self._write(staged, folder)
        return self._written(folder)

    def _count(self, written: list[tuple[str, str]]) -> int:
        if not written:
            return 0
        paths = [self.files.path(file) for _, file in written]
        return self.spark.read.schema("broker int").parquet(*paths).count()

    def _old_keys(
        self, places: Iterable[str], brokers: dict[int, tuple[int, int]]
    ) -> DataFrame | None:
        """Keys in the table that may equal keys of the step; None if there are none."""
        folders = [folder_of(place) for place in places]
        there = [self.files.path(folder) for folder in folders if self.files.exists(folder)]
        if not there:
            return None
        if len(brokers) > BROKERS_MAX:
            firsts, lasts = zip(*brokers.values(), strict=True)
            condition = f"sequence between {min(firsts)} and {max(lasts)}"
        else:
            condition = " or ".join(
                f"(broker = {broker} and sequence between {first} and {last})"
                for broker, (first, last) in sorted(brokers.items())
            )
        return self.spark.read.schema(_part(ACTIVITY, _KEYS)).parquet(*there).where(condition)

    def _write(self, frame: DataFrame, folder: str) -> None:
        ordered = frame.repartition("place").sortWithinPartitions("place", *SORTED_BY)
        writer = ordered.write.partitionBy("place").option("compression", "zstd")
        writer = writer.options(**PLAIN)
        writer.parquet(self.files.path(folder))

    def _commit(
        self,
        fresh: Iterable[tuple[str, str]],
        aside: Iterable[tuple[str, str]],
        remove: list[str],
        progress: dict[str, Any],
        held: dict[str, list[int]] | None,
    ) -> None:
        name = f"{self._ledger.last.number + 1:08d}"
        self._ledger.commit(
            add={
                written: f"{folder_of(place)}/{name}-{at:04d}.parquet"
                for at, (place, written) in enumerate(fresh)
            },
            aside={written: f"{name}-{at:04d}.parquet" for at, (_, written) in enumerate(aside)},
            remove=remove,
            progress=progress,
            held=held,
        )

    def _written(self, folder: str) -> list[tuple[str, str]]:
        """(place, file) of the staged files."""
        return [
            (_place(name.removeprefix("place=")), f"{folder}/{name}/{file}")
            for name in self.files.names(folder)
            if name.startswith("place=")
            for file in self._visible(f"{folder}/{name}")
        ]

    def _visible(self, folder: str) -> list[str]:
        return [name for name in self.files.names(folder) if not name.startswith(("_", "."))]

    def places(self) -> list[str]:
        """The hours and buckets that contain files."""
        return [
            f"{hour.removeprefix('hour=')}.{int(bucket.removeprefix('bucket=')):02d}"
            for hour in self.files.names("")
            if hour.startswith("hour=")
            for bucket in self.files.names(hour)
            if bucket.startswith("bucket=")
        ]

    def compact(self, places: Iterable[str], most: int = 1) -> int:
        """Compact places with more than ``most`` files; return the number of files replaced."""
        found = {place: self._visible(folder_of(place)) for place in places}
        crowded = {place: names for place, names in found.items() if len(names) > most}
        if not crowded:
            return 0
        paths = [self.files.path(folder_of(place)) for place in crowded]
        reader = self.spark.read.schema(ACTIVITY_TABLE).option("basePath", self.files.root)
        frame = reader.parquet(*paths).selectExpr(
            *ACTIVITY.fieldNames(), f"concat({HOUR}, '.', lpad({BUCKET}, 2, '0')) as place"
        )
        folder = f"{self._ledger.staging}/joined"
        self._write(frame, folder)
        old = [f"{folder_of(place)}/{name}" for place, names in crowded.items() for name in names]
        self._commit(self._written(folder), [], old, {}, self._ledger.last.held)
        return len(old)


def _sum_counts(counted: Iterable[str]) -> tuple[Counts, Any]:
    """The tasks' (total counts, spans of sequences)."""
    counts, spans = Counts(), [NO_SPANS]
    for text in counted:
        found = json.loads(text)
        spans.append(spans_from_json(found.pop("held")))
        counts += Counts(**found)
    return counts, np.concatenate(spans)


def _place(name: str) -> str:
    """The place of a staged folder, without the file's number in its task."""
    parts = name.split(".")
    return parts[0] if parts[0] in (QUARANTINED, COUNTED) else ".".join(parts[:2])


def _part(schema: StructType, names: Iterable[str]) -> StructType:
    return type(schema)([schema[name] for name in names])


def _staged() -> StructType:
    from pyspark.sql.types import StringType, StructField, StructType

    # Built from a new list, because `StructType.add` would modify the shared schema.
    return StructType([*ACTIVITY.fields, StructField("place", StringType())])
