"""A process that answers lines: one question at a time, each awaited with patience.

Owns the pipes and the waiting. It must never know what the lines mean. Invariant: a process that
ends or stays silent is an error, never an endless wait; after ``close`` it is gone, even if it did
not react to the end of its input.
"""

from __future__ import annotations

import select
import subprocess
import tempfile
from collections.abc import Sequence

from system_tests.harness.waiting import PATIENCE_S, TimedOut


class ProcessEnded(RuntimeError):
    """The process ended instead of answering; the text has the end of its standard error."""


class LineProcess:
    """A running process with its pipes."""

    def __init__(self, command: Sequence[str]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the process)
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, line: str, within_s: float = PATIENCE_S) -> str:
        """Send a line; return the next one. Raises `TimedOut` and `ProcessEnded`."""
        self.send(line)
        return self.receive(within_s)

    def send(self, line: str) -> None:
        """Send a line without waiting for an answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def receive(self, within_s: float = PATIENCE_S) -> str:
        """Return the next line, without its end."""
        assert self._process.stdout is not None
        if not self.is_readable(within_s):
            raise TimedOut(f"the process did not answer: {self._process.args!r}")
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            raise ProcessEnded(f"the process ended:\n{self._errors.read()[-4000:].decode()}")
        return line.decode().rstrip("\n")

    def is_readable(self, within_s: float = 0.0) -> bool:
        """Whether there is an answer, or its end; lines are awaited one at a time, so nothing of
        one can be left in the buffer.
        """
        assert self._process.stdout is not None
        return bool(select.select([self._process.stdout], [], [], within_s)[0])

    def end(self, within_s: float = PATIENCE_S) -> None:
        """Close the input, and wait until the process ends."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(within_s)

    def kill(self) -> None:
        """Kill the process, so that it ends nothing by itself."""
        self._process.kill()
        self._process.wait(PATIENCE_S)

    def close(self) -> None:
        """Kill what is left, and close the pipes."""
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            assert pipe is not None
            pipe.close()
