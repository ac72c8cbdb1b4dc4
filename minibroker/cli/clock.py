"""``minibroker clock``: show, advance, freeze and speed up a broker's clock.

Owns these commands and how a clock is printed. It must never know what waits for the clock.
Invariant: a command returns when every process of the broker has checked its deadlines. Kafka's
clock cannot be changed.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import click

from minibroker.cli.commands import Argument, CommandGroup, examples
from minibroker.cli.control import Connect, control_option
from minibroker.cli.faults import json_option
from minibroker.cli.output import emit, json_line
from minibroker.cli.times import read_duration_ms

PATH: Final = ("v1", "clock")

app = CommandGroup(
    "clock", help="Show, advance, freeze and speed up the broker's clock.", no_args_is_help=True
)


def clock_text(clock: dict[str, Any]) -> str:
    """Say what time it is for the broker, and how its clock runs."""
    time = datetime.fromtimestamp(clock["wall_ms"] / 1000, UTC)
    rate = "" if clock["rate"] == 1 else f" at {clock['rate']:g} times the speed"
    state = "frozen" if clock["frozen"] else f"running{rate}"
    ahead = f"{clock['offset_ms'] / 1000:+.3f} s from the system's clock"
    return f"{time:%Y-%m-%d %H:%M:%S}.{clock['wall_ms'] % 1000:03d} UTC, {state}, {ahead}"


def _print(clock: dict[str, Any], as_json: bool) -> None:
    emit(json_line(clock) if as_json else clock_text(clock))


@app.command("show", epilog=examples("minibroker clock show"))
@control_option
@json_option
def show(connect: Connect, as_json: bool) -> None:
    """Print the broker's time, and how its clock runs."""
    with connect() as api:
        _print(api.get(*PATH), as_json)


@app.command(
    "advance", epilog=examples("minibroker clock advance 45s", "minibroker clock advance 1h30m")
)
@click.argument("duration", cls=Argument, metavar="DURATION", about="E.g. 500ms, 45s, 1h30m.")
@control_option
@json_option
def advance(duration: str, connect: Connect, as_json: bool) -> None:
    """Advance the broker's clock: what is due by then happens now."""
    advance_ms = read_duration_ms("DURATION", duration)
    with connect() as api:
        _print(api.post(*PATH, advance_ms=advance_ms), as_json)


@app.command("freeze", epilog=examples("minibroker clock freeze"))
@control_option
@json_option
def freeze(connect: Connect, as_json: bool) -> None:
    """Stop the broker's clock, so that only `advance` moves it."""
    with connect() as api:
        _print(api.post(*PATH, freeze=True), as_json)


@app.command("run", epilog=examples("minibroker clock run", "minibroker clock run --rate 60"))
@click.option("--rate", type=float, default=1.0, metavar="NUMBER", help="Broker seconds a second.")
@control_option
@json_option
def run(rate: float, connect: Connect, as_json: bool) -> None:
    """Let the broker's clock run, also faster or slower than the system's."""
    with connect() as api:
        _print(api.post(*PATH, freeze=False, rate=rate), as_json)
