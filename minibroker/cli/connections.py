"""``minibroker connections``: who is connected, and who was not let in, as it changes.

Owns the command and its turns with the terminal, never what is drawn. Invariant:
the terminal is left as it was found, whatever ends the command, and to look costs the broker one
question an interval. No library draws it: a picture that is written over the former one needs
three control sequences, and ``rich`` would be one more dependency of every broker. Kafka has no
counterpart.
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
from minibroker.cli.connections_view import Line, Paint, Room, picture
from minibroker.cli.control import Control, control_option, find_control
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
  minibroker connections --json | jq .refusals[0].text

What is not on a terminal is printed once. In SLOTS is drawn which places a processor's queue of
new connections has taken; NEW/S is the rate of new connections; WAITING ones are accepted and wait
for a limit or a processor, HELD ones for the rate of their address. A broker that turns away this
command, too, is asked through its control API: give --control.
"""


@click.command("connections", cls=Command, epilog=EXAMPLES)
@bootstrap_option
@control_option
@click.option("--once", is_flag=True, help="Print it once.")
@click.option("--json", "as_json", is_flag=True, help="Print the control API's answer once.")
@click.option(
    "--interval",
    type=click.FloatRange(0.05, 3600),
    default=INTERVAL_S,
    metavar="SECONDS",
    help="How long to wait before looking again.",
)
def connections(
    servers: BootstrapServers, control: str | None, once: bool, as_json: bool, interval: float
) -> None:
    """Show who is connected, live, and why somebody was turned away."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # slots are drawn with what not all can show
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


def _print_once(api: Control) -> None:
    # What nobody looks at directly is not cut, unless COLUMNS asks for that.
    nowhere = (0, 0)
    columns = shutil.get_terminal_size(nowhere).columns or None
    for line in _look(api, Room(columns)):
        emit(line.rstrip())


def _look(api: Control, room: Room) -> list[str]:
    colours = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return [_text(line, colours=colours) for line in picture(json.loads(api.get(PATH)), room)]


def _text(line: Line, *, colours: bool) -> str:
    return "".join(
        f"\x1b[{piece.paint}m{piece.text}\x1b[0m"
        if colours and piece.paint is not Paint.PLAIN
        else piece.text
        for piece in line
    )


def _watch(api: Control, interval: float) -> None:
    """Draws until Ctrl-C, which is how one is meant to leave."""
    before = CLEAR + HIDE_CURSOR
    try:
        while True:
            size = shutil.get_terminal_size()
            lines = _look(api, Room(size.columns, size.lines - 1))
            drawn = "".join(f"{line}{REST_OF_LINE}\n" for line in lines)
            sys.stdout.write(f"{before}{HOME}{drawn}{REST_OF_SCREEN}")
            sys.stdout.flush()
            before = ""
            time.sleep(interval)
    except KeyboardInterrupt:
        sys.stdout.write(f"\r{REST_OF_LINE}")  # over the ^C that the terminal shows
    finally:
        sys.stdout.write(SHOW_CURSOR)
        sys.stdout.flush()
