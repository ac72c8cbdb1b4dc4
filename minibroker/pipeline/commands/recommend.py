"""``recommend``: writes a quota file with a quota for each entity, and its reasons.

Owns the options and the summary; quotas and reasons are decided by
``minibroker.pipeline.recommend``. It must never contact a broker. Invariant: the file is
written atomically, and gaps in the activity are reported before the results. Kafka has no
counterpart.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from minibroker.broker.quotas.types import BY_KEY
from minibroker.broker.settings import (
    CONTROLLER_QUOTA_WINDOW_NUM,
    CONTROLLER_QUOTA_WINDOW_SIZE_SECONDS,
    NUM_IO_THREADS,
    NUM_NETWORK_THREADS,
    QUOTA_WINDOW_NUM,
    QUOTA_WINDOW_SIZE_SECONDS,
    Settings,
)
from minibroker.pipeline.commands.base import (
    check_table_exists,
    columns,
    json_option,
    readable_errors,
    running,
    session_options,
)
from minibroker.pipeline.commands.report import write

if TYPE_CHECKING:
    from minibroker.pipeline.recommend import Recommendation
    from minibroker.pipeline.report.figures import Coverage

EXAMPLES = """Examples:

\b
  minibroker pipeline recommend --table activity --into quotas.txt
  minibroker pipeline recommend --table activity --into quotas.txt --for users+clients \\
      --headroom 1.5 --at-least producer_byte_rate=1000000 --bytes-per-second 1e8
  minibroker configs --alter --quota-file quotas.txt
