"""What SASL mechanisms share, and the mechanism PLAIN."""

from __future__ import annotations

import pytest

from minibroker.broker.security.mechanism import (
    AuthenticatedUser,
    AuthenticationFailed,
    AuthenticationStep,
    Plain,
    text_of,
)
from tests.broker.security.tokens import plain


def test_token_that_is_no_text_is_a_failure_and_no_error() -> None:
    assert text_of("ä".encode()) == "ä"
    with pytest.raises(AuthenticationFailed, match="UTF-8"):
        text_of(b"\xff\x00")


PASSWORDS = {"alice": "secret", "bob": "päss"}


def respond(token: bytes) -> AuthenticationStep:
    return Plain(PASSWORDS).respond(token)


@pytest.mark.parametrize("user", PASSWORDS)
@pytest.mark.parametrize("acting", [False, True])
def test_correct_password_authenticates(user: str, acting: bool) -> None:
    token = plain(user, PASSWORDS[user], user if acting else "")
    assert respond(token) == AuthenticationStep(b"", AuthenticatedUser(user))


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        (plain("alice", "wrong"), "Invalid username or password"),
        (plain("nobody", "secret"), "Invalid username or password"),
        (plain("nobody", "\0"), "expected 3 tokens, got 4"),
        (plain("alice", ""), "password not specified"),
        (plain("", "secret"), "username not specified"),
        (plain("alice", "secret", "bob"), "authorization id that is different"),
        (b"alice", "expected 3 tokens, got 1"),
        (b"", "expected 3 tokens, got 1"),
    ],
)
def test_invalid_plain_token_fails_with_kafka_message(token: bytes, expected: str) -> None:
    with pytest.raises(AuthenticationFailed) as caught:
        respond(token)
    assert caught.value.client_message is not None
    assert expected in caught.value.client_message
    assert "secret" not in str(caught.value)
