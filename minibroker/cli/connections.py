"""``minibroker connections``: show current and rejected connections, live.

Owns the command and control of the terminal, but not the content. Invariant: the terminal is always
restored, and each interval costs the broker one request. It needs no library: drawing over the
previous screen takes three control sequences, and ``rich`` would be another dependency of every
broker. Kafka has no counterpart.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import time
from typing import Final

import click

from minibroker.cli.access import bootstrap_option
from minibroker.cli.commands import Command
from minibroker.cli.connections_view import Emphasis, Line, ViewSize, render_view
from minibroker.cli.control import ControlClient, control_option, find_control
from minibroker.cli.output import emit
from minibroker.client.bootstrap import BootstrapServers

PATH: Final = "/v1/connections"
HOME, REST_OF_LINE, REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
CLEAR, HIDE_CURSOR, SHOW_CURSOR = "\x1b[2J", "\x1b[?25l", "\x1b[?25h"
INTERVAL_S: Final = 1.0

EXAMPLES = """Examples:

\b
  minibroker connections
  minibroker connections --once
  minibroker connections --interval 0.2 --control http://127.0.0.1:8080
  minibroker connections --json | jq .rejections[0].text

Without a terminal, the command prints once. SLOTS shows a processor's queue of new connections;
NEW/S is the rate of new connections. WAITING connections are accepted and wait for a limit or a
processor; HELD connections are delayed by the rate of their IP address. If the broker also rejects
the connection of this command, pass the address of its control API with --control.
"""


@click.command("connections", cls=Command, epilog=EXAMPLES)
@bootstrap_option
@control_option
@click.option("--once", is_flag=True, help="Print once and exit.")
@click.option("--json", "as_json", is_flag=True, help="Print the response of the control API once.")
@click.option(
    "--interval",
    type=click.FloatRange(0.05, 3600),
    default=INTERVAL_S,
    metavar="SECONDS",
    help="Interval between updates.",
)
def connections(
    servers: BootstrapServers, control: str | None, once: bool, as_json: bool, interval: float
) -> None:
    """Show connections live, and why connections were rejected."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # Not every encoding has the characters of slots.
    api = find_control(control, servers)
    try:
        if as_json:
            emit(api.get(PATH).decode().rstrip("\n"))
        elif once or not sys.stdout.isatty():
            _print_once(api)
        else:
            _watch(api, interval)
    finally:
        api.close()


def _print_once(api: ControlClient) -> None:
    # Output that is not on a terminal is not truncated unless COLUMNS is set.
    nowhere = (0, 0)
    columns = shutil.get_terminal_size(nowhere).columns or None
    for line in _look(api, ViewSize(columns)):
        emit(line.rstrip())


def _look(api: ControlClient, room: ViewSize) -> list[str]:
    colours = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return [_text(line, colours=colours) for line in render_view(json.loads(api.get(PATH)), room)]


def _text(line: Line, *, colours: bool) -> str:
    return "".join(
        f"\x1b[{piece.paint}m{piece.text}\x1b[0m"
        if colours and piece.paint is not Emphasis.PLAIN
        else piece.text
        for piece in line
    )


def _watch(api: ControlClient, interval: float) -> None:
    """Redraw until Ctrl-C."""
    before = CLEAR + HIDE_CURSOR
    try:
        while True:
            size = shutil.get_terminal_size()
            lines = _look(api, ViewSize(size.columns, size.lines - 1))
            drawn = "".join(f"{line}{REST_OF_LINE}\n" for line in lines)
            sys.stdout.write(f"{before}{HOME}{drawn}{REST_OF_SCREEN}")
            sys.stdout.flush()
            before = ""
            time.sleep(interval)
    except KeyboardInterrupt:
        sys.stdout.write(f"\r{REST_OF_LINE}")  # Overwrites the terminal's ^C.
    finally:
        sys.stdout.write(SHOW_CURSOR)
        sys.stdout.flush()
