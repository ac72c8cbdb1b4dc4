"""An activity table that is written to: steps of ingest, and the joining of small files.

Owns what makes a step: write aside, look whether the table has any of the events already, commit.
It must never know where records come from or what is printed. Invariant: a step counts whole or not
at all, together with its source's progress, and an event is in the table once by (broker, sequence)
however often it comes: a duplicate lies in the same hour and bucket, so only those are looked at,
and of them only files whose sequences overlap the new ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from minibroker.pipeline.filing import FOOTER, PLACED, file_events, pack
from minibroker.pipeline.hadoop import Files
from minibroker.pipeline.layout import COUNTED, QUARANTINED, SORTED_BY, folder_of
from minibroker.pipeline.ledger import Ledger
from minibroker.pipeline.schemas import ACTIVITY, ACTIVITY_TABLE, BUCKET, HOUR

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.types import StructType

FILES_MAX: Final = 16
"""In an hour's bucket, before a step joins them."""
BROKERS_MAX: Final = 64
"""Whose sequences are looked for one by one; of more the extremes of all must do."""

_KEYS: Final = ("broker", "sequence")


def quarantine_of(table: str) -> str:
    """Where the malformed events of a table go: beside it."""
    return f"{table.rstrip('/')}-quarantine"


@dataclass(frozen=True)
class Counts:
    """What became of the records of a step, or of several."""

    records: int = 0
    events: int = 0
    """New in the table."""
    malformed: int = 0

    @property
    def again(self) -> int:
        """Records whose events were there already."""
        return max(self.records - self.events - self.malformed, 0)

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.records + other.records,
            self.events + other.events,
            self.malformed + other.malformed,
        )


