"""``whatif``: replays recorded activity under other quotas.

Owns the options, the choice of how a table is read, and the output; the replay is done by
``minibroker.pipeline.whatif``. It must never know how quotas are measured. Invariant: the printed
summary and the written table come from the same rows. Kafka has no counterpart.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from minibroker.pipeline.commands.base import (
    check_path_unused,
    check_table_exists,
    json_option,
    readable_errors,
    running,
    session_options,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame

    from minibroker.pipeline.whatif.proposal import Counting, Proposal

EXAMPLES = """Examples:

\b
  minibroker pipeline whatif --table activity --quotas now.quotas --quotas tight.quotas
  minibroker pipeline whatif --table activity --quotas tight.quotas --closed-loop --into outcome

A quota file is what `minibroker pipeline recommend` writes and `minibroker configs` applies.
"""


@click.command("whatif", epilog=EXAMPLES)
@click.option("--table", required=True, metavar="PATH", help="The activity table.")
@click.option(
    "--quotas",
    required=True,
    multiple=True,
    metavar="FILE",
    help="Quota file to replay under; several are compared.",
)
@click.option(
    "--closed-loop",
    is_flag=True,
    help="Also delay a connection's next request by the throttle before it.",
)
@click.option("--into", metavar="PATH", help="The Parquet table to write, with the outcome.")
@click.option(
    "--decisions",
    metavar="PATH",
    help="The Parquet table to write, with the decision on each request.",
)
@click.option(
    "--compare-decisions",
    is_flag=True,
    help="Compare the replayed decisions with the recorded ones. The first quota file must"
    " contain the quotas that were in force.",
)
@click.option(
    "--from-start",
    is_flag=True,
    help="The recording starts with the broker, so its counters were empty. Otherwise decisions in"
    " the first seconds are not reported, because the contents of the counters are unknown.",
)
@click.option(
    "--set",
    "pairs",
    multiple=True,
    metavar="NAME=VALUE",
    help="A broker setting, such as quota.window.num or quota.producer.default.",
)
@json_option
@session_options
def whatif(
    table: str,
    quotas: tuple[str, ...],
    closed_loop: bool,
    into: str | None,
    decisions: str | None,
    compare_decisions: bool,
    from_start: bool,
    pairs: tuple[str, ...],
    is_json: bool,
    master: str | None,
    conf: dict[str, str],
) -> None:
    """Show which clients other quotas would have throttled, when, and for how long."""
    with readable_errors():
        from minibroker.pipeline.whatif.proposal import counting_of, proposals_of, settings_of

        settings = settings_of(pairs)
        proposals = proposals_of(quotas, settings)
        counting = counting_of(settings)
        check_table_exists(table, master, conf)
        for path in (into, decisions):
            check_path_unused(path, master, conf)
    with running("whatif", master, conf) as spark:
        from minibroker.pipeline.activity_table import read_activity
        from minibroker.pipeline.commands.usage import write
        from minibroker.pipeline.whatif import job
        from minibroker.pipeline.whatif.replay_accuracy import accuracy_lines

        _report(f"reading {table}")
        activity = read_activity(spark, table)
        if not from_start:
            counting = replace(counting, counted_from_ms=job.counted_from(activity, counting))
        outcome = replayed(activity, table, proposals, counting, closed_loop=closed_loop)
        outcome.persist()
        try:
            if into is not None:
                write(outcome, into)
            for line in _totals(outcome, proposals, closed_loop, is_json=is_json):
                click.echo(line)
        finally:
            outcome.unpersist()
        if decisions is not None:
            _report(f"writing decisions to {decisions}")
            decided = job.decisions(activity, proposals, counting)
            if closed_loop:
                decided = decided.union(job.decisions(activity, proposals, counting, closed=True))
            write(decided, decisions)
        if compare_decisions:
            click.echo("", err=is_json)
            for line in accuracy_lines(job.replay_accuracy(activity, proposals[0], counting)):
                click.echo(line, err=is_json)
        if not from_start:
            first = f"first {counting.remembered_ms / 1000:g} s of each broker"
            _report(f"\nThe {first} only filled the counters; --from-start includes them.")


def _totals(
    outcome: DataFrame, proposals: Sequence[Proposal], closed_loop: bool, *, is_json: bool
) -> Iterator[str]:
    from minibroker.pipeline.whatif.replay_accuracy import replay_totals, summary
    from minibroker.pipeline.whatif.rows import CLOSED, OPEN

    if is_json:
        yield from map(json.dumps, replay_totals(outcome))
        return
    loops = [OPEN, CLOSED] if closed_loop else [OPEN]
    yield from summary(outcome, [proposal.name for proposal in proposals], loops)


def replayed(
    activity: DataFrame,
    table: str,
    proposals: Sequence[Proposal],
    counting: Counting,
    *,
    closed_loop: bool,
) -> DataFrame:
    """The outcome, replayed bucket by bucket from local files if no counter spans two buckets."""
    from minibroker.pipeline.whatif import job

    buckets = [] if counting.delays else job.buckets_alone(activity, table, proposals)
    if buckets:
        _report(f"replaying {len(buckets)} buckets")
        outcome = job.whatif_of_buckets(activity.sparkSession, buckets, proposals, counting)
    else:
        _report("replaying after a shuffle, because some counters are shared across buckets")
        outcome = job.whatif(activity, proposals, counting)
    if closed_loop:
        _report("replaying again in a closed loop")
        outcome = outcome.union(job.whatif(activity, proposals, counting, closed=True))
    return outcome


def _report(text: str) -> None:
    click.echo(text, err=True)
