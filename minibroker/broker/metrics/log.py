"""Log lines: one event, one line, on standard error.

Owns the format of a line and the limit of repeated events. It must never know why something is
logged, or wait for anything but the write. Invariant: an event is one line of bounded length
whatever a client put into its fields, and a client that repeats itself causes a bounded number of
lines. Kafka uses log4j; ``ConnectionCloses`` replaces the lines that Kafka's ``Selector`` and
``SocketServer`` write when they close a connection.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple, TextIO

from minibroker.broker.metrics.definitions import CloseReason
from minibroker.broker.metrics.metrics import ProcessMetrics
from minibroker.broker.settings.loggers import ROOT_LOGGER

ROOT: Final = "minibroker"

BURST: Final = 5
"""Lines of one event within ``WINDOW_S`` that are written; the rest are counted."""

WINDOW_S: Final = 10.0

EVENTS_MAX: Final = 256
"""Distinct events at a time; beyond that, the least recently seen one is forgotten."""

VALUE_MAX: Final = 200
"""Characters of one field's value."""

LINE_MAX: Final = 2000
"""Characters of a line: below what a pipe takes in one piece, so that lines never mix."""

WALL_MS_MAX: Final = 253_402_300_799_999
"""The last moment of the year 9999; a clock turned further is shown as this."""

_ORDINARY: Final = frozenset(
    {
        CloseReason.CLIENT_CLOSED,
        CloseReason.CLIENT_RESET,
        CloseReason.IDLE,
        CloseReason.STOPPING,
        CloseReason.RESET,
        CloseReason.UNSUPPORTED_VERSION,  # `network.reports` logs it once for each client
    }
)


class EventLog:
    """Log of one part of the broker: ``log.warning("message", key=value)``.

    The message says which event it is and is a constant; what differs goes into the fields.
    """

    __slots__ = ("_logger",)

    def __init__(self, name: str) -> None:
        """``name`` is the part of the broker, e.g. ``network``."""
        self._logger = logging.getLogger(f"{ROOT}.{name}")

    def debug(self, message: str, /, **fields: object) -> None:
        """Log a detail for debugging."""
        self._write(logging.DEBUG, message, fields)

    def info(self, message: str, /, **fields: object) -> None:
        """Log a rare event of interest to operators."""
        self._write(logging.INFO, message, fields)

    def warning(self, message: str, /, **fields: object) -> None:
        """Log a problem that the broker tolerates, such as a client's bad input."""
        self._write(logging.WARNING, message, fields)

    def error(self, message: str, /, **fields: object) -> None:
        """Log a problem of the broker itself."""
        self._write(logging.ERROR, message, fields)

    def failure(self, message: str, error: BaseException, /, **fields: object) -> None:
        """Log an unexpected exception, with the line that raised it instead of a traceback."""
        self._write(
            logging.ERROR,
            message,
            {**fields, "error": f"{type(error).__name__}: {error}", "at": _raised_at(error)},
        )

    def _write(self, level: int, message: str, fields: Mapping[str, object]) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, "%s", message, extra={"fields": fields})


class ConnectionCloses:
    """Counts and logs the end of each connection of a process."""

    def __init__(self, metrics: ProcessMetrics, log: EventLog) -> None:
        self._metrics = metrics
        self._log = log

    def closed(self, listener: str, reason: CloseReason, /, **fields: object) -> None:
        """Count and log the end of an open connection; ``fields`` describe client and cause."""
        self._metrics.connection_closed(listener, reason)
        self._write("connection closed", listener, reason, fields)

    def refused(self, listener: str, reason: CloseReason, /, **fields: object) -> None:
        """Count and log the end of a connection that no processor had received."""
        self._metrics.connection_refused(listener, reason)
        self._write("connection refused", listener, reason, fields)

    def _write(
        self, message: str, listener: str, reason: CloseReason, fields: Mapping[str, object]
    ) -> None:
        # The message contains the reason, so frequent closes of one kind do not hide others.
        write = self._log.debug if reason in _ORDINARY else self._log.warning
        write(f"{message}: {reason.value}", listener=listener, **fields)


class Admission(NamedTuple):
    """Permission to write a line: how many were left out, and whether it is the last of a burst."""

    left_out: int
    last: bool


