"""What the commands say when something is wrong, and the code they exit with.

Owns the exit codes, which scripts rely on, and the error that carries one. It must never print or
exit itself: a command raises, the entry point reports. Invariant: a message says what is wrong,
where, and how to mend it. Kafka's scripts exit with 1 for everything; these tell causes apart.
"""

from __future__ import annotations

from enum import IntEnum

from protocol.errors import ErrorCode


class ExitCode(IntEnum):
    """How a command ended."""

    OK = 0
    REFUSED = 1
    """The broker answered with an error."""
    USAGE = 2
    """The command line itself is wrong."""
    UNREACHABLE = 3
    """There is no broker there, or it stopped answering."""
    CONFIG = 4
    """A setting, or the file that holds it, is wrong."""
    TOO_FEW = 5
    """``consume`` timed out before ``--max-messages``."""
    INTERRUPTED = 130
    """Stopped with Ctrl-C."""
    TERMINATED = 143
    """Stopped with SIGTERM."""


EXIT_CODES_HELP = """\b
Exit codes: 0 done · 1 the broker refused · 2 wrong command line · 3 no broker there ·
            4 bad setting · 5 consume timed out with too few messages · 130 interrupted ·
            143 terminated"""


class CliError(Exception):
    """A mistake or a failure to report to the person who typed the command."""

    exit_code = ExitCode.REFUSED


class UsageMistake(CliError):
    """Options or arguments that contradict each other, or a file that is not there."""

    exit_code = ExitCode.USAGE


class Unreachable(CliError):
    """Nothing that speaks Kafka's protocol answers at the address."""

    exit_code = ExitCode.UNREACHABLE


class Dropped(Unreachable):
    """A connection that had served ended."""


class BadConfig(CliError):
    """A setting is refused."""

    exit_code = ExitCode.CONFIG


class OutputFailed(CliError):
    """Standard output cannot be written."""


class TooFew(CliError):
    """Fewer messages came than were asked for."""

    exit_code = ExitCode.TOO_FEW


HINTS: dict[ErrorCode, str] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "see `minibroker topics list`, "
    "or create it with `minibroker topics create`",
    ErrorCode.TOPIC_ALREADY_EXISTS: "use --if-not-exists to leave it as it is",
    ErrorCode.OFFSET_OUT_OF_RANGE: "START and END in `minibroker topics describe` say "
    "what there is",
    ErrorCode.UNSUPPORTED_VERSION: "this broker does not serve what the command needs",
    ErrorCode.GROUP_ID_NOT_FOUND: "see `minibroker groups list`",
    ErrorCode.NON_EMPTY_GROUP: "stop its members first: see `minibroker groups describe`",
}


class Refused(CliError):
    """The broker answered with an error code."""

    def __init__(self, what: str, code: int, text: str | None = None) -> None:
        self.code = ErrorCode(code)
        hint = HINTS.get(self.code)
        reason = f"{self.code.name}: {text}" if text else self.code.name
        super().__init__(f"{what}: {reason}" + (f" ({hint})" if hint else ""))


def check(what: str, code: int, text: str | None = None) -> None:
    """Raise `Refused` unless ``code`` is 0."""
    if code:
        raise Refused(what, code, text)
