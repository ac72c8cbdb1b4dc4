"""The tables' columns for Spark, and the validation of input against them.

Owns the activity schema in Spark's types, and the errors about tables that don't match it. It must
never know where a table is or which job reads it. Invariant: a valid table has every column with
its name and type, so no job checks again; an invalid one raises an error that names it, the column
and a remedy. Spark itself would read a missing column as nulls, and ignore an unknown one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from minibroker.lab.activity.schema import (
    CHECK_FIELDS,
    FIELDS,
    VERSION,
    ActivityField,
    ActivityType,
)
from minibroker.pipeline.errors import BadInput, WrongSchema
from minibroker.pipeline.files import files_of, footer_of
from minibroker.pipeline.quota_amounts import is_held_back

HOUR: Final = "hour"
"""The hour of an event's time in UTC, like 2026-11-20-14: the outer partition of the table."""
BUCKET: Final = "bucket"
"""A hash of the event's user and client-id, or address: the inner partition."""

_PLAIN: Final[dict[ActivityType, DataType]] = {
    ActivityType.INT: IntegerType(),
    ActivityType.LONG: LongType(),
    ActivityType.DOUBLE: DoubleType(),
    ActivityType.TEXT: StringType(),
    ActivityType.FLAG: BooleanType(),
}


def _struct(fields: Iterable[ActivityField]) -> StructType:
    return StructType([StructField(field.name, _type(field), True) for field in fields])


def _type(field: ActivityField) -> DataType:
    return _struct(CHECK_FIELDS) if field.type is ActivityType.CHECK else _PLAIN[field.type]


ACTIVITY: Final = _struct(FIELDS)
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
    from pyspark.sql.pandas.types import from_arrow_schema

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
