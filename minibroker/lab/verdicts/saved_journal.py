"""Entries of a journal out of the JSON of the control API, or out of a file of such lines.

Owns the check of the JSON's form. It must never know where it comes from. Invariant: any text is
entries or ``InvalidJournal``, which names the line; unknown fields are ignored, so that later
versions of minibroker can add some.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from minibroker.lab.journal.entries import EntryKind, JournalEntry

LINE_CHARS_MAX: Final = 1024 * 1024
"""A longer line is rejected: frames have at most 64 KiB."""


class InvalidJournal(ValueError):
    """A text is not a journal."""


def entries_of_lines(lines: Iterable[str]) -> Iterator[JournalEntry]:
    """Yield the entry of each line that is not blank. Raises ``InvalidJournal``."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        if len(line) > LINE_CHARS_MAX:
            raise InvalidJournal(f"line {number} has more than {LINE_CHARS_MAX} characters")
        try:
            yield entry_of_json(json.loads(line))
        except RecursionError:
            raise InvalidJournal(f"line {number} is nested too deeply") from None
        except ValueError as error:
            raise InvalidJournal(f"line {number}: {error}") from None


def entry_of_json(fields: Any) -> JournalEntry:
    """Return the entry of an object as the control API has it. Raises ``InvalidJournal``."""
    if not isinstance(fields, Mapping):
        raise InvalidJournal("an entry is a JSON object")
    known = dict(fields)
    try:
        kind = EntryKind(known["kind"])
    except (KeyError, ValueError):
        names = ", ".join(EntryKind)
        raise InvalidJournal(f"kind must be one of {names}") from None
    return JournalEntry(
        sequence=_value(known, "sequence", int),
        clock_ms=_value(known, "clock_ms", (int, float)),
        kind=kind,
        role=_value(known, "role", str, ""),
        connection=_value(known, "connection", str, None),
        client_id=_value(known, "client_id", str, None),
        address=_value(known, "address", str, None),
        api=_value(known, "api", str, None),
        version=_value(known, "version", int, None),
        correlation_id=_value(known, "correlation_id", int, None),
        throttle_time_ms=_value(known, "throttle_time_ms", int, None),
        frame_bytes=_value(known, "frame_bytes", int, 0),
        frame=_frame(_value(known, "frame", str, None)),
        details=_value(known, "details", dict, {}),
    )


_REQUIRED: Final[Any] = object()


def _value(
    fields: Mapping[str, Any], name: str, kind: type | tuple[type, ...], default: Any = _REQUIRED
) -> Any:
    value = fields.get(name)
    if value is None and default is not _REQUIRED:
        return default
    if not isinstance(value, kind) or isinstance(value, bool):
        raise InvalidJournal(f"{name} is missing" if value is None else f"{name} has a wrong type")
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidJournal(f"{name} is not a finite number")
    return value


def _frame(text: str | None) -> bytes | None:
    try:
        return None if text is None else base64.b64decode(text, validate=True)
    except binascii.Error:
        raise InvalidJournal("frame is not base64") from None
