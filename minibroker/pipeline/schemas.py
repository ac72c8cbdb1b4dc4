"""The tables' columns for Spark, and the checks of what is read against them.

Owns how the activity schema looks in Spark, and the errors about tables that don't fit it. It must
never know where a table lies or who asks. Invariant: a table that passes has every column under its
name and type, so that no job looks again; one that doesn't is named with its column and a remedy.
Spark itself would read a missing column as nulls, and an unknown one not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from pyspark.sql import DataFrame, SparkSession
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

from minibroker.activity.schema import CHECK_FIELDS, FIELDS, VERSION, Field, Type
from minibroker.pipeline.errors import BadInput, WrongSchema

HOUR: Final = "hour"
"""Of an event's time in UTC, as 2026-11-20-14: the outer partition of the activity table."""
BUCKET: Final = "bucket"
"""Hash of whom an event is of: the inner partition."""

_PLAIN: Final[dict[Type, DataType]] = {
    Type.INT: IntegerType(),
    Type.LONG: LongType(),
    Type.DOUBLE: DoubleType(),
    Type.TEXT: StringType(),
    Type.FLAG: BooleanType(),
}


def _struct(fields: Iterable[Field]) -> StructType:
    return StructType([StructField(field.name, _type(field), True) for field in fields])


def _type(field: Field) -> DataType:
    return _struct(CHECK_FIELDS) if field.type is Type.CHECK else _PLAIN[field.type]


ACTIVITY: Final = _struct(FIELDS)
"""An event, as in the activity table without its partitions."""
ACTIVITY_TABLE: Final = StructType(
    [
        *ACTIVITY.fields,
        StructField(HOUR, StringType(), False),
        StructField(BUCKET, IntegerType(), False),
    ]
)


def check_columns(frame: DataFrame, wanted: StructType, place: str) -> None:
    """Raise WrongSchema unless ``frame``, read at ``place``, has all columns that are wanted."""
    for problem in _problems(frame.schema, wanted, ""):
        raise WrongSchema(f"{place}: {problem}")


def _problems(found: StructType, wanted: StructType, prefix: str) -> Iterator[str]:
    types = {field.name: field.dataType for field in found.fields}
    for field in wanted.fields:
        name = f"{prefix}{field.name}"
        if field.name not in types:
            yield (
                f"column `{name}` is missing, so it was not written by this version of the"
                " pipeline: ingest the activity again into a new place"
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
        " with that type, or ingest the activity again into a new place"
    )


def check_version(frame: DataFrame, place: str) -> None:
    """Raise WrongSchema if a row of ``frame`` has another version of the schema. Reads it."""
    other = frame.where(f"version is null or version <> {VERSION}").select("version").first()
    if other is not None:
        check_versions([other.version], place)


def check_versions(found: Iterable[int | None], place: str) -> None:
    """Raise WrongSchema if one of those that were found is another version of the schema."""
    for version in found:
        if version != VERSION:
            raise WrongSchema(
                f"{place}: column `version` holds {version}, and this minibroker knows version"
                f" {VERSION}: use the minibroker that wrote it, or ingest the activity again"
            )


def read_table(spark: SparkSession, path: str, wanted: StructType) -> DataFrame:
    """The Parquet table at ``path`` with the columns that are wanted, and only those.

    Raises BadInput when there is no table, and WrongSchema when it is another one.
    """
    from pyspark.errors import AnalysisException

    try:
        frame = spark.read.parquet(path)
    except AnalysisException as error:
        raise BadInput(f"{path} can't be read as a table of Parquet files: {error}") from error
    frame = frame.withColumns(
        # What a folder's name says has no type of its own; Spark guesses one.
        {
            field.name: frame[field.name].cast(field.dataType)
            for field in wanted.fields
            if field.name in (HOUR, BUCKET) and field.name in frame.columns
        }
    )
    check_columns(frame, wanted, path)
    return frame.select(wanted.fieldNames())


def read_activity(spark: SparkSession, path: str) -> DataFrame:
    """The activity table at ``path``, checked. The check of versions reads one column's ends."""
    frame = read_table(spark, path, ACTIVITY_TABLE)
    check_version(frame, path)
    return frame