"""
LEVELS: Final = {"users": "user", "clients": "client", "users+clients": "user+client"}
QUOTAS: Final = tuple(BY_KEY)


def _amounts(
    _: click.Context, option: click.Parameter, values: tuple[str, ...]
) -> dict[str, float]:
    found = {}
    for value in values:
        quota, _equals, number = value.partition("=")
        try:
            found[quota] = float(number)
        except ValueError:
            raise click.BadParameter(f"'{value}' is not QUOTA=NUMBER", param=option) from None
        if quota not in QUOTAS or not found[quota] > 0:
            raise click.BadParameter(
                f"'{value}' needs a number above 0 and one of {', '.join(QUOTAS)}", param=option
            )
    return found


@click.command("recommend", epilog=EXAMPLES)
@click.option("--table", required=True, metavar="PATH", help="The activity table.")
@click.option(
    "--into",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The quota file to write.",
)
@click.option(
    "--for",
    "who",
    type=click.Choice(list(LEVELS)),
    help="Entities that get quotas. [default: users, or clients if no user authenticated]",
)
@click.option(
    "--percentile",
    type=click.FloatRange(1, 100),
    default=99,
    help="Percentile of the rates in busy seconds.",
)
@click.option(
    "--headroom",
    type=click.FloatRange(1),
    default=1.25,
    help="Factor between that rate and the quota.",
)
@click.option(
    "--busy-min",
    type=click.IntRange(1),
    default=60,
    metavar="SECONDS",
    help="Busy seconds that an entity needs for a quota of its own.",
)
@click.option(
    "--default-busy-min",
    type=click.IntRange(1),
    default=10,
    metavar="SECONDS",
    help="Busy seconds that an entity needs for a default to be derived from it.",
)
@click.option(
    "--at-least", multiple=True, callback=_amounts, metavar="QUOTA=N", help="Minimum of a quota."
)
@click.option(
    "--at-most", multiple=True, callback=_amounts, metavar="QUOTA=N", help="Maximum of a quota."
)
@click.option(
    "--workers",
    type=click.IntRange(1),
    help="Network and I/O threads of a broker, 100 % each. [default: from its settings]",
)
@click.option(
    "--bytes-per-second",
    type=click.FloatRange(1),
    metavar="N",
    help="Network bandwidth of a broker, in each direction.",
)
@click.option(
    "--set",
    "pairs",
    multiple=True,
    metavar="NAME=VALUE",
    help="A broker setting, such as quota.window.num or num.io.threads.",
)
@json_option
@session_options
def recommend(
    table: str,
    into: Path,
    who: str | None,
    pairs: tuple[str, ...],
    is_json: bool,
    master: str | None,
    conf: dict[str, str],
    **given: Any,
) -> None:
    """Recommend a quota for each entity, and write them to a file with their reasons."""
    if not into.absolute().parent.is_dir():
        raise click.BadParameter(
            f"there is no directory {into.absolute().parent}", param_hint="--into"
        )
    with readable_errors():
        from minibroker.pipeline.whatif.proposal import settings_of

        settings = settings_of(pairs)
        check_table_exists(table, master, conf)
    with running("recommend", master, conf) as spark:
        from minibroker.broker.quotas.command_lines import render
        from minibroker.pipeline.activity_table import read_activity, scan_of
        from minibroker.pipeline.recommend import (
            Policy,
            head,
            level_of_clients,
            observed,
            quota_lines,
        )
        from minibroker.pipeline.recommend import recommend as decide
        from minibroker.pipeline.report.aggregate import coverage

        click.echo(f"reading {table}", err=True)
        events = read_activity(spark, table)
        cover = coverage(events, None)
        coverage_lines = list(described(cover))
        level = LEVELS[who] if who else level_of_clients(events)
        policy = Policy(**of_broker(settings) | {k: v for k, v in given.items() if v is not None})
        click.echo(f"measuring rates in {cover.events:,} events", err=True)
        rates = observed(scan_of(events, table), level, policy, cover.events)
        found = decide(rates, level, policy)
        lines = quota_lines(found)
    if not lines:
        raise click.ClickException(f"{table} contains no usage that a quota could limit")
    write(into, render(lines, [*head(found, table), *coverage_lines]))
    if is_json:
        for line in coverage_lines:
            click.echo(line, err=True)
        for quota in recommended_quotas(found):
            click.echo(json.dumps(quota))
        return
    for line in [*coverage_lines, *summary(found)]:
        click.echo(line)
    click.echo(f"{into}: {len(lines)} lines; apply: minibroker configs --alter --quota-file {into}")


def recommended_quotas(found: Recommendation) -> Iterator[dict[str, Any]]:
    """Yield each quota of the file with its entity and its reason."""
    from minibroker.pipeline.recommend import decision

    for each in found.decided:
        value, reason = decision(each, found.together[each.quota], found.policy)
        names = {"user": each.user, "client_id": each.client_id, "ip": each.ip}
        about = {"default": each.is_default, "entities": each.entities}
        yield {"quota": each.quota, **names, **about, "value": value, "reason": reason}


def of_broker(settings: Settings) -> dict[str, Any]:
    """A policy's arguments that follow from the broker's settings."""
    return {
        "workers": settings[NUM_NETWORK_THREADS] + settings[NUM_IO_THREADS],
        "window_num": settings[QUOTA_WINDOW_NUM],
        "window_s": settings[QUOTA_WINDOW_SIZE_SECONDS],
        "mutation_window_num": settings[CONTROLLER_QUOTA_WINDOW_NUM],
        "mutation_window_s": settings[CONTROLLER_QUOTA_WINDOW_SIZE_SECONDS],
    }


def described(coverage: Coverage) -> Iterator[str]:
    """Describe the period and the completeness of the events."""
    from minibroker.pipeline.report import formats

    if not coverage.events:
        return
    period = formats.period(coverage.first_us, coverage.last_us)
    yield f"{formats.many(coverage.events, 'event')}, {period}."
    if coverage.dropped:
        yield (
            f"Warning: {formats.many(coverage.dropped, 'more event')} could not be written, so"
            " actual usage was higher than these figures."
        )
    if coverage.sample < 1:
        yield (
            f"Warning: only {formats.share(coverage.sample)} of connections were recorded; all"
            " figures are extrapolated, and those of clients with few connections are rough"
            " estimates."
        )


def summary(found: Recommendation) -> Iterator[str]:
    """The entities, largest value and default of each quota, and whether the sum fits."""
    from minibroker.pipeline.quota_amounts import amount
    from minibroker.pipeline.recommend import decision, omission
    from minibroker.pipeline.report import formats

    rows = []
    defaults = {each.quota: each for each in found.decided if each.is_default}
    shared = defaults | {each.quota: each for each in found.omitted}
    for quota, default in sorted(shared.items()):
        own = [each for each in found.decided if each.quota == quota and not each.is_default]
        together, capacity = found.together[quota], found.policy.capacity(quota)
        values = [decision(each, together, found.policy)[0] for each in own]
        rows.append(
            [
                quota,
                formats.count(len(own)),
                amount(quota, max(values)) if values else "-",
                formats.count(default.entities),
                amount(quota, decision(default, together, found.policy)[0])
                if quota in defaults
                else "none",
                amount(quota, together.needed),
                "-" if capacity is None else amount(quota, capacity),
            ]
        )
        if capacity is not None and together.needed > capacity:
            rows[-1][-1] += f" (quotas scaled to {formats.share(capacity / together.needed)})"
    headings = ["QUOTA", "OWN", "LARGEST", "OTHERS", "DEFAULT", "NEEDED AT A BROKER", "CAPACITY"]
    yield from columns(headings, rows)
    for each in found.omitted:
        yield omission(each, found.policy)
