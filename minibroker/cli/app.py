"""The commands put together into one application.

Owns the tree of commands and the first page of help; it must never know what a command does.
Invariant: importing this module imports neither trio nor the broker, so that help, mistakes and
clients of a running broker answer at once, and ``start`` pays for the broker's imports only once.
"""

from __future__ import annotations

from typing import Annotated

import typer

from minibroker import __version__
from minibroker.cli import consume, dissect, groups, produce, settings, start, topics
from minibroker.cli.errors import EXIT_CODES_HELP

HELP = """A Kafka broker for tests, experiments and learning, and commands to talk to one.

\b
  minibroker start                            a broker on 127.0.0.1:9092
  minibroker topics create cats --partitions 3
  echo hello | minibroker produce cats
  minibroker consume cats --from-beginning
"""

app = typer.Typer(
    help=HELP,
    epilog=EXIT_CODES_HELP,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"minibroker {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    """Options of the application itself."""


app.command("start", epilog=start.EXAMPLES)(start.start)
app.add_typer(topics.app, name="topics")
app.add_typer(groups.app, name="groups")
app.command("produce", epilog=produce.EXAMPLES)(produce.produce)
app.command("consume", epilog=consume.EXAMPLES)(consume.consume)
app.command("dissect", epilog=dissect.EXAMPLES)(dissect.dissect_command)
app.add_typer(settings.app, name="settings")
