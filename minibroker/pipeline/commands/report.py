"""``report``: writes the activity table as one HTML page.

Owns the options and the progress messages; figures, plots and page are made by
``minibroker.pipeline.report``. It must never know how they are computed. Invariant: the file is
written atomically, so a failed report leaves none. Kafka has no counterpart.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from minibroker.pipeline.commands.base import (
    check_table_exists,
    json_option,
    readable_errors,
    running,
    session_options,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from minibroker.broker.quotas.command_lines import QuotaFile
    from minibroker.broker.settings import Settings
    from minibroker.pipeline.report.figures import Figures
    from minibroker.pipeline.whatif.proposal import Proposal

EXAMPLES = """Examples:

\b
  minibroker pipeline report --table activity --into report.html
  minibroker pipeline report --table activity --recommended quotas.txt
  minibroker pipeline report --table activity --quotas now.quotas --quotas tight.quotas
  minibroker pipeline report --table activity --quotas tight.quotas --closed-loop
"""

LINES_MAX = 5
"""Entities listed in the summary."""


@click.command("report", epilog=EXAMPLES)
@click.option("--table", required=True, metavar="PATH", help="The activity table.")
@click.option(
    "--into",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("report.html"),
    help="The page to write.",
)
@click.option(
    "--quotas",
    multiple=True,
    metavar="FILE",
    help="Quota file to replay under; several are compared.",
)
@click.option(
    "--closed-loop",
    is_flag=True,
    help="With --quotas: also delay a connection's next request by the throttle before it.",
)
@click.option(
    "--set",
    "pairs",
    multiple=True,
    metavar="NAME=VALUE",
    help="With --quotas: a broker setting, such as quota.window.num or quota.producer.default.",
)
@click.option(
    "--recommended",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Quota file to compare with the usage, as `recommend` writes it.",
)
@json_option
@session_options
def report(
    table: str,
    into: Path,
    quotas: tuple[str, ...],
    closed_loop: bool,
    pairs: tuple[str, ...],
    recommended: Path | None,
    is_json: bool,
    master: str | None,
    conf: dict[str, str],
) -> None:
    """Write an HTML page of usage, throttling and latency."""
    if not into.absolute().parent.is_dir():
        raise click.BadParameter(
            f"there is no directory {into.absolute().parent}", param_hint="--into"
        )
    for option, given in (("--closed-loop", closed_loop), ("--set", pairs)):
        if given and not quotas:
            raise click.UsageError(f"{option} requires --quotas FILE")
    with readable_errors():
        from minibroker.pipeline.whatif.proposal import settings_of

        settings = settings_of(pairs)
        proposals = proposed(quotas, settings, closed_loop=closed_loop)
        file = None if recommended is None else quota_file(recommended)
        check_table_exists(table, master, conf)
    with running("report", master, conf) as spark:
        from minibroker.pipeline.activity_table import read_activity
        from minibroker.pipeline.report.aggregate import figures

        _say(f"reading {table}")
        activity = read_activity(spark, table)
        found = figures(activity, table, quarantined(spark, table))
        if file is not None:
            from minibroker.pipeline.activity_table import scan_of
            from minibroker.pipeline.report.aggregate import fits

            _say(f"comparing usage with {recommended}")
            scan = scan_of(activity, table)
            beside, count = fits(activity, file, scan, found.coverage.events)
            found = replace(found, fits=beside, fit_count=count)
        if proposals:
            found = _with_proposals(found, activity, proposals, settings, closed_loop=closed_loop)
    from minibroker.pipeline.report.page import page

    _say(f"drawing {len(found.starts_s)} points in time")
    write(into, page(found))
    if is_json:
        click.echo(json.dumps({"into": str(into), **main_figures(found)}))
        return
    for line in summary(found):
        click.echo(line)
    click.echo(f"{into}: {into.stat().st_size / 1e6:.1f} MB; open it in a browser")


def quarantined(spark: SparkSession, table: str) -> int | None:
    """The number of malformed events of ``table``; None if there is no quarantine."""
    from minibroker.pipeline.session import Files
    from minibroker.pipeline.table import quarantine_of

    place = quarantine_of(table)
    return spark.read.parquet(place).count() if Files(spark, place).names("") else None


def quota_file(path: Path) -> QuotaFile:
    """Parse a quota file; raises BadInput."""
    from minibroker.broker.quotas.command_lines import QuotaFileError, parse
    from minibroker.pipeline.errors import BadInput

    try:
        return parse(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError, QuotaFileError) as error:
        raise BadInput(f"{path} is not a valid quota file: {error}") from error


def proposed(paths: Sequence[str], settings: Settings, *, closed_loop: bool) -> list[Proposal]:
    """The quotas of each file. Raises BadInput, before Spark starts."""
    from minibroker.pipeline.errors import BadInput
    from minibroker.pipeline.report.figures import PROPOSALS_MAX
    from minibroker.pipeline.whatif.proposal import proposals_of

    most = PROPOSALS_MAX // (2 if closed_loop else 1)
    if len(paths) > most:
        both = " in both loops" if closed_loop else ""
        raise BadInput(f"{len(paths)} quota files cannot be compared{both}: the maximum is {most}")
    return proposals_of(paths, settings)


def _with_proposals(
    found: Figures,
    activity: DataFrame,
    proposals: Sequence[Proposal],
    settings: Settings,
    *,
    closed_loop: bool,
) -> Figures:
    from minibroker.pipeline.commands.whatif import replayed
    from minibroker.pipeline.report.aggregate import compared
    from minibroker.pipeline.whatif import job
    from minibroker.pipeline.whatif.proposal import counting_of
    from minibroker.pipeline.whatif.rows import CLOSED, OPEN

    counting = counting_of(settings)
    counting = replace(counting, counted_from_ms=job.counted_from(activity, counting))
    outcome = replayed(activity, found.source, proposals, counting, closed_loop=closed_loop)
    loops = [OPEN, CLOSED] if closed_loop else [OPEN]
    outcomes, wholes = compared(outcome, [proposal.name for proposal in proposals], loops)
    return replace(found, outcomes=outcomes, proposals=wholes)


def _say(what: str) -> None:
    click.echo(what, err=True)


def write(path: Path, text: str) -> None:
    """Write the file ``path`` atomically; on failure it keeps its contents."""
    handle, name = tempfile.mkstemp(dir=path.absolute().parent, prefix=f".{path.name}")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def main_figures(figures: Figures) -> dict[str, float]:
    """The page's main figures by name."""
    cover, total = figures.coverage, figures.total
    return {
        "first_us": cover.first_us,
        "last_us": cover.last_us,
        "events": cover.events,
        "dropped": cover.dropped,
        "brokers": cover.broker_count,
        "entities": figures.entity_count,
        "requests": total.requests,
        "throttled": total.throttled,
        "throttle_ms": total.throttle_ms,
    }


def summary(figures: Figures) -> Iterator[str]:
    """The page's main figures, for the terminal."""
    from minibroker.pipeline.report import formats
    from minibroker.pipeline.report.figures import REST

    cover, total = figures.coverage, figures.total
    yield formats.period(cover.first_us, cover.last_us)
    events, brokers = formats.count(cover.events), formats.many(cover.broker_count, "broker")
    entities = formats.many(figures.entity_count, "entity", "entities")
    yield f"{events} events of {brokers}, {formats.count(cover.dropped)} dropped; {entities}"
    throttles = (
        f"{formats.count(total.throttled)} throttled for {formats.duration(total.throttle_ms)}"
    )
    yield f"{formats.many(total.requests, 'request')}, {throttles}"
    listed = [use for use in figures.entities if use.who != REST][:LINES_MAX]
    for use in listed:
        name = formats.visible(formats.party(use.who.user, use.who.client_id), 40)
        worked = formats.share(use.worked_ns / 1e9 / figures.length_s)
        moved = formats.amount(use.bytes_in + use.bytes_out, "B")
        yield f"  {name:40}  {worked:>8} of a core  {moved:>8}  p99 {formats.duration(use.p99_ms)}"
