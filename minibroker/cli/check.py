"""``minibroker check``: find anomalies in a history of clients.

Owns the file that is read and the format of the report; `minibroker.lab.checker` owns the rules.
Invariant: no input causes a traceback, and a line longer than the limit is never read as a whole.
It needs no broker. Jepsen's ``kafka`` checker is similar.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import IO

import click

from minibroker.cli.commands import Argument, Command, examples
from minibroker.cli.output import ExitCode, InvalidUsage, emit, json_line
from minibroker.lab.checker.checking import check_lines
from minibroker.lab.checker.history import LINE_CHARS_MAX, InvalidHistory, check_size

EXAMPLES = examples(
    "minibroker check history.jsonl",
    "minibroker check history.jsonl --json | jq .anomalies",
    "python my_clients.py | minibroker check -",
    after="""Exit code 0 means that there is no anomaly, 1 that there is one, and 2 that the
history cannot be read. docs/guides/check-a-history.md describes the format and the anomalies.""",
)


@click.command("check", cls=Command, epilog=EXAMPLES)
@click.argument("source", cls=Argument, metavar="FILE", about="The history; - reads stdin.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
def check_command(source: str, as_json: bool) -> None:
    """Find lost, doubled and reordered records and other anomalies in a history."""
    name = "standard input" if source == "-" else source
    try:
        if source == "-":
            report = check_lines(read_lines(sys.stdin))
        else:
            if os.path.isfile(source):  # A pipe can be read once only.
                with open(source, "rb") as raw:
                    check_size(raw)
            with open(source, encoding="utf-8") as file:
                report = check_lines(read_lines(file))
    except InvalidHistory as error:
        raise InvalidUsage(f"{name}: {error}") from None
    except UnicodeDecodeError as error:
        raise InvalidUsage(f"{name} is not UTF-8: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise InvalidUsage(f"{name} cannot be read: {error.strerror}") from None
    text = json_line(report.to_json()) if as_json else str(report)
    # A key may contain half of a surrogate pair, which no encoding has.
    emit(text.encode(errors="backslashreplace").decode())
    if not report.valid:
        raise click.exceptions.Exit(ExitCode.REFUSED)


def read_lines(file: IO[str]) -> Iterator[str]:
    """Iterate over lines; one that is too long is cut, so that it is rejected."""
    while line := file.readline(LINE_CHARS_MAX + 1):
        yield line
