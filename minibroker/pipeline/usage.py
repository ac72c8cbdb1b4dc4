"""The usage table: activity events aggregated by entity, quota and interval.

Owns the columns of the usage table and its partitioning into tasks; it must never know the rules by
which an event counts for a quota, or where the figures go. Invariant: the same events in any order
and on any number of cores give the same figures, because all sums are of integers; dropped events
are reported next to written ones. Kafka measures the same in ``ClientQuotaManager`` and
``RequestMetrics``, but does not keep it.

A sampled event represents ``1 / sample`` events. Each event counts on several levels: for the whole
broker, for its user, for its client-id and for both together, or for its address, so that quotas
can be planned for a level that has none yet. Requests without a client-id count for the broker and
the user only, because no client-id quota applies to them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from minibroker.pipeline import aggregation, cells, quota_amounts
from minibroker.pipeline.files import read
from minibroker.pipeline.latencies import PERCENTILES
from minibroker.pipeline.quota_units import IP, LEVELS, QUOTAS, UNITS, USER_AND_CLIENT
from minibroker.pipeline.workers import freeze_loaded_objects

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TASKS_MAX: Final = 64
TASKS_A_CORE: Final = 4
"""Tasks per core for reading files: several, because tasks differ in size, but limited for tables
of months.
"""


class Kept(NamedTuple):
    """A column of the usage table, with its Spark type."""

    name: str
    type: str
    unit: str
    meaning: str


COLUMNS: Final = (
    Kept("broker", "int", "", "`broker.id`"),
    Kept(
        "level",
        "string",
        "",
        "the kind of entity: `broker`, `user`, `client`, `user+client` or `ip`",
    ),
    Kept("user", "string", "", "name of the authenticated user; null on other levels"),
    Kept("client_id", "string", "", "client-id of the requests; null on other levels"),
    Kept("ip", "string", "", "IP address of the client; null on other levels"),
    Kept(
        "quota",
        "string",
        "",
        "name of the quota: `producer_byte_rate`, `consumer_byte_rate`, "
        "`request_percentage`, `controller_mutation_rate` or `connection_creation_rate`",
    ),
    Kept("start", "timestamp", "UTC", "start of the interval, inclusive"),
    Kept("seconds", "int", "s", "length of the interval"),
    Kept(
        "used",
        "double",
        "bytes, percent-seconds, partitions, connections",
        "total usage, without rejected changes and bytes that a throttled fetch did not return",
    ),
    Kept("rate", "double", "as the quota", "`used` per second, averaged over the interval"),
    Kept(
        "rate_max",
        "double",
        "as the quota",
        "the highest rate that the broker measured for this entity; null if it "
        "measured on another level or not at all",
    ),
    Kept(
        "bound",
        "double",
        "as the quota",
        "the quota in force for this entity, the highest if it changed; null if "
        "there is none, and for IP addresses",
    ),
    Kept("requests", "double", "", "number of requests, or of connections for an IP address"),
    Kept("errors", "double", "", "number of failed requests, or of rejected connections"),
    Kept("throttled", "double", "", "number of requests or connections that this quota throttled"),
    Kept("throttle_ms", "double", "ms", "total throttle time"),
    Kept("throttle_max_ms", "int", "ms", "longest throttle"),
    *(
        Kept(f"latency_p{share}_ms", "double", "ms", f"{share}th percentile of the latency")
        for share in PERCENTILES
    ),
    Kept("events", "bigint", "", "number of events, without extrapolation of samples"),
    Kept(
        "dropped", "bigint", "", "number of events that the broker could not write in this interval"
    ),
    Kept(
        "coverage",
        "double",
        "0 to 1",
        "share of the broker's events that were written in this interval",
    ),
)
"""All columns of the usage table, in their order."""
_TABLE: Final = ", ".join(f"{column.name} {column.type}" for column in COLUMNS)
_UTC: Final = pa.timestamp("us", "UTC")


def counted(events: DataFrame, every_s: int) -> DataFrame:
    """A row for each event and quota for which it counts, as in `quota_amounts.Events.rows`."""
    looked_at = events.select(*quota_amounts.FIELDS)
    return looked_at.mapInArrow(partial(quota_amounts.rows, every_s=every_s), quota_amounts.FLAT)


def usage(events: DataFrame, every_s: int) -> DataFrame:
    """The usage table of ``events``, in intervals aligned to 1970.

    Entities have no row for an interval in which they did nothing. A broker that only dropped
    events in an interval has a row without requests.
    """

    def parts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return aggregation.partial_sums(
            (pa.Table.from_batches([batch]) for batch in batches), every_s
        )

    return _together(
        events.select(*quota_amounts.FIELDS).mapInArrow(parts, aggregation.PARTIAL_SUMS_DDL),
        every_s,
    )


def usage_of_files(spark: SparkSession, files: Sequence[str], every_s: int) -> DataFrame:
    """The usage table of an activity table's local files.

    Faster than reading them by Spark, which would convert its rows to Arrow one by one.
    """

    def parts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_loaded_objects()
        tables = (
            table
            for batch in batches
            for number in batch.column(0).to_pylist()
            for table in read([files[number]], quota_amounts.PATHS, by_group=True)
        )
        return aggregation.partial_sums(tables, every_s)

    most = min(TASKS_MAX, TASKS_A_CORE * spark.sparkContext.defaultParallelism)
    numbers = spark.range(0, len(files), 1, max(1, min(len(files), most)))
    return _together(numbers.mapInArrow(parts, aggregation.PARTIAL_SUMS_DDL), every_s)


def _together(parts: DataFrame, every_s: int) -> DataFrame:
    def whole(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return (_final_columns(found, every_s) for found in aggregation.total_sums(batches))

    key = ("broker", "slice_us")
    return parts.repartition(*key).sortWithinPartitions(*key).mapInArrow(whole, _TABLE)


def on_levels(rows: DataFrame, levels: Collection[str]) -> DataFrame:
    """Repeat each row for every level that it belongs to, with the names of that level only."""
    names = LEVELS[USER_AND_CLIENT] + LEVELS[IP]
    others = ", ".join(name for name in rows.columns if name not in names)
    # The names of each level, and the level itself if all of its names are present.
    each = ", ".join(
        f"({', '.join(f'{name}_{at}' for name in names)}, level_{at})"
        for at, _ in enumerate(levels)
    )
    made = ", ".join(
        f"{name if name in LEVELS[level] else 'cast(null as string)'} as {name}_{at}"
        for at, level in enumerate(levels)
        for name in names
    )
    there = ", ".join(
        f"if({_all_there(LEVELS[level])}, '{level}', null) as level_{at}"
        for at, level in enumerate(levels)
    )
    return rows.sparkSession.sql(
        f"""
        with each as (select {others}, {made}, {there} from {{rows}})
        select {others}, {", ".join(names)}, level
        from each unpivot (({", ".join(names)}, level) for number in ({each}))
        where level is not null
        """,
        rows=rows,
    )


def _all_there(names: Collection[str]) -> str:
    return " and ".join(f"{name} is not null" for name in names) or "true"


def _final_columns(found: pa.RecordBatch, every_s: int) -> pa.RecordBatch:
    """Convert sums to the columns of the usage table. Done here because Spark would need another
    pass over all rows.
    """
    ints = {name: found[name].to_numpy() for name in (*cells.SUMS, "written", "dropped")}
    units = np.array([UNITS.get(quota, 1) for quota in QUOTAS])
    quotas = pc.index_in(found["quota"], pa.array(QUOTAS)).to_numpy()
    used = ints["amount"] / units[quotas]
    made = {
        "start": found["start_us"].cast(_UTC),
        "seconds": np.full(len(found), every_s, np.int32),
        "used": used,
        "rate": used / every_s,
        "rate_max": found["measured"],
        "throttle_ms": ints["throttle_ms"].astype(np.float64),
        "throttle_max_ms": found["throttle_max_ms"].cast(pa.int32()),
        "coverage": ints["written"] / (ints["written"] + ints["dropped"]),
        **{
            name: ints[name] / quota_amounts.PER_EVENT
            for name in ("requests", "errors", "throttled")
        },
        **{f"latency_p{share}_ms": pc.divide(found[f"p{share}"], 1000) for share in PERCENTILES},
    }
    return pa.RecordBatch.from_pydict(
        {
            name: made[name] if name in made else found[name]
            for name in (each.name for each in COLUMNS)
        }
    )
