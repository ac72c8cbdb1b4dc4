"""All error responses have one shape."""

from __future__ import annotations

import json

import pytest

from minibroker.lab.errors import ApiError, Conflict, NotFound, Unavailable, error_json, json_bytes
from minibroker.lab.schema import Fault


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ApiError("INVALID_CONFIG", "what"), 400),
        (NotFound("UNKNOWN_TOPIC_OR_PARTITION", "what"), 404),
        (Conflict("TOPIC_ALREADY_EXISTS", "what"), 409),
        (Unavailable("COORDINATOR_NOT_AVAILABLE", "what"), 503),
    ],
)
def test_error_has_http_status(error: ApiError, status: int) -> None:
    assert error.status == status
    assert str(error) == f"{error.code}: what"


def test_unavailable_error_has_retry_hint() -> None:
    assert Unavailable("A", "b").hint == "Try again in a moment."


def test_error_body_has_code_message_hint_and_fields() -> None:
    body = error_json("BAD", "it is bad", "Make it good.", [Fault("a.b", "is bad")])
    assert json.loads(body) == {
        "error": {
            "code": "BAD",
            "message": "it is bad.",
            "hint": "Make it good.",
            "fields": [{"path": "a.b", "message": "is bad"}],
        }
    }


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", ""),
        ("there is no topic 'a'", "there is no topic 'a'."),
        ("There is no topic 'a'.", "There is no topic 'a'."),
        ("did you mean 'error'?", "did you mean 'error'?"),
        ("the journal is off; switch it on:", "the journal is off; switch it on:"),
    ],
)
def test_message_and_hint_in_error_body_end_as_sentences(text: str, sentence: str) -> None:
    error = json.loads(error_json("BAD", text, text))["error"]
    assert (error["message"], error["hint"]) == (sentence, sentence)


def test_json_body_is_one_line_of_ascii() -> None:
    body = json_bytes({"é": "\ud800\n"})
    assert body == b'{"\\u00e9":"\\ud800\\n"}\n'


def test_nan_in_json_body_raises_value_error() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_bytes({"rate": float("nan")})
