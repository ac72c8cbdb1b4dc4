"""The files of an activity table on this machine, read without Spark: bucket by bucket.

Owns which files there are and reading them in the order of their hours; it must never know a quota.
Invariant: a bucket's files are told apart by hour, an hour's events are handed out all at once
unless they may be cut, and only with the columns that are asked for. Spark reads such files too,
but its rows would be turned into Arrow's columns one by one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlparse

import pyarrow as pa
import pyarrow.parquet as pq

from minibroker.activity.schema import CHECK_FIELDS, FIELDS, Type

TEXTS: Final = tuple(field.name for field in FIELDS if field.type is Type.TEXT)
_IN_CHECKS: Final = tuple(
    f"{field.name}.{part.name}"
    for field in FIELDS
    for part in CHECK_FIELDS
    if field.type is Type.CHECK and part.type is Type.TEXT
)
"""Columns that are read as numbers and the texts behind them, as these are."""

_PLACE: Final = re.compile(r"hour=([^/]+)/bucket=(\d+)/[^/]+\.parquet$")


class Bucket(NamedTuple):
    """The files of one bucket, by hour."""

    number: int
    hours: tuple[tuple[str, ...], ...]


def buckets_of(path: str) -> list[Bucket]:
    """What lies at a path of this machine; nothing if it is none, or no table cut into buckets."""
    parts = urlparse(path)
    if parts.scheme not in ("", "file"):
        return []
    found: dict[int, dict[str, list[str]]] = {}
    # From the root on, as a cluster's workers are in folders of their own.
    files = sorted(Path(parts.path).absolute().glob("hour=*/bucket=*/*.parquet"))
    for file in files:
        place = _PLACE.search(file.as_posix())
        if place is not None:
            hours = found.setdefault(int(place[2]), {})
            hours.setdefault(place[1], []).append(str(file))
    return [
        Bucket(number, tuple(tuple(hours[hour]) for hour in sorted(hours)))
        for number, hours in sorted(found.items())
    ]


def versions_of(files: Sequence[str]) -> Iterator[int | None]:
    """The least and the largest version of the schema in each, or None for a row without."""
    for file in files:
        metadata = pq.read_metadata(file)
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
    """An hour's events; ``by_group`` cuts files, in which nobody shares anything with others."""
    opened = [pq.ParquetFile(file, read_dictionary=[*TEXTS, *_IN_CHECKS]) for file in files]
    if by_group and len(opened) == 1:
        for group in range(opened[0].num_row_groups):
            yield opened[0].read_row_group(group, columns=list(fields), use_threads=False)
    else:
        parts = [file.read(columns=list(fields), use_threads=False) for file in opened]
        yield pa.concat_tables(parts)
