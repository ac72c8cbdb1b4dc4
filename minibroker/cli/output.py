"""Output of commands: tables, JSON lines, and errors with their exit codes and hints.

Owns the exit codes, which scripts rely on, the error messages of the command line, the layout of
tables and the escaping of bytes that are not text. It must never know the meaning of the rows, or
exit: a command raises an error, and the entry point reports it. Invariant: a message says what is
wrong, where, and how to fix it; columns are separated by at least two spaces, so that ``awk`` and
``cut`` work; a JSON line contains no line break. Kafka's scripts exit with 1 for every error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Final

from minibroker.client.errors import (
    BrokerError,
    BrokerUnreachable,
    ClientError,
    ConnectionDropped,
    InvalidArgument,
    InvalidClientConfig,
    NotConnected,
    Remedy,
)
from minibroker_protocol.errors import ErrorCode


class ExitCode(IntEnum):
    """Exit status of a command."""

    OK = 0
    REFUSED = 1
    """The broker answered with an error, or the command failed."""
    USAGE = 2
    """The command line is invalid."""
    UNREACHABLE = 3
    """No broker answers at the address."""
    CONFIG = 4
    """A setting or a configuration file is invalid."""
    TOO_FEW = 5
    """``consume`` timed out before ``--max-messages``."""
    INTERRUPTED = 130
    """Stopped with Ctrl-C."""
    TERMINATED = 143
    """Stopped with SIGTERM."""


EXIT_CODES_HELP = """\b
Exit codes: 0 success · 1 request rejected · 2 invalid command line · 3 broker unreachable ·
            4 invalid setting · 5 consume timed out with too few messages · 130 interrupted ·
            143 terminated"""


class CliError(Exception):
    """A failure that is reported to the user of the command."""

    exit_code = ExitCode.REFUSED


class InvalidUsage(CliError):
    """An invalid option or argument, conflicting options, or a missing file."""

    exit_code = ExitCode.USAGE


class Unreachable(CliError):
    """The control API or ZooKeeper does not answer at the address."""

    exit_code = ExitCode.UNREACHABLE


class BadConfig(CliError):
    """A setting is invalid."""

    exit_code = ExitCode.CONFIG


class OutputFailed(CliError):
    """Standard output cannot be written."""


class TooFewMessages(CliError):
    """``consume`` timed out before ``--max-messages``."""

    exit_code = ExitCode.TOO_FEW


HINTS: Final[dict[ErrorCode, str]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "see `minibroker topics list`, "
    "or create it with `minibroker topics create`",
    ErrorCode.TOPIC_ALREADY_EXISTS: "use --if-not-exists to leave it as it is",
    ErrorCode.OFFSET_OUT_OF_RANGE: "see START and END in `minibroker topics describe`",
    ErrorCode.UNSUPPORTED_VERSION: "the broker does not support an API that the command needs",
    ErrorCode.GROUP_ID_NOT_FOUND: "see `minibroker groups list`",
    ErrorCode.SECURITY_DISABLED: "start the broker with authorizer.class.name: "
    "see `minibroker settings explain authorizer.class.name`",
    ErrorCode.NON_EMPTY_GROUP: "stop its members first: see `minibroker groups describe`",
}

REMEDIES: Final = {
    Remedy.START_BROKER: "start a broker with `minibroker start`, "
    "or name another one with --bootstrap-server HOST:PORT",
    Remedy.CORRECT_ADVERTISED_ADDRESS: "set advertised.listeners of the broker to the address at "
    "which this client reaches it",
    Remedy.CONFIGURE_SECURITY: "pass the client's security settings with --command-config FILE",
}

EXIT_CODES: Final[dict[type[ClientError], ExitCode]] = {
    InvalidArgument: ExitCode.USAGE,
    InvalidClientConfig: ExitCode.CONFIG,
    BrokerUnreachable: ExitCode.UNREACHABLE,
    NotConnected: ExitCode.UNREACHABLE,
    ConnectionDropped: ExitCode.UNREACHABLE,
}
"""Exit codes of the client's errors; all others are REFUSED."""


def exit_code(error: CliError | ClientError) -> ExitCode:
    """Choose the exit code for an error."""
    if isinstance(error, CliError):
        return error.exit_code
    return EXIT_CODES.get(type(error), ExitCode.REFUSED)


def error_message(error: CliError | ClientError) -> str:
    """Describe an error, with a hint at the command that helps."""
    if isinstance(error, BrokerUnreachable) and error.remedy is not None:
        return f"{error}; {REMEDIES[error.remedy]}"
    hint = HINTS.get(error.code) if isinstance(error, BrokerError) else None
    return f"{error} ({hint})" if hint else str(error)


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Format rows as columns; numbers are aligned to the right, names are made printable."""
    cells = [[printable(str(cell)) for cell in row] for row in rows]
    numeric = [
        bool(rows) and all(isinstance(row[column], int) for row in rows)
        for column in range(len(headings))
    ]
    widths = [
        max([len(heading), *(len(row[column]) for row in cells)])
        for column, heading in enumerate(headings)
    ]

    def line(row: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        )
        return "  ".join(padded).rstrip()

    return "\n".join(line(row) for row in ([*headings], *cells))


def printable(name: str) -> str:
    """Escape what clients may put into names, such as line breaks and sequences of terminals."""
    if name.isprintable():
        return name
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in name
    )


def text_or_none(raw: bytes | memoryview | None) -> str | None:
    """Decode ``raw``; bytes that are not UTF-8 become ``\\xff`` escapes."""
    return None if raw is None else bytes(raw).decode("utf-8", errors="backslashreplace")


def json_line(value: Mapping[str, object]) -> str:
    """Format ``value`` as one line of JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def emit(line: str) -> None:
    """Print ``line`` to standard output and flush it for the reader of a pipe.

    Raises ``OutputFailed``.
    """
    try:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputFailed(f"standard output cannot be written: {error.strerror}") from None


def note(line: str) -> None:
    """Print a message for the user to standard error."""
    print(line, file=sys.stderr)
