"""The Parquet files of an activity table on a local disk, read without Spark, bucket by bucket.

Owns finding these files and reading them in the order of their hours; it must never know a quota.
Invariant: a bucket's files are grouped by hour, an hour's events are returned in one table unless
the caller allows it to be split, and only the requested columns are read. Spark reads such files
too, but would convert its rows to Arrow one by one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from minibroker.lab.activity.schema import CHECK_FIELDS, FIELDS, ActivityType
from minibroker.pipeline.errors import RUN_AGAIN, BadInput

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
