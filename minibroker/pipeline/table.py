"""Writes an activity table: ingest steps, and compaction of small files.

Owns the parts of a step: write to staging, remove events that the table has already, commit. A
commit is one small file, which lists the files to add, those to remove, and the progress of the
source. That file makes the step permanent; moving the files may follow later, and the next run
completes it after a kill. It must never know where records come from or what is printed. Invariant:
the table's contents and the progress are those of the last commit, and an event, identified by
(broker, sequence), is in the table once however often it is ingested. Spark's file sink has a
similar log, but can't replace files.

Spans of sequences usually prove that a step contains only new events; otherwise its hours and
buckets are compared, because a duplicate is in the same ones.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from minibroker.pipeline.activity_table import ACTIVITY, ACTIVITY_TABLE, BUCKET, HOUR
from minibroker.pipeline.errors import BadInput, PipelineError
from minibroker.pipeline.event_files import (
    COUNTED,
    FOOTER,
    NO_SPANS,
    OUTPUT_DDL,
    QUARANTINED,
    SORTED_BY,
    folder_of,
    merge_spans,
    place_folder,
    spans_from_json,
    spans_overlap,
    spans_to_json,
    write_events,
)
from minibroker.pipeline.session import ANOTHER, PLAIN, Files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

# Commits -----------------------------------------------------------------------------------------

COMMITS: Final = "_commits"
STAGING: Final = "_staging"
"""Spark ignores names with a leading underscore."""
VERSION: Final = 1
_DIGITS: Final = 12


@dataclass(frozen=True)
class Commit:
    """One step. Paths are relative to the table; targets in ``aside`` to the quarantine."""

    number: int = 0
    add: dict[str, str] = field(default_factory=dict)
    """Staged file -> its path in the table."""
    aside: dict[str, str] = field(default_factory=dict)
    """Staged file -> its path in the quarantine."""
    remove: list[str] = field(default_factory=list)
    progress: dict[str, Any] = field(default_factory=dict)
    """Source -> how much of it was read."""
    held: dict[str, list[int]] | None = None
    """Broker -> sequences in the table, as in ``spans_to_json``; None if unknown."""


class TableCommits:
    """A table's commits; there may be only one writer at a time."""

    def __init__(self, table: Files, quarantine: Files) -> None:
        self._table = table
        self._quarantine = quarantine
        self.last = self._load()
        self._carry_out(self.last)
        table.delete(STAGING)

    @property
    def staging(self) -> str:
        """The folder for the next step's files, relative to the table."""
        return f"{STAGING}/{self.last.number + 1}"

    def commit(
        self,
        *,
        add: dict[str, str],
        aside: dict[str, str],
        remove: list[str],
        progress: dict[str, Any],
        held: dict[str, list[int]] | None,
    ) -> None:
        """Commit a step; ``progress`` has the sources that advanced.

        Raises PipelineError if another writer started since, because it deletes the staged
        files.
        """
        done = {**self.last.progress, **progress}
        before = self.last
        needed = [*add, *aside, *([_name(before.number)] if before.number else [])]
        for name in needed:
            if not self._table.exists(name):
                raise PipelineError(f"{self._table.path(name)} was removed: {ANOTHER}")
        step = Commit(before.number + 1, add, aside, remove, done, held)
        text = json.dumps({"version": VERSION, **step.__dict__})
        self._table.write_new(_name(step.number), text)
        self._carry_out(step)
        self.last = step
        if before.number:
            self._table.delete(_name(before.number))
        self._table.delete(STAGING)  # With the folder itself: this is the only writer.

    def _carry_out(self, step: Commit) -> None:
        quarantine = self._quarantine.root.rstrip("/").rpartition("/")[2]
        for written, place in step.add.items():
            if self._table.exists(written):
                self._table.rename(written, place)
        for written, place in step.aside.items():
            if self._table.exists(written):
                self._table.rename(written, f"../{quarantine}/{place}")
        for place in step.remove:
            self._table.delete(place)

    def _load(self) -> Commit:
        names = [name for name in self._table.names(COMMITS) if not name.startswith(("_", "."))]
        if not names:
            return Commit()
        name = f"{COMMITS}/{names[-1]}"
        try:
            found = json.loads(self._table.read(name))
            version = found.pop("version")
            if version != VERSION:
                raise BadInput(
                    f"{self._table.path(name)} has version {version}, but this minibroker supports"
                    f" only version {VERSION}: use the minibroker that wrote it"
                )
            return Commit(**found)
        except (ValueError, KeyError, TypeError) as error:
            raise BadInput(
                f"{self._table.path(name)} cannot be read ({error}): ingest into a new path"
            ) from error


def _name(number: int) -> str:
    return f"{COMMITS}/{number:0{_DIGITS}d}.json"


# The table ---------------------------------------------------------------------------------------