class Table:
    """An activity table. One writer at a time."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.spark = spark
        self.files = Files(spark, path)
        self._ledger = Ledger(self.files, Files(spark, quarantine_of(path)))

    @property
    def progress(self) -> dict[str, Any]:
        """Source -> how far it is read."""
        return self._ledger.last.progress

    def step(
        self, records: DataFrame, source: str, progress: dict[str, Any], *, now_ms: int
    ) -> Counts:
        """Take in records of (topic, partition, offset, value, damage).

        ``source`` is what the quarantine calls the place that they are from.
        """
        placed = records.mapInArrow(file_events(source, now_ms), PLACED)
        return self.step_placed(placed, progress)

    def step_placed(self, placed: DataFrame, progress: dict[str, Any]) -> Counts:
        """Take in what ``file_events`` made of records."""
        staging = self._ledger.staging
        packed = placed.repartition("place").mapInArrow(pack, PLACED)
        # Spark has no writer of bytes, but one of texts, which it takes as they are; the mark at
        # the end of a Parquet file is what it is told to end its only line with.
        finished = packed.selectExpr("place", "cast(content as string) as value")
        writer = finished.write.partitionBy("place").option("lineSep", FOOTER.decode())
        writer.text(self.files.path(f"{staging}/all"))
        records = self._counted(f"{staging}/all/place={COUNTED}")
        malformed = self._malformed(f"{staging}/all")
        folder, events, places = self._fresh(staging)
        self._commit(folder, f"{staging}/all", [], progress)
        self.compact(places, FILES_MAX)
        return Counts(records, events, malformed)

    def _counted(self, folder: str) -> int:
        texts = [self.files.read(f"{folder}/{name}") for name in self._visible(folder)]
        return sum(int(text.removesuffix(FOOTER.decode())) for text in texts)

    def _malformed(self, folder: str) -> int:
        place = f"{folder}/place={QUARANTINED}"
        if not self.files.exists(place):
            return 0
        return self.spark.read.schema("reason string").parquet(self.files.path(place)).count()

    def _staged(self, folder: str, schema: StructType) -> DataFrame:
        from pyspark.sql.types import StringType, StructField, StructType

        # Of a list of its own, as `StructType.add` would add to everybody's.
        placed = StructType([*schema.fields, StructField("place", StringType())])
        return (
            self.spark.read.schema(placed)
            .parquet(self.files.path(folder))
            .where(f"place not in ('{QUARANTINED}', '{COUNTED}')")
        )

    def _fresh(self, staging: str) -> tuple[str, int, list[str]]:
        """(folder with only events that are new to the table, their number, their places)."""
        from pyspark.sql import functions as f

        whole = f"{staging}/all"
        keys = self._staged(whole, _part(ACTIVITY, _KEYS))
        spans = (
            keys.groupBy("place", "broker")
            .agg(
                f.count("*").alias("n"),
                f.min("sequence").alias("first"),
                f.max("sequence").alias("last"),
            )
            .collect()
        )
        total = sum(int(span.n) for span in spans)
        places = sorted({str(span.place) for span in spans})
        old = self._old_keys(places, spans)
        if old is None:
            return whole, total, places
        again = keys.join(old, list(_KEYS), "left_semi").count()
        if not again:
            return whole, total, places
        fresh = self._staged(whole, ACTIVITY).join(old, list(_KEYS), "left_anti")
        self._write(fresh, f"{staging}/fresh")
        return f"{staging}/fresh", total - again, places

    def _old_keys(self, places: Iterable[str], spans: list[Row]) -> DataFrame | None:
        """Keys of the table that might be among those in ``spans``; None if there are none."""
        folders = [folder_of(place) for place in places]
        there = [self.files.path(folder) for folder in folders if self.files.exists(folder)]
        if not there:
            return None
        ends: dict[int, tuple[int, int]] = {}
        for span in spans:
            first, last = ends.get(span.broker, (span.first, span.last))
            ends[span.broker] = min(first, span.first), max(last, span.last)
        if len(ends) > BROKERS_MAX:
            firsts, lasts = zip(*ends.values(), strict=True)
            condition = f"sequence between {min(firsts)} and {max(lasts)}"
        else:
            condition = " or ".join(
                f"(broker = {broker} and sequence between {first} and {last})"
                for broker, (first, last) in sorted(ends.items())
            )
        return self.spark.read.schema(_part(ACTIVITY, _KEYS)).parquet(*there).where(condition)

    def _write(self, frame: DataFrame, folder: str) -> None:
        ordered = frame.repartition("place").sortWithinPartitions("place", *SORTED_BY)
        writer = ordered.write.partitionBy("place").option("compression", "zstd")
        writer.parquet(self.files.path(folder))

    def _commit(self, folder: str, aside: str, remove: list[str], progress: dict[str, Any]) -> None:
        number = self._ledger.last.number + 1
        add, malformed = {}, {}
        for at, (place, written) in enumerate(self._written(folder)):
            if place not in (QUARANTINED, COUNTED):
                add[written] = f"{folder_of(place)}/{number:08d}-{at:04d}.parquet"
        for at, (place, written) in enumerate(self._written(aside)):
            if place == QUARANTINED:
                malformed[written] = f"{number:08d}-{at:04d}.parquet"
        self._ledger.commit(add=add, aside=malformed, remove=remove, progress=progress)

    def _written(self, folder: str) -> list[tuple[str, str]]:
        """(place, file) of what was written aside."""
        return [
            (name.removeprefix("place="), f"{folder}/{name}/{file}")
            for name in self.files.names(folder)
            if name.startswith("place=")
            for file in self._visible(f"{folder}/{name}")
        ]

    def _visible(self, folder: str) -> list[str]:
        return [name for name in self.files.names(folder) if not name.startswith(("_", "."))]

    def places(self) -> list[str]:
        """The hours and buckets that hold something."""
        return [
            f"{hour.removeprefix('hour=')}.{int(bucket.removeprefix('bucket=')):02d}"
            for hour in self.files.names("")
            if hour.startswith("hour=")
            for bucket in self.files.names(hour)
            if bucket.startswith("bucket=")
        ]

    def compact(self, places: Iterable[str], most: int = 1) -> int:
        """Join the files of each place that has more than ``most``; how many files it joined."""
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
        self._commit(folder, folder, old, {})
        return len(old)


def _part(schema: StructType, names: Iterable[str]) -> StructType:
    return type(schema)([schema[name] for name in names])
