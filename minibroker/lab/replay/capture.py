"""A capture: the requests and responses of all clients of a broker, as lines of JSON.

Owns how lines become requests with their responses, in the broker's order. It must never know how a
capture is recorded or replayed. Invariant: every request of a capture has its bytes; those that the
journal did not keep are only counted. The lines are those of ``GET /v1/journal?frames=true``. In
Kafka: the request log.
"""

from __future__ import annotations

import base64
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from minibroker_protocol.errors import DecodeError, UnsupportedVersion
from minibroker_protocol.headers import RequestHeader, decode_request_header

LINE_CHARS_MAX: Final = 1024 * 1024
"""A longer line is rejected: frames have at most 64 KiB."""
LINES_MAX: Final = 1_000_000
"""Lines of one capture."""

_WRONG_VALUES: Final = (ValueError, OverflowError, TypeError, KeyError, RecursionError)
REQUEST, RESPONSE, LOST = "request", "response", "lost"


class InvalidCapture(ValueError):
    """Lines that are no capture; the text names the line."""


@dataclass(frozen=True, slots=True)
class Captured:
    """A request and, unless it has none or it was not kept, its response.

    Frames are without size. ``order`` and ``answered_order`` are positions in the journal.
    """

    order: int
    connection: str
    clock_ms: float
    header: RequestHeader
    frame: bytes
    answered_order: int | None = None
    answered_ms: float | None = None
    response: bytes | None = None

    @property
    def latency_ms(self) -> float:
        """Time until the response on the broker's clock; 0 without a response."""
        return 0.0 if self.answered_ms is None else max(self.answered_ms - self.clock_ms, 0.0)


class Capture(NamedTuple):
    """All requests in order, and the number of those without bytes by API; entries that the
    journal has lost are `lost`.
    """

    requests: tuple[Captured, ...]
    skipped: Mapping[str, int]


def read_capture(lines: Iterable[str]) -> Capture:
    """Read the lines of a capture. Raises ``InvalidCapture``."""
    found: dict[int, Captured] = {}
    waiting: dict[tuple[str, int], int] = {}
    skipped: Counter[str] = Counter()
    for number, line in enumerate(lines, 1):
        if number > LINES_MAX:
            raise InvalidCapture(f"there are more than {LINES_MAX} lines")
        if not line.strip():
            continue
        try:
            entry = _decoded(line)
            if entry["kind"] not in {REQUEST, RESPONSE}:
                skipped.update(_lost(entry))
                continue
            if entry["correlation_id"] is None:  # A token of SASL, or no request at all.
                if entry["kind"] == REQUEST:
                    skipped["unknown"] += 1
                continue
            key = str(entry["connection"]), int(entry["correlation_id"])
            if entry["kind"] == RESPONSE:
                order = waiting.pop(key, None)
                if order is not None:
                    found[order] = _answered(found[order], entry)
            elif entry["frame"] is None:
                skipped[str(entry["api"])] += 1
            else:
                request = _request(entry)
                found[request.order] = request
                waiting[key] = request.order
        except (*_WRONG_VALUES, DecodeError) as error:
            raise InvalidCapture(f"line {number}: {type(error).__name__}: {error}") from None
        except UnsupportedVersion as error:
            raise InvalidCapture(f"line {number}: {error}") from None
    return Capture(tuple(found[order] for order in sorted(found)), dict(skipped))


def _decoded(line: str) -> Any:
    if len(line) > LINE_CHARS_MAX:
        raise ValueError(f"it has more than {LINE_CHARS_MAX} characters")
    return json.loads(line)


def _lost(entry: Mapping[str, Any]) -> dict[str, int]:
    return {LOST: int(entry["details"]["entries"])} if entry["kind"] == LOST else {}


def _request(entry: Mapping[str, Any]) -> Captured:
    frame = base64.b64decode(entry["frame"], validate=True)
    header, _ = decode_request_header(frame)
    order, clock_ms = int(entry["sequence"]), _finite(entry["clock_ms"])
    return Captured(order, str(entry["connection"]), clock_ms, header, frame)


def _answered(request: Captured, entry: Mapping[str, Any]) -> Captured:
    frame = entry["frame"]
    return replace(
        request,
        answered_order=int(entry["sequence"]),
        answered_ms=_finite(entry["clock_ms"]),
        response=None if frame is None else base64.b64decode(frame, validate=True),
    )


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("clock_ms is not a finite number")
    return number
