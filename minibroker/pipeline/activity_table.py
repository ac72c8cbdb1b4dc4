"""Reads an activity table: finds its files, validates them, and runs functions over its events.

Owns the activity schema in Spark's types, the errors about tables that don't match it, and the
division of a table into tasks; it must never know what is computed. Invariant: a valid table has
every column with its name and type, so no job checks again; an invalid one raises an error that
names it, the column and a remedy. Spark itself would read a missing column as nulls, and ignore an
unknown one. Files on a local disk are read without Spark, bucket by bucket and in the order of
their hours, because Spark would convert its rows to Arrow one by one.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import (
    DataType,
    IntegerType,
    StringType,
    StructField,
    StructType,
)

from minibroker.lab.activity.events import (
    CHECK_FIELDS,
    FIELDS,
    VERSION,
    ActivityType,
)
from minibroker.pipeline import quota_amounts
from minibroker.pipeline.decoding import OBJECT_SCHEMA
from minibroker.pipeline.errors import RUN_AGAIN, BadInput, WrongSchema
from minibroker.pipeline.quota_amounts import is_held_back

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Files on a disk ---------------------------------------------------------------------------------

TEXTS: Final = tuple(field.name for field in FIELDS if field.type is ActivityType.TEXT)
_IN_CHECKS: Final = tuple(
    f"{field.name}.{part.name}"
    for field in FIELDS
    for part in CHECK_FIELDS
    if field.type is ActivityType.CHECK and part.type is ActivityType.TEXT
)
"""Columns that are read dictionary-encoded, like ``TEXTS``."""

_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://[^/]*)?(?=/)")
"""The scheme and authority of a path, as Hadoop reads it."""
_PLACE: Final = re.compile(r"hour=([^/]+)/bucket=(\d+)/[^/]+\.parquet$")


class Bucket(NamedTuple):
    """The files of one bucket, by hour."""

    number: int
    hours: tuple[tuple[str, ...], ...]


def on_disk(path: str) -> Path | None:
    """The local path; None if the path names another file system."""
    scheme = _URL.match(path)
    if scheme is None:
        return Path(path)
    return Path(path[scheme.end() :]) if scheme[1] == "file" else None


def files_of(path: str) -> list[str]:
    """All files of all buckets."""
    return [file for bucket in buckets_of(path) for hour in bucket.hours for file in hour]


def buckets_of(path: str) -> list[Bucket]:
    """The buckets below a local path; empty if there is none, or no bucketed table."""
    root = on_disk(path)
    if root is None:
        return []
    found: dict[int, dict[str, list[str]]] = {}
    # Absolute, because a cluster's workers have other working directories.
    files = sorted(root.absolute().glob("hour=*/bucket=*/*.parquet"))
    for file in files:
        place = _PLACE.search(file.as_posix())
        if place is not None:
            hours = found.setdefault(int(place[2]), {})
            hours.setdefault(place[1], []).append(str(file))
    return [
        Bucket(number, tuple(tuple(hours[hour]) for hour in sorted(hours)))
        for number, hours in sorted(found.items())
    ]


class Footer(NamedTuple):
    """What a file's footer says about its rows."""

    schema: pa.Schema
    versions: set[int | None]
    """Smallest and largest schema version; None for a row without one."""


def footer_of(file: str) -> Footer:
    """Read a file's footer. Raises BadInput if it has none or can't be read."""
    with _in_words(file):
        metadata = pq.read_metadata(file)
        schema = metadata.schema.to_arrow_schema()
        has_version = "version" in schema.names
        return Footer(schema, set(_versions(metadata, file)) if has_version else set())


