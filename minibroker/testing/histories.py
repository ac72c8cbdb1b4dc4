"""Histories of clients in tests: write one, and check it.

Owns the file that operations are written to. It must never know a client library. Invariant: an
invocation is written before the client is called and a completion after it returned, so the order
of lines is a real-time order; threads may share a writer. Jepsen writes its histories like this.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from minibroker.lab.checker.checking import CheckReport, check_lines
from minibroker.lab.checker.history import (
    INVOKE,
    LINE_CHARS_MAX,
    Consumers,
    HistorySettings,
    IsolationLevel,
    check_size,
    header_line,
)

__all__ = ["Consumers", "HistorySettings", "HistoryWriter", "IsolationLevel", "check"]


def check(history: str | os.PathLike[str] | Iterable[str | Mapping[str, Any]]) -> CheckReport:
    """Check a history: a file's path, or its lines as text or objects.

    Raises ``InvalidHistory``. ``assert report.valid, report`` shows each anomaly.
    """
    if isinstance(history, str | os.PathLike):
        with open(history, "rb") as raw:
            check_size(raw)
        with open(history, encoding="utf-8") as file:
            return check_lines(iter(lambda: file.readline(LINE_CHARS_MAX + 1), ""))
    return check_lines(history)


class HistoryWriter:
    """A history file that is being written: ``with HistoryWriter("run.jsonl") as history: ...``."""

    def __init__(
        self, path: str | os.PathLike[str], settings: HistorySettings | None = None
    ) -> None:
        """``settings`` say how the clients are configured, and so which anomalies are allowed."""
        self.path = Path(path)
        self._file = self.path.open("w", encoding="utf-8")
        self._lock = threading.Lock()
        self.write(header_line(settings or HistorySettings()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, line: Mapping[str, Any]) -> None:
        """Write one line."""
        text = json.dumps(line, ensure_ascii=False, separators=(",", ":"))
        with self._lock:
            self._file.write(text + "\n")
            self._file.flush()

    def invoke(self, process: int, operation: str, **fields: Any) -> None:
        """Write that a process starts an operation."""
        self.write({"process": process, "type": INVOKE, "operation": operation, **fields})

    def complete(self, process: int, result: str, operation: str, **fields: Any) -> None:
        """Write that the operation of a process ended with ``ok``, ``fail`` or ``unknown``."""
        self.write({"process": process, "type": result, "operation": operation, **fields})