FILES_MAX: Final = 16
"""Files of an hour's bucket that trigger a compaction."""
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
    def duplicates(self) -> int:
        """Records whose events were in the table already."""
        return max(self.records - self.events - self.malformed, 0)

    def __add__(self, other: Counts) -> Counts:
        sums = (one + more for one, more in zip(astuple(self), astuple(other), strict=True))
        return Counts(*sums)


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
        written_files = records.mapInArrow(
            write_events(source, now_ms, self.make_output_folder()), OUTPUT_DDL
        )
        return self.commit_output(written_files, progress)

    def commit_output(self, output: DataFrame, progress: dict[str, Any]) -> Counts:
        """Commit the files that ``write_events`` wrote."""
        written, counted = (
            self._output_of_tasks(output) if self.files.folder else self._output_of_spark(output)
        )
        counts, spans = _sum_counts(counted)
        known = np.concatenate([self._known_spans(), spans])
        new = [one for one in written if one[0] != QUARANTINED]
        if spans_overlap(known):
            sequences = f"sequence between {spans[:, 1].min()} and {spans[:, 2].max()}"
            new = self._write_new_events(new, sequences)
            counts = replace(counts, events=self._count(new))
        quarantined = [one for one in written if one[0] == QUARANTINED]
        self._commit(new, quarantined, [], progress, spans_to_json(merge_spans(known)))
        self.compact({place for place, _ in new}, FILES_MAX)
        return counts

    def make_output_folder(self) -> str | None:
        """The folder where tasks write the next step's files; None if Spark has to write them."""
        if self.files.folder is None:
            return None
        into = f"{self.files.folder}/{self._output_folder}"
        os.makedirs(into, exist_ok=True)
        return into

    @property
    def _output_folder(self) -> str:
        return f"{self._ledger.staging}/all"

    def _output_of_tasks(self, output: DataFrame) -> tuple[list[tuple[str, str]], list[str]]:
        """((place, file) of each written file, the counts) of successful tasks."""
        written, counted = [], []
        for place, file, content in output.collect():
            if place == COUNTED:
                counted.append(content.decode())
            else:
                written.append(
                    (_place(place), f"{place_folder(self._output_folder, place)}/{file}")
                )
        return written, counted

    def _output_of_spark(self, output: DataFrame) -> tuple[list[tuple[str, str]], list[str]]:
        """As `_by_tasks`, for file systems to which only Spark can write."""
        # Spark can't write raw bytes, but text, which it doesn't convert. The Parquet magic is set
        # as line separator, which ends the only line and thus the file.
        end = FOOTER.decode()
        finished = output.selectExpr("place", "cast(content as string) as value")
        writer = finished.write.partitionBy("place").option("lineSep", end).options(**PLAIN)
        writer.text(self.files.path(self._output_folder))
        written = self._written(self._output_folder)
        counted = [self.files.read(file).removesuffix(end) for at, file in written if at == COUNTED]
        return [one for one in written if one[0] != COUNTED], counted

    def _known_spans(self) -> Any:
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

    def _write_new_events(
        self, written: list[tuple[str, str]], sequences: str
    ) -> list[tuple[str, str]]:
        """Write the staged events that are not in the table yet; return their files.

        ``sequences`` is a condition by which Spark skips files.
        """
        folder = f"{self._ledger.staging}/fresh"
        paths = [self.files.path(file) for _, file in written]
        base = self.files.path(self._output_folder)
        places = sorted({place for place, _ in written})
        staged = self.spark.read.schema(_staged()).option("basePath", base).parquet(*paths)
        # A place's suffix after hour and bucket is only the number of a file.
        staged = staged.selectExpr(
            *ACTIVITY.fieldNames(), "substring_index(place, '.', 2) as place"
        ).dropDuplicates(["place", *_KEYS])
        old = self._old_keys(places, sequences)
        if old is not None:
            staged = staged.join(old, list(_KEYS), "left_anti")
        self._write(staged, folder)
        return self._written(folder)

    def _count(self, written: list[tuple[str, str]]) -> int:
        if not written:
            return 0
        paths = [self.files.path(file) for _, file in written]
        return self.spark.read.schema("broker int").parquet(*paths).count()

    def _old_keys(self, places: Iterable[str], sequences: str) -> DataFrame | None:
        """Keys in the table that may equal keys of the step; None if there are none."""
        folders = [folder_of(place) for place in places]
        existing = [self.files.path(folder) for folder in folders if self.files.exists(folder)]
        if not existing:
            return None
        keys = self.spark.read.schema(_part(ACTIVITY, _KEYS)).parquet(*existing)
        return keys.where(sequences)

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

    def compact(self, places: Iterable[str], files_max: int = 1) -> int:
        """Merge the files of places with more than ``files_max``; return how many were replaced."""
        found = {place: self._visible(folder_of(place)) for place in places}
        to_compact = {place: names for place, names in found.items() if len(names) > files_max}
        if not to_compact:
            return 0
        paths = [self.files.path(folder_of(place)) for place in to_compact]
        reader = self.spark.read.schema(ACTIVITY_TABLE).option("basePath", self.files.root)
        frame = reader.parquet(*paths).selectExpr(
            *ACTIVITY.fieldNames(), f"concat({HOUR}, '.', lpad({BUCKET}, 2, '0')) as place"
        )
        folder = f"{self._ledger.staging}/merged"
        self._write(frame, folder)
        old = [
            f"{folder_of(place)}/{name}" for place, names in to_compact.items() for name in names
        ]
        self._commit(self._written(folder), [], old, {}, self._ledger.last.held)
        return len(old)


def _sum_counts(counted: Iterable[str]) -> tuple[Counts, Any]:
    """The tasks' (total counts, spans of sequences)."""
    counts, spans = Counts(), [NO_SPANS]
    for text in counted:
        found = json.loads(text)
        spans.append(spans_from_json(found.pop("spans")))
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
