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

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from minibroker.pipeline import aggregation, quota_amounts
from minibroker.pipeline.aggregation import PERCENTILES
from minibroker.pipeline.quota_units import QUOTAS, UNITS
from minibroker.pipeline.scan import Scan, scan_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


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


def usage(events: DataFrame, every_s: int) -> DataFrame:
    """The usage table of ``events``, as in `usage_by`."""
    return usage_by(partial(scan_frame, events), every_s)


def usage_by(scan: Scan, every_s: int) -> DataFrame:
    """The usage table of all events of a scan, in intervals aligned to 1970.

    Entities have no row for an interval in which they did nothing. A broker that only dropped
    events in an interval has a row without requests.
    """
    add_up = partial(aggregation.partial_sums, every_s=every_s)
    return _together(scan(add_up, aggregation.PARTIAL_SUMS_DDL), every_s)


def _together(parts: DataFrame, every_s: int) -> DataFrame:
    def whole(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return (_final_columns(found, every_s) for found in aggregation.total_sums(batches))

    key = ("broker", "slice_us")
    return parts.repartition(*key).sortWithinPartitions(*key).mapInArrow(whole, _TABLE)


def _final_columns(found: pa.RecordBatch, every_s: int) -> pa.RecordBatch:
    """Convert sums to the columns of the usage table. Done here because Spark would need another
    pass over all rows.
    """
    ints = {name: found[name].to_numpy() for name in (*aggregation.SUMS, "written", "dropped")}
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
