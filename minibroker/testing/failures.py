"""Failures of a broker's processes, found in the log of its supervisor, which restarts them.

Owns the decision which ends of processes are failures, and the warning about them. It must never
know a broker's handle. Invariant: each failure causes one warning, and a process that was killed
from outside, e.g. by a test or by a fault rule, has not failed. Kafka's ``KafkaClusterTestKit``
rethrows the first fault of any thread (``MockFaultHandler``) when it is closed.
"""

from __future__ import annotations

import re
import signal
import warnings
from collections.abc import Iterator
from typing import Final, NamedTuple

FAILED: Final = re.compile(
    r"^minibroker: (?P<process>\S+) \(pid (?P<pid>\d+)\) (?P<end>died: .*)$",
    re.MULTILINE,
)
"""What the supervisor prints when a process dies.

One that is too slow to stop, for example because of a busy disk, has not failed.
"""
KILLED_FROM_OUTSIDE: Final = f"died: signal {signal.SIGKILL:d} ({signal.SIGKILL.name})"
LOG_LINES_MAX: Final = 50
"""Lines of the log up to the end of a process, which contain its reason."""


class BrokerFailed(UserWarning):
    """A process of a test's broker ended by itself, which its restart would hide.

    The message contains the log up to then. A process that was killed by SIGKILL has not failed.
    """


class ProcessFailure(NamedTuple):
    """One process that ended by itself."""

    process: str
    pid: int
    end: str
    log: str
    """The last lines before its end."""

    def __str__(self) -> str:
        return f"{self.process} (pid {self.pid}) {self.end}; the broker's log:\n{self.log}"


def find_failures(log: str) -> Iterator[ProcessFailure]:
    """Find each process in a broker's log that ended by itself."""
    for found in FAILED.finditer(log):
        if not found["end"].startswith(KILLED_FROM_OUTSIDE):
            before = "\n".join(log[: found.end()].splitlines()[-LOG_LINES_MAX:])
            yield ProcessFailure(found["process"], int(found["pid"]), found["end"], before)


class FailureWarnings:
    """Warnings about the processes of one broker."""

    def __init__(self) -> None:
        self._warned: set[int] = set()
        """Process ids."""

    def warn(self, log: str) -> None:
        """Warn (`BrokerFailed`) of the failures in the broker's log that are new."""
        failures = [each for each in find_failures(log) if each.pid not in self._warned]
        if failures:
            self._warned.update(each.pid for each in failures)
            warnings.warn("\n".join(map(str, failures)), BrokerFailed, stacklevel=3)
