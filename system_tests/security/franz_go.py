"""franz-go, the client in Go, in one process that answers lines of JSON.

Owns that process and the form of the lines; what it does with them is in `franz/main.go`. No
expectations are here. Invariant: each line is answered by one line, and an error that franz-go got
is raised by its name.
"""

from __future__ import annotations

import json
from typing import Any

from system_tests.harness.compiling import built_with_go
from system_tests.harness.jars import PROJECT
from system_tests.harness.line_process import LineProcess

SOURCE = PROJECT / "system_tests" / "security" / "franz"

Rule = dict[str, Any]
"""An access rule, with the words of ``franz/main.go``."""


class ErrorAnswer(Exception):
    """An error that franz-go got: its name, or a text."""


class Franz:
    """A client; `more` is the certificate authority, and mechanism, user and password."""

    def __init__(self, servers: str, *more: str) -> None:
        self._process = LineProcess([str(built_with_go(SOURCE)), servers, *more])

    def ask(self, op: str, **question: Any) -> Any:
        answer = json.loads(self._process.ask(json.dumps({"op": op, **question})))
        if "error" in answer:
            raise ErrorAnswer(answer["error"])
        return answer["is"]

    def close(self) -> None:
        self._process.close()
