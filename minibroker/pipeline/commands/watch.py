"""``watch``: raises alerts from live activity, on a terminal and a topic.

Owns the options and the outputs; ``minibroker.pipeline.watch`` decides when an alert is due.
Invariant: an alert is on the topic before it is on the terminal, so every alert seen on the
terminal can be found on the topic. Kafka has no counterpart.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click

from minibroker.pipeline.commands.base import (
    command_config_option,
    readable_errors,
    running,
    session_options,
)
from minibroker.pipeline.watch.rules import Alert, State, WatchLimits, as_json, line

EXAMPLES = """Examples:

\b
  minibroker pipeline watch --from 127.0.0.1:9092
  minibroker pipeline watch --from 127.0.0.1:9092 --alerts-to alerts --checkpoint watch-state
  minibroker pipeline watch --from 127.0.0.1:9092 --json | jq .text
  minibroker pipeline watch --from broker:9093 --command-config client.properties
"""


@click.command("watch", epilog=EXAMPLES)
@click.option("--from", "bootstrap", required=True, metavar="HOST:PORT", help="The broker.")
@command_config_option
@click.option(
    "--alerts-to", "topic", metavar="TOPIC", help="Topic to which alerts are also sent, as JSON."
)
@click.option("--every", default=10, type=click.IntRange(1, 3600), help="Seconds in an interval.")
@click.option(
    "--intervals",
    default=3,
    type=click.IntRange(1, 1000),
    help="Consecutive intervals for an alert.",
)
@click.option(
    "--over",
    default=80.0,
    type=click.FloatRange(1, 1000),
    help="Alert at this percentage of a quota.",
)
@click.option(
    "--noisy", default=30.0, type=click.FloatRange(1, 100),
    help="Percentage of a broker's worker time or bytes that makes a client noisy.",
)  # fmt: skip
@click.option(
    "--late", default=5, type=click.IntRange(0, 3600), help="Seconds to wait for late events."
)
@click.option(
    "--checkpoint", metavar="PATH", help="Directory of the state for a restart. [default: not kept]"
)
@click.option(
    "--from-beginning", is_flag=True, help="Start with the events that the topic already contains."
)
@click.option("--json", "is_json", is_flag=True, help="Print one JSON object per alert.")
@session_options
def watch(
    bootstrap: str,
    command_config: str | None,
    topic: str | None,
    every: int,
    intervals: int,
    over: float,
    noisy: float,
    late: int,
    checkpoint: str | None,
    from_beginning: bool,
    is_json: bool,
    master: str | None,
    conf: dict[str, str],
) -> None:
    """Alert on throttling, nearly exhausted quotas, noisy neighbours and dropped events."""
    limits = WatchLimits(over=over / 100, intervals=intervals, noisy=noisy / 100)
    with readable_errors():
        from minibroker.pipeline.cluster_access import cluster_access_of, find_activity_topic

        broker = cluster_access_of(bootstrap, command_config)
        activity = find_activity_topic(broker)
    # Between alerts, Spark's progress bar would be shown for each interval.
    conf = {"spark.ui.showConsoleProgress": "false", **conf}
    with running("watch", master, conf) as spark, _checkpoint_folder(checkpoint) as place:
        from minibroker.pipeline.watch.rules import Rules
        from minibroker.pipeline.watch.stream import (
            SkippedRecords,
            events_of,
            has_saved_state,
            read_topic,
            to_topic,
            wait_for,
            watch,
        )

        def send(alerts: Sequence[Alert]) -> None:
            if topic is not None:
                to_topic(spark, broker, topic, alerts)
            _print(alerts, is_json=is_json)

        def report_skipped(count: int, total: int) -> None:
            click.echo(
                f"skipped {count:,} records that are not events of this version ({total:,} so far):"
                " `minibroker pipeline ingest` stores each with the reason",
                err=True,
            )

        spark.streams.addListener(SkippedRecords(report_skipped))
        whole = from_beginning or has_saved_state(spark, place)
        events = events_of(read_topic(spark, broker, from_beginning=whole))
        query = watch(
            events, Rules(every, limits), send, checkpoint=place, topic_id=activity.id, late_s=late
        )
        click.echo(f"watching {bootstrap}, in intervals of {every} s; Ctrl-C stops it", err=True)
        wait_for(spark, query, broker)


def _print(alerts: Sequence[Alert], *, is_json: bool) -> None:
    for alert in alerts:
        if is_json:
            click.echo(as_json(alert))
        else:
            raised = alert.state is State.RAISED
            click.secho(line(alert), fg="yellow" if raised else "green")


@contextmanager
def _checkpoint_folder(checkpoint: str | None) -> Iterator[str]:
    """The path of the checkpoint; without one, a temporary folder that is deleted at the end."""
    if checkpoint is not None:
        yield checkpoint
        return
    place = tempfile.mkdtemp(prefix="minibroker-watch-")
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
