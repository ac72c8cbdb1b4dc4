"""franz-go, the client in Go, in one process that answers lines of JSON.

Owns that process and the form of the lines; what it does with them is in `franz/main.go`. No
expectations are here. Invariant: each line is answered by one line, and an error that franz-go got
is raised by its name.
"""

from __future__ import annotations

import json
import select
import subprocess
from typing import Any

from system_tests.harness.compiling import built_with_go
from system_tests.harness.jars import PROJECT
from system_tests.harness.waiting import PATIENCE_S, TimedOut

SOURCE = PROJECT / "system_tests" / "security" / "franz"

Rule = dict[str, Any]
"""An access rule, with the words of ``franz/main.go``."""


class ErrorAnswer(Exception):
    """An error that franz-go got: its name, or a text."""


class Franz:
    """A client; `more` is the certificate authority, and mechanism, user and password."""

    def __init__(self, servers: str, *more: str) -> None:
        self._process = subprocess.Popen(
            [str(built_with_go(SOURCE)), servers, *more],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def ask(self, op: str, **question: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"op": op, **question}).encode() + b"\n")
        self._process.stdin.flush()
        # Answers are awaited one at a time, so nothing of one can be left in the buffer.
        readable, _, _ = select.select([self._process.stdout], [], [], PATIENCE_S)
        if not readable:
            raise TimedOut(f"franz-go did not answer {op}")
        answer = json.loads(self._process.stdout.readline())
        if "error" in answer:
            raise ErrorAnswer(answer["error"])
        return answer["is"]

    def close(self) -> None:
        self._process.kill()
        self._process.wait(10)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
