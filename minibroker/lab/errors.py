"""Errors of the control API: why a request is rejected, and the response that says so.

Owns the exceptions that operations raise, and the format of an error's response. Must never know an
operation. The invariant: an error has a code for programs, a message that describes what is wrong,
and a hint how to fix it. The code is the name of Kafka's error where there is one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final, NamedTuple

from minibroker.lab.schema import Fault, to_json

SENTENCE_ENDS: Final = (".", ";", ":", "?", "!")


class ApiError(Exception):
    """A request to the control API is rejected.

    ``code`` is the name of Kafka's error where there is one, e.g. ``TOPIC_ALREADY_EXISTS``.
    ``status`` is the HTTP status: 400 invalid, 404 not found, 409 conflict, 503 unavailable.
    """

    def __init__(self, code: str, message: str, hint: str = "", *, status: int = 400) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.hint = hint
        self.status = status


class NotFound(ApiError):
    """The resource does not exist."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(code, message, hint, status=404)


class Conflict(ApiError):
    """The request conflicts with the current state, e.g. a topic with the same name."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(code, message, hint, status=409)


class Unavailable(ApiError):
    """A process is restarting, or the broker is stopping; the client can retry."""

    def __init__(self, code: str, message: str, hint: str = "Try again in a moment.") -> None:
        super().__init__(code, message, hint, status=503)


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
    """Return the body of an error response; message and hint are ended as sentences.

    Clients in every language join the two with a space.
    """
    fields = tuple(FieldFault(fault.path, fault.message) for fault in faults)
    return json_bytes(ErrorAnswer(ErrorBody(code, _ended(message), _ended(hint), fields)))


def _ended(text: str) -> str:
    """Return a text with a full stop, unless it has an end or is empty."""
    return text if not text or text.endswith(SENTENCE_ENDS) else f"{text}."


def json_bytes(answer: object) -> bytes:
    """Return the body of a JSON response, one line.

    ASCII only, because client ids may contain text that UTF-8 cannot encode, such as lone
    surrogates.
    """
    return json.dumps(to_json(answer), allow_nan=False, separators=(",", ":")).encode() + b"\n"