class RepeatLimiter:
    """Decides which repeated events are logged. Pure: ``now`` is in seconds."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, int]] = {}

    def admit(self, event: str, now: float) -> Admission | None:
        """Return None if the line is to be left out."""
        began, count = self._seen.pop(event, (now, 0))
        left_out = 0
        if now - began >= WINDOW_S:
            left_out = max(0, count - BURST)
            began, count = now, 0
        while len(self._seen) >= EVENTS_MAX:
            del self._seen[next(iter(self._seen))]
        self._seen[event] = (began, count + 1)
        if count >= BURST:
            return None
        return Admission(left_out, count == BURST - 1)


class _Handler(logging.Handler):
    def __init__(
        self, process: str, wall_ms: Callable[[], int], stream: TextIO, real: Callable[[], float]
    ) -> None:
        super().__init__()
        self._process = process
        self._wall_ms = wall_ms
        self._stream = stream
        self._real = real
        self._limiter = RepeatLimiter()

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        # Repetitions are counted in real time: a frozen clock must not silence the log.
        admission = self._limiter.admit(f"{record.name} {record.levelno} {message}", self._real())
        if admission is None:
            return
        fields: dict[str, object] = dict(getattr(record, "fields", {}))
        if record.exc_info and record.exc_info[1] is not None:
            fields["error"] = repr(record.exc_info[1])
            fields["at"] = _raised_at(record.exc_info[1])
        if admission.left_out:
            fields["left_out"] = admission.left_out
        if admission.last:
            fields["repeats"] = f"left out for {WINDOW_S:g} s"
        line = format_line(self._wall_ms(), self._process, record.levelname, message, fields)
        try:
            self._stream.write(line)
            self._stream.flush()
        except (OSError, ValueError):
            pass  # The reader of the log has ended; the broker continues.


def configure(
    process: str,
    wall_ms: Callable[[], int],
    *,
    stream: TextIO | None = None,
    level: int = logging.INFO,
    real: Callable[[], float] = time.perf_counter,
) -> None:
    """Send this process's log lines to ``stream`` (standard error). A second call replaces it.

    ``process`` is e.g. ``processor-0``; ``wall_ms`` gives the broker's wall clock; ``real`` counts
    real seconds.
    """
    logger = logging.getLogger(ROOT)
    logger.handlers[:] = [_Handler(process, wall_ms, stream or sys.stderr, real)]
    if logger.level != level:  # setting it writes to all loggers, which processes share
        logger.setLevel(level)
    logger.propagate = False


def apply_levels(levels: Mapping[str, int]) -> None:
    """Set the levels of loggers of this process, by their names for clients.

    A logger of a role is the one of each process with that role, such as ``processor-0``.
    """
    known = [name for name in logging.root.manager.loggerDict if name.startswith(f"{ROOT}.")]
    for name, level in levels.items():
        if name == ROOT_LOGGER:
            logging.getLogger(ROOT).setLevel(level)
            continue
        for logger in (name, *(each for each in known if each.startswith(f"{name}-"))):
            logging.getLogger(logger).setLevel(level)


def format_line(
    wall_ms: int, process: str, level: str, message: str, fields: Mapping[str, object]
) -> str:
    """One line, newline included: time (UTC), process, level, message, ``key=value`` …"""
    seconds, milliseconds = divmod(min(wall_ms, WALL_MS_MAX), 1000)
    at = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    parts = [f"{at}.{milliseconds:03}Z {process} {level} {_clean(message)}"]
    parts += [f"{key}={_value(value)}" for key, value in fields.items()]
    line = " ".join(parts)
    return (line if len(line) < LINE_MAX else f"{line[: LINE_MAX - 2]}…") + "\n"


def _value(value: object) -> str:
    text = _address(value) if isinstance(value, tuple) else str(value)
    if len(text) > VALUE_MAX:
        text = f"{text[:VALUE_MAX]}…"
    # What a client sent may hold line breaks, escapes or half a surrogate pair.
    plain = text.isascii() and text.isprintable() and text and not set(text) & _NEEDS_QUOTES
    return text if plain else json.dumps(text)


def _address(value: tuple[object, ...]) -> str:
    """A socket's address as host:port; any other tuple as its items with commas."""
    match value:
        case (str(host), int(port), *_):
            return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return ",".join(map(str, value))


def _clean(message: str) -> str:
    return message if message.isprintable() else json.dumps(message)


_NEEDS_QUOTES: Final = frozenset(' "=')


def _raised_at(error: BaseException) -> str:
    step = error.__traceback__
    if step is None:
        return "unknown"
    while step.tb_next is not None:
        step = step.tb_next
    return f"{step.tb_frame.f_globals.get('__name__', '?')}:{step.tb_lineno}"