@contextmanager
def _in_words(file: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise BadInput(f"{file} was removed; {RUN_AGAIN}") from None
    except (OSError, pa.ArrowException) as error:
        raise BadInput(
            f"{file} cannot be read as Parquet ({error}); it may be truncated or not part of the"
            " table: remove it, or ingest the activity again into a new path"
        ) from error


def _versions(metadata: pq.FileMetaData, file: str) -> Iterator[int | None]:
    paths = [metadata.schema.column(at).path for at in range(metadata.num_columns)]
    for group in range(metadata.num_row_groups):
        known = metadata.row_group(group).column(paths.index("version")).statistics
        if known is None or not known.has_min_max or known.null_count is None:
            yield from pq.read_table(file, columns=["version"])["version"].unique().to_pylist()
        else:
            yield from (known.min, known.max)
            if known.null_count:
                yield None


def read(files: Sequence[str], fields: Sequence[str], *, by_group: bool) -> Iterator[pa.Table]:
    """Read an hour's events; ``by_group`` reads row group by row group, if none share an entity."""
    opened = [_opened(file) for file in files]
    if by_group and len(opened) == 1:
        for group in range(opened[0].num_row_groups):
            with _in_words(files[0]):
                part = opened[0].read_row_group(group, columns=list(fields), use_threads=False)
            yield part
    else:
        parts = []
        for name, file in zip(files, opened, strict=True):
            with _in_words(name):
                parts.append(file.read(columns=list(fields), use_threads=False))
        yield pa.concat_tables(parts)


def _opened(file: str) -> pq.ParquetFile:
    with _in_words(file):
        return pq.ParquetFile(file, read_dictionary=[*TEXTS, *_IN_CHECKS])


# Scans -------------------------------------------------------------------------------------------

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


# Validation --------------------------------------------------------------------------------------

HOUR: Final = "hour"
"""The hour of an event's time in UTC, like 2026-11-20-14: the outer partition of the table."""
BUCKET: Final = "bucket"
"""A hash of the event's user and client-id, or address: the inner partition."""

ACTIVITY: Final = from_arrow_schema(OBJECT_SCHEMA)
"""An event's columns, without the table's partitions."""
ACTIVITY_TABLE: Final = StructType(
    [
        *ACTIVITY.fields,
        StructField(HOUR, StringType(), False),
        StructField(BUCKET, IntegerType(), False),
    ]
)


def sent_bytes() -> Column:
    """The size of an event's response as it was sent; null if it has none."""
    held_back = is_held_back(F.col("api_key"), F.col("exempt"), F.col("throttle_ms"))
    return F.when(held_back, 0).otherwise(F.col("response_bytes"))


def check_columns(found: StructType, wanted: StructType, place: str) -> None:
    """Raise WrongSchema unless ``found`` has all columns of ``wanted``."""
    for problem in _problems(found, wanted, ""):
        raise WrongSchema(f"{place}: {problem}")


def _problems(found: StructType, wanted: StructType, prefix: str) -> Iterator[str]:
    types = {field.name: field.dataType for field in found.fields}
    for field in wanted.fields:
        name = f"{prefix}{field.name}"
        if field.name not in types:
            yield (
                f"column `{name}` is missing, so it was not written by this version of the"
                " pipeline: ingest the activity again into a new path"
            )
        elif isinstance(field.dataType, StructType):
            inner = types[field.name]
            if not isinstance(inner, StructType):
                yield _mistyped(name, inner, field.dataType)
            else:
                yield from _problems(inner, field.dataType, f"{name}.")
        elif types[field.name] != field.dataType:
            yield _mistyped(name, types[field.name], field.dataType)


def _mistyped(name: str, found: DataType, wanted: DataType) -> str:
    return (
        f"column `{name}` is of type {found.simpleString()}, not {wanted.simpleString()}: write it"
        " with that type, or ingest the activity again into a new path"
    )


def check_versions(found: Iterable[int | None], place: str) -> None:
    """Raise WrongSchema for any other version of the schema."""
    for version in found:
        if version != VERSION:
            raise WrongSchema(
                f"{place}: column `version` contains {version}, but this minibroker supports only"
                f" version {VERSION}: use the minibroker that wrote it, or ingest the activity"
                " again"
            )


def read_activity(spark: SparkSession, path: str) -> DataFrame:
    """Read the activity table at ``path``, with exactly its columns.

    Local files are validated one by one. Spark itself checks only one file's schema and reads the
    version column, which is done for remote tables. Raises BadInput if there is no table, and
    WrongSchema if it doesn't match.
    """
    files = files_of(path)
    if files:
        _check_files(files)
        return spark.read.schema(ACTIVITY_TABLE).parquet(path)
    frame = _read_by_spark(spark, path)
    check_columns(frame.schema, ACTIVITY_TABLE, path)
    frame = frame.select(ACTIVITY_TABLE.fieldNames())
    other = frame.where(f"version is null or version <> {VERSION}").select("version").first()
    if other is not None:
        check_versions([other.version], path)
    return frame


def _check_files(files: Iterable[str]) -> None:
    fits = None
    for file in files:
        footer = footer_of(file)
        if footer.schema != fits:
            check_columns(from_arrow_schema(footer.schema), ACTIVITY, file)
            fits = footer.schema
        check_versions(footer.versions, file)


def _read_by_spark(spark: SparkSession, path: str) -> DataFrame:
    from pyspark.errors import AnalysisException

    try:
        frame = spark.read.parquet(path)
    except AnalysisException as error:
        if error.getCondition() == "UNABLE_TO_INFER_SCHEMA":
            raise BadInput(f"{path} contains no events: run `minibroker pipeline ingest`") from None
        raise BadInput(f"{path} cannot be read as a table of Parquet files: {error}") from error
    # Spark guesses the type of a partition column from the folder's name.
    return frame.withColumns(
        {
            name: frame[name].cast(ACTIVITY_TABLE[name].dataType)
            for name in (HOUR, BUCKET)
            if name in frame.columns
        }
    )
