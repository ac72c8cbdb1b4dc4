"""``minibroker trace``: print requests, responses and other events as they happen.

Owns the command and its stream of entries. It must never know the layout of a line. Invariant: it
shows only what happened after its start, and leaves the journal on or off as it was. Kafka has a
request log, which a broker's configuration enables.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import urlencode

import click

from minibroker.cli.access import bootstrap_option
from minibroker.cli.commands import Command
from minibroker.cli.control import ControlClient, control_option, find_control
from minibroker.cli.output import emit, json_line, note
from minibroker.cli.trace_lines import TraceLines
from minibroker.client.bootstrap import BootstrapServers

PATH: Final = "/v1/journal"

EXAMPLES = """Examples:

\b
  minibroker trace
  minibroker trace --client-id shop --api Produce -v
  minibroker trace --kind state,fault
  minibroker trace --json | jq .stages.total

One line a request: time, connection, client id, API, version, correlation id, bytes of request and
response, and the milliseconds until the response was sent: in queues, executing, the network
processor's work, sending. The trace switches the broker's journal on and off again. Ctrl-C ends it.
"""


@click.command("trace", cls=Command, epilog=EXAMPLES)
@bootstrap_option
@control_option
@click.option("--client-id", metavar="TEXT", help="Only this client id; * matches any text.")
@click.option("--api", metavar="API", help="Only this API: its name or number.")
@click.option("--connection", metavar="NUMBER", help="Only this connection.")
@click.option("--topic", metavar="TEXT", help="Only requests that name this topic.")
@click.option("--group", metavar="TEXT", help="Only requests that name this group.")
@click.option("--kind", metavar="KINDS", help="Only these kinds of entries, e.g. request,response.")
@click.option("-v", "--verbose", is_flag=True, help="Show what every byte of the frames means.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per entry.")
def trace(
    servers: BootstrapServers,
    control: str | None,
    verbose: bool,
    as_json: bool,
    **conditions: str | None,
) -> None:
    """Print requests, responses and other events as they happen."""
    api = find_control(control, servers)
    try:
        was_on = json.loads(api.get(f"{PATH}/state"))["enabled"]
        state = json.loads(api.send("POST", PATH, {"enabled": True}))
        query = {name: value for name, value in conditions.items() if value is not None}
        query |= {"after": state["last"], "frames": "true" if verbose else "false"}
        entries = _entries(api, f"{PATH}/stream?{urlencode(query)}")
        try:
            _print(entries, TraceLines(frames=verbose), as_json=as_json)
        finally:
            api.close()  # The stream has no end.
            if not was_on:
                api.send("POST", PATH, {"enabled": False})
    finally:
        api.close()


def _entries(api: ControlClient, path: str) -> Iterator[dict[str, Any]]:
    lines = api.lines(path)
    next(lines, b"")  # The stream starts with a blank line.
    note("tracing; press Ctrl-C to end")
    for line in lines:
        if line.strip():
            yield json.loads(line)


def _print(entries: Iterator[dict[str, Any]], lines: TraceLines, *, as_json: bool) -> None:
    try:
        for entry in entries:
            if as_json:
                emit(json_line(entry))
                continue
            for line in lines.take(entry):
                emit(line)
    except KeyboardInterrupt:
        for line in lines.end():
            emit(line)
        note("")  # Below the terminal's ^C.
