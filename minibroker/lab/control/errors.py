"""Error responses of the control API.

Owns their format. Must never know the reason of an error. The invariant: an error has a code for
programs, a message that describes what is wrong, and a hint how to fix it. The code is the name of
Kafka's error where there is one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple

from minibroker.lab.control.schema import Fault, to_json


class FieldFault(NamedTuple):
    """An error in one field of a request."""

    path: str
    message: str


class ErrorBody(NamedTuple):
    """Why a request failed, and how to fix it."""

    code: str
    message: str
    hint: str
    fields: tuple[FieldFault, ...]


class ErrorAnswer(NamedTuple):
    """The response to a request that failed."""

    error: ErrorBody


def error_json(code: str, message: str, hint: str, faults: Iterable[Fault] = ()) -> bytes:
    """Return the body of an error response."""
    fields = tuple(FieldFault(fault.path, fault.message) for fault in faults)
    return json_bytes(ErrorAnswer(ErrorBody(code, message, hint, fields)))


def json_bytes(answer: object) -> bytes:
    """Return the body of a JSON response, one line.

    ASCII only, because client ids may contain text that UTF-8 cannot encode, such as lone
    surrogates.
    """
    return json.dumps(to_json(answer), allow_nan=False, separators=(",", ":")).encode() + b"\n"
