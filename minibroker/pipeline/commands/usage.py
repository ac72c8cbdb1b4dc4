"""``usage``: aggregates usage by entity, as a table and as a short summary.

Owns the options and the summary; the figures are computed by ``minibroker.pipeline.usage``. It must
never compute figures that are not in the table. Invariant: an existing table is never overwritten,
and dropped events are always reported. Kafka has no counterpart.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from minibroker.pipeline.commands.base import (
    check_path_unused,
    check_table_exists,
    columns,
    json_option,
    readable_errors,
    running,
    session_options,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EXAMPLES = """Examples:

\b
  minibroker pipeline usage --table activity --every 60s --into usage
  minibroker pipeline usage --table s3a://fleet/activity --every 1h --master yarn
"""
LINES_MAX: Final = 5
"""Entities listed for each quota."""

_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class Interval(click.ParamType[int]):
    """Whole seconds, or a number with a unit: `90`, `60s`, `5m`, `1h`."""

    name = "interval"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"([1-9][0-9]{0,6})([smhd]?)", value)
        if found is None:
            self.fail(f"'{value}' is not an interval: write e.g. 1s, 60s, 5m or 1h", param, ctx)
        return int(found[1]) * _SECONDS[found[2] or "s"]


@click.command("usage", epilog=EXAMPLES)
@click.option("--table", required=True, metavar="PATH", help="The activity table.")
@click.option(
    "--every",
    type=Interval(),
    default="60s",
    metavar="TIME",
    help="Length of an interval: 1s, 60s, 1h.",
)
@click.option("--into", metavar="PATH", help="The Parquet table to write.")
@json_option
@session_options
def usage(
    table: str,
    every: int,
    into: str | None,
    is_json: bool,
    master: str | None,
    conf: dict[str, str],
) -> None:
    """Aggregate usage by entity: bytes, worker time, mutations and connections."""
    with readable_errors():
        check_table_exists(table, master, conf)
        check_path_unused(into, master, conf)
    with running("usage", master, conf) as spark:
        click.echo(f"reading {table}", err=True)
        found = aggregate_usage(spark, table, every)
        if into is None:
            found = found.persist()
        else:
            write(found, into)
            found = spark.read.parquet(into)
        for line in missing_events(found):
            click.echo(line, err=is_json)
        for line in map(json.dumps, largest(found)) if is_json else summary(found):
            click.echo(line)
        found.unpersist()
    if into is not None and not is_json:
        click.echo(f"{into}: one row for each entity, quota and interval of {every} s")


def aggregate_usage(spark: SparkSession, table: str, every_s: int) -> DataFrame:
    """The usage of an activity table."""
    from minibroker.pipeline import usage as job
    from minibroker.pipeline.activity_table import read_activity, scan_of

    return job.usage_by(scan_of(read_activity(spark, table), table), every_s)


def write(found: DataFrame, into: str) -> None:
    """Write the table as Parquet; raises BadInput if it exists."""
    from pyspark.errors import AnalysisException

    from minibroker.pipeline.errors import BadInput

    try:
        found.write.parquet(into)
    except AnalysisException as error:
        raise BadInput(
            f"{into} cannot be written: {error}; if it already exists, remove it or choose another"
            " path"
        ) from error


def summary(found: DataFrame) -> Iterator[str]:
    """The largest users of each quota, as lines of a table."""
    from minibroker.pipeline.quota_amounts import amount
    from minibroker.pipeline.report import formats

    yield from columns(
        ["QUOTA", "ENTITY", "MEAN", "MAX", "THROTTLED", "FOR", "P99"],
        [
            [
                row["quota"],
                formats.visible(row["ip"] or formats.party(row["user"], row["client_id"]), 40),
                amount(row["quota"], row["mean"]),
                amount(row["quota"], row["most"]),
                formats.count(row["throttled"]),
                formats.duration(row["throttle_ms"]),
                "-" if row["p99"] is None else formats.duration(row["p99"]),
            ]
            for row in largest(found)
        ],
    )


def missing_events(found: DataFrame) -> Iterator[str]:
    """The number of dropped events, if there are any."""
    from minibroker.pipeline.quota_amounts import BROKER, REQUEST
    from minibroker.pipeline.report import formats

    [of_brokers] = (
        found.where(f"level = '{BROKER}' and quota = '{REQUEST}'")
        .selectExpr("coalesce(sum(dropped), 0)", "min(coverage)")
        .collect()
    )
    if of_brokers[0]:
        yield (
            f"{formats.count(of_brokers[0])} events are missing because brokers dropped them; the"
            f" least complete interval has only {formats.share(of_brokers[1])}"
        )


def largest(found: DataFrame) -> list[dict[str, Any]]:
    """The largest users of each quota, with means and maxima in the quota's unit."""
    from minibroker.pipeline.quota_amounts import IP, USER_AND_CLIENT

    rows = (
        found.where(f"level in ('{USER_AND_CLIENT}', '{IP}')")
        .groupBy("quota", "user", "client_id", "ip")
        .agg(*_totals())
        .selectExpr(
            "*",
            "row_number() over (partition by quota order by used desc, user, client_id, ip) as n",
        )
        .where(f"n <= {LINES_MAX}")
        .orderBy("quota", "n")
        .drop("n")
        .collect()
    )
    return [row.asDict() for row in rows]


def _totals() -> list[Any]:
    from pyspark.sql import functions as sql

    by_name = {
        "used": "sum(used)",
        "mean": "sum(used) / sum(seconds)",
        "most": "max(rate)",
        "throttled": "sum(throttled)",
        "throttle_ms": "sum(throttle_ms)",
        "p99": "max(latency_p99_ms)",
    }
    return [sql.expr(value).alias(name) for name, value in by_name.items()]
