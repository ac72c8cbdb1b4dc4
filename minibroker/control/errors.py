"""How the control API says no: one shape for every answer that isn't a success.

Owns that shape and its text. Must never know why somebody is refused. The invariant: a code that
programs can tell apart, a message that says what and where, and a hint how to mend it. Kafka's
errors are codes only; where it has one, its name is the code.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple

from minibroker.control.schema import Fault, to_json


class FieldFault(NamedTuple):
    """What is wrong with one field of a request."""

    path: str
    message: str


class ErrorBody(NamedTuple):
    """Why a request was refused: what is wrong, and how to mend it."""

    code: str
    message: str
    hint: str
    fields: tuple[FieldFault, ...]


class ErrorAnswer(NamedTuple):
    """Every answer that isn't a success."""

    error: ErrorBody


def error_json(code: str, message: str, hint: str, faults: Iterable[Fault] = ()) -> bytes:
    """The body of an answer that refuses."""
    fields = tuple(FieldFault(fault.path, fault.message) for fault in faults)
    return json_bytes(ErrorAnswer(ErrorBody(code, message, hint, fields)))


def json_bytes(answer: object) -> bytes:
    """The body of any JSON answer, one line.

    ASCII only: client ids may hold what UTF-8 can't carry, such as half a surrogate pair.
    """
    return json.dumps(to_json(answer), allow_nan=False, separators=(",", ":")).encode() + b"\n"
