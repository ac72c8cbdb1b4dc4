"""One process of each client library that carries out invocations as lines of JSON.

Owns that process. What it does with an invocation is defined by
``minibroker.testing.clients.session``. Invariant: each invocation is answered by one line, or the
test fails after a time.
"""

from __future__ import annotations

import json
from typing import Any, Self

from system_tests.harness.line_process import LineProcess
from system_tests.harness.waiting import PATIENCE_S

Values = list[int]


class ClientProcess:
    """A producer and a consumer in one process."""

    def __init__(self, command: list[str], bootstrap_servers: str, **options: object) -> None:
        self._process = LineProcess(command)
        self._send({"bootstrap_servers": bootstrap_servers, "process": 0, **options})
        self.library: str = self.answer()["client"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.close()

    def end(self) -> None:
        """Let the process close its clients and end."""
        self._process.end(2 * PATIENCE_S)

    def kill(self) -> None:
        """Kill the process, so that it says goodbye to no broker."""
        self._process.kill()

    def _send(self, line: dict[str, Any]) -> None:
        self._process.send(json.dumps(line))

    def request(self, operation: str, **fields: object) -> None:
        """Send an invocation; ``answer`` returns its completion."""
        self._send({"process": 0, "type": "invoke", "operation": operation, **fields})

    def has_answered(self) -> bool:
        """Whether ``answer`` would not wait."""
        return self._process.is_readable()

    def answer(self) -> dict[str, Any]:
        """The completion of the last invocation."""
        found: dict[str, Any] = json.loads(self._process.receive(2 * PATIENCE_S))
        return found

    def ask(self, operation: str, **fields: object) -> dict[str, Any]:
        """Carry out an invocation."""
        self.request(operation, **fields)
        return self.answer()

    def subscribe(self, topic: str) -> None:
        """Consume a topic as a member of the group."""
        assert self.ask("subscribe", keys=[f"{topic}-0"])["type"] == "ok"

    def send(self, key: str, *values: int) -> None:
        """Produce values to a partition."""
        for value in values:
            done = self.ask("send", steps=[{"send": key, "value": value}])
            assert done["type"] == "ok", done

    def poll(self) -> tuple[dict[str, Values], str]:
        """Values by partition, or the text of an error."""
        done = self.ask("poll", steps=[{"poll": {}}])
        if done["type"] != "ok":
            return {}, str(done.get("error"))
        found: dict[str, Values] = {}
        for step in done["steps"]:
            for key, records in (step.get("poll") or {}).items():
                found.setdefault(key, []).extend(value for _, value in records)
        return found, ""
