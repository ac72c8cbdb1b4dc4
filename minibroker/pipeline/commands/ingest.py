"""``ingest`` and ``compact``: read raw events into the activity table, and merge its small files.

Owns the options and the progress messages; the work is done by ``minibroker.pipeline.ingest`` and
``table``. It must never know how events are stored. Invariant: events that are reported as ingested
are committed. Kafka has no counterpart.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from minibroker.pipeline.commands.base import (
    PATTERN,
    check_table_exists,
    command_config_option,
    json_option,
    readable_errors,
    running,
    session_options,
)

if TYPE_CHECKING:
    from minibroker.pipeline.cluster_access import ClusterAccess, ReachableTopic
    from minibroker.pipeline.table import Counts, Table

INGEST_EXAMPLES = """Examples:

\b
  minibroker pipeline ingest --from /var/lib/minibroker --into activity
  minibroker pipeline ingest --from 127.0.0.1:9092 --into activity --follow \\
      --conf spark.jars.packages=org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0

Events that the table already contains are skipped, so you can stop and repeat this at any time.
"""
COMPACT_EXAMPLES = """Examples:

\b
  minibroker pipeline compact --table activity

No other job may write to the table at the same time. A job that reads it may have to be repeated.
"""
FOLLOW_PAUSE_S: Final = 5.0


class ProgressReporter:
    """Prints the progress of an ingest, and its totals."""

    def __init__(self, into: str) -> None:
        from minibroker.pipeline.table import Counts

        self._into = into
        self._total = Counts()
        self._started_at = time.monotonic()

    def step(self, counts: Counts) -> None:
        self._total += counts
        elapsed_s = time.monotonic() - self._started_at
        click.echo(
            f"{elapsed_s:7.1f} s  {self._total.records:,} records read,"
            f" {self._total.events:,} new events",
            err=True,
        )

    def summary(self, *, is_json: bool) -> list[str]:
        from minibroker.pipeline.table import quarantine_of

        total = self._total
        if is_json:
            counts = {
                "into": self._into,
                "records": total.records,
                "events": total.events,
                "duplicates": total.duplicates,
                "malformed": total.malformed,
            }
            return [json.dumps(counts)]
        lines = [f"{total.events:,} events ingested into {self._into}"]
        if total.duplicates:
            lines.append(f"{total.duplicates:,} were already in the table")
        if total.malformed:
            lines.append(
                f"{total.malformed:,} were malformed: see column `reason` of"
                f" {quarantine_of(self._into)}"
            )
        return lines


@click.command("ingest", epilog=INGEST_EXAMPLES)
@click.option(
    "--from",
    "source",
    required=True,
    metavar="DIR|HOST:PORT",
    help="Data directory or address of a broker.",
)
@command_config_option
@click.option("--into", required=True, metavar="PATH", help="The activity table.")
@click.option("--follow", is_flag=True, help="Keep reading new events until stopped.")
@json_option
@session_options
def ingest(
    source: str,
    command_config: str | None,
    into: str,
    follow: bool,
    is_json: bool,
    master: str | None,
    conf: dict[str, str],
) -> None:
    """Read a broker's events into a table, each exactly once."""
    is_broker = ":" in source and not Path(source).exists()
    if not is_broker and not Path(source).is_dir():
        raise click.BadParameter(
            f"there is no directory {source}; write a broker's address as host:port",
            param_hint="--from",
        )
    if PATTERN.search(into):
        raise click.BadParameter(
            f"{into}: Spark would treat it as a pattern; choose a path without *, ?, [ and {{",
            param_hint="--into",
        )
    with readable_errors():
        from minibroker.pipeline.cluster_access import cluster_access_of, find_activity_topic

        broker = cluster_access_of(source, command_config) if is_broker else None
        topic = None if broker is None else find_activity_topic(broker)
    with running("ingest", master, conf) as spark:
        from minibroker.pipeline.table import writing_to

        progress = ProgressReporter(into)
        try:
            with writing_to(spark, into) as table:
                if broker is not None and topic is not None:
                    _from_broker(table, broker, topic, progress, follow)
                else:
                    _from_directory(table, source, progress, follow)
        except KeyboardInterrupt:
            click.echo("stopped; all events reported above are in the table", err=True)
    for line in progress.summary(is_json=is_json):
        click.echo(line)


def _from_directory(table: Table, source: str, progress: ProgressReporter, follow: bool) -> None:
    from minibroker.pipeline.ingest import ingest_directory

    ingest_directory(table, source, progress.step)
    while follow:
        time.sleep(FOLLOW_PAUSE_S)
        ingest_directory(table, source, progress.step)


def _from_broker(
    table: Table,
    broker: ClusterAccess,
    topic: ReachableTopic,
    progress: ProgressReporter,
    follow: bool,
) -> None:
    from pyspark.errors import StreamingQueryException

    from minibroker.pipeline.cluster_access import why
    from minibroker.pipeline.errors import PipelineError
    from minibroker.pipeline.ingest import ingest_broker, skip_deleted

    gone = skip_deleted(table, broker, topic)
    if gone:
        click.echo(
            f"{gone:,} records were deleted by the broker's retention before they could be read",
            err=True,
        )
    query = ingest_broker(table, broker, topic, progress.step, follow=follow)
    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        raise PipelineError(
            f"reading from {broker.bootstrap} failed: {why(table.spark, error, broker)}\n"
            "Events reported above are in the table; run this again to continue."
        ) from error
    finally:
        query.stop()


@click.command("compact", epilog=COMPACT_EXAMPLES)
@click.option("--table", "path", required=True, metavar="PATH", help="The activity table.")
@json_option
@session_options
def compact(path: str, is_json: bool, master: str | None, conf: dict[str, str]) -> None:
    """Merge the files of each hour and bucket into one."""
    with readable_errors():
        check_table_exists(path, master, conf)
    with running("compact", master, conf) as spark:
        from minibroker.pipeline.table import writing_to

        with writing_to(spark, path) as table:
            places = table.places()
            joined = table.compact(places)
    if is_json:
        click.echo(json.dumps({"table": path, "merged": joined, "files": len(places)}))
        return
    click.echo(f"{joined:,} files merged; {len(places):,} hours and buckets have one file each")
