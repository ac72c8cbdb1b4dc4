"""``minibroker judge``: say which rules of good behavior a client kept and broke.

Owns where the journal is read from and the forms of the report; `minibroker.lab.verdicts` owns the
rules. It must never judge. Invariant: exactly one source is read, a line of a file that is longer
than the limit is never read as a whole, and the exit code says whether a rule was broken.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

import click

from minibroker.cli.commands import Command, examples
from minibroker.cli.control import Connect, control_option
from minibroker.cli.output import CliError, ExitCode, InvalidUsage, emit, json_line
from minibroker.client.control import journal_pages
from minibroker.lab.journal.entries import JournalEntry
from minibroker.lab.verdicts.all_rules import RULES
from minibroker.lab.verdicts.judging import UnknownClient, UnknownRule, judge
from minibroker.lab.verdicts.report import report_json, report_markdown, report_text
from minibroker.lab.verdicts.saved_journal import (
    LINE_CHARS_MAX,
    InvalidJournal,
    entries_of_lines,
    entry_of_json,
)

PAGE_ENTRIES: Final = 5000
"""Entries that are read from a broker at once."""

EXAMPLES = examples(
    "minibroker judge --client-id my-app",
    "minibroker judge --client-id 'consumer-*' --allow software-name --markdown report.md",
    'curl "$control_url/v1/journal/stream?frames=true" > journal.jsonl',
    "minibroker judge --client-id my-app --journal journal.jsonl --json",
    "minibroker judge --rules",
    after="""Exit code 0 means that the client broke no rule, 1 that it broke one or that
entries of the journal are lost, and 2 that there is no such client.
docs/guides/judge-a-client.md describes the rules.""",
)


@click.command("judge", cls=Command, epilog=EXAMPLES)
@click.option("--client-id", metavar="ID", help="The client; * matches any text.")
@click.option("--namespace", metavar="NAME", help="Judge what the client did in this namespace.")
@control_option
@click.option("--journal", metavar="FILE", help="A saved journal; - reads stdin.")
@click.option("--allow", metavar="RULE", multiple=True, help="A rule that may be broken.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
@click.option("--markdown", metavar="FILE", help="Write the report as a page, too.")
@click.option("--rules", "is_list", is_flag=True, help="List the rules.")
def judge_command(
    client_id: str | None,
    namespace: str | None,
    connect: Connect,
    journal: str | None,
    allow: tuple[str, ...],
    as_json: bool,
    markdown: str | None,
    is_list: bool,
) -> None:
    """Say which rules of good behavior a client kept and broke."""
    if is_list:
        for rule in RULES:
            emit(f"{rule.id} ({rule.severity}, {rule.source})\n  {rule.statement}")
        return
    if client_id is None:
        raise InvalidUsage("--client-id is missing")
    try:
        if journal is None:
            entries, pending = entries_of_broker(connect)
        else:
            entries, pending = entries_of_file(journal), 0
        report = judge(entries, client_id, allowed=allow, dropped=pending, namespace=namespace)
    except (UnknownClient, UnknownRule) as error:
        raise InvalidUsage(str(error)) from None
    if markdown is not None:
        write_page(Path(markdown), report_markdown(report))
    emit(json_line(report_json(report)) if as_json else report_text(report))
    if not report.behaves_well:
        raise click.exceptions.Exit(ExitCode.REFUSED)


def entries_of_broker(connect: Connect) -> tuple[list[JournalEntry], int]:
    """Read all entries of a broker's journal; return also how many it does not have yet."""
    entries: list[JournalEntry] = []
    pending = 0
    with connect() as api:
        try:
            for page in journal_pages(api, frames="true", limit=PAGE_ENTRIES):
                entries += map(entry_of_json, page["entries"])
                pending = page["pending"]
        except (InvalidJournal, KeyError, ValueError) as error:
            raise CliError(f"{api.url} does not answer with a journal: {error}") from None
    return entries, pending


def entries_of_file(path: str) -> list[JournalEntry]:
    """Read a saved journal."""
    name = "standard input" if path == "-" else path
    try:
        if path == "-":
            return list(entries_of_lines(read_lines(sys.stdin)))
        with open(path, encoding="utf-8") as file:
            return list(entries_of_lines(read_lines(file)))
    except InvalidJournal as error:
        raise InvalidUsage(f"{name}: {error}") from None
    except UnicodeDecodeError as error:
        raise InvalidUsage(f"{name} is not UTF-8: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise InvalidUsage(f"{name} cannot be read: {error.strerror}") from None


def read_lines(file: IO[str]) -> Iterator[str]:
    """Iterate over lines; one that is too long is cut, so that it is rejected."""
    while line := file.readline(LINE_CHARS_MAX + 1):
        yield line


def write_page(path: Path, page: str) -> None:
    """Write a page. Raises ``CliError``."""
    try:
        path.write_text(page, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise CliError(f"{path} cannot be written: {error.strerror}") from None
