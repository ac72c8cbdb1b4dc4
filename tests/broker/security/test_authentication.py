"""The order of an authentication: every way to the end, and everything else a failure for good."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from minibroker.broker.security.authentication import (
    AuthenticatedUser,
    Authentication,
    AuthenticationFailed,
    AuthenticationState,
    AuthenticationStep,
    IllegalStep,
    Plain,
    text_of,
)
from minibroker_protocol.errors import ErrorCode
from tests.broker.security.tokens import plain

# ---------------------------------------------- What SASL mechanisms share, and the mechanism PLAIN


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


GOOD, MORE, BAD = b"good", b"more", b"bad"


class Fake:
    """A mechanism of one or more tokens; ``user`` is the authenticated user."""

    def __init__(self, authenticated: AuthenticatedUser) -> None:
        self.authenticated = authenticated

    def respond(self, token: bytes) -> AuthenticationStep:
        if token == BAD:
            raise AuthenticationFailed("no such proof")
        return (
            AuthenticationStep(b"challenge")
            if token == MORE
            else AuthenticationStep(b"end", self.authenticated)
        )


def made(*users: str, expires_ms: int | None = None, reauth_ms: int = 0) -> Authentication:
    names = iter(users or ("alice",))
    return Authentication(
        ("PLAIN", "SCRAM-SHA-256"),
        lambda _mechanism: Fake(AuthenticatedUser(next(names), expires_ms)),
        lambda _mechanism: reauth_ms,
    )


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize(
    ("version", "state"), [(0, AuthenticationState.RAW), (1, AuthenticationState.TOKENS)]
)
def test_disconnect_during_any_state_reaches_closed(
    named: bool, version: int, state: AuthenticationState
) -> None:
    one = made()
    if named:
        one.on_versions(served=False)
        one.on_versions(served=True)
    assert one.on_handshake("PLAIN", version).error == ErrorCode.NONE
    assert one.state is state
    assert one.on_token(MORE, 0).data == b"challenge"
    assert one.user is None
    answer = one.on_token(GOOD, 0)
    assert (answer.error, answer.data, answer.failure) == (ErrorCode.NONE, b"end", None)
    assert str(one.state) == "complete"
    assert str(one.user) == "alice"
    assert not one.expires


def test_failed_authentication_hides_cause_from_client() -> None:
    one = made()
    one.on_handshake("PLAIN", 1)
    answer = one.on_token(BAD, 0)
    assert answer.error == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert answer.text == (
        "Authentication failed during authentication due to invalid credentials with SASL "
        "mechanism PLAIN"
    )
    assert answer.failure == "PLAIN: no such proof"
    assert one.user is None


def test_unknown_mechanism_is_the_end() -> None:
    one = made()
    answer = one.on_handshake("GSSAPI", 1)
    assert answer.error == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert answer.failure
    with pytest.raises(IllegalStep):
        one.on_handshake("PLAIN", 1)


STEPS: dict[str, Callable[[Authentication], object]] = {
    "versions": lambda one: one.on_versions(served=True),
    "handshake": lambda one: one.on_handshake("PLAIN", 1),
    "token": lambda one: one.on_token(GOOD, 0),
}
LEGAL = {
    AuthenticationState.START: {
        "versions": AuthenticationState.NAMED,
        "handshake": AuthenticationState.TOKENS,
    },
    AuthenticationState.NAMED: {"handshake": AuthenticationState.TOKENS},
    AuthenticationState.TOKENS: {"token": AuthenticationState.COMPLETE},
    AuthenticationState.COMPLETE: {"handshake": AuthenticationState.TOKENS},
    AuthenticationState.FAILED: {},
}


@pytest.mark.parametrize("seed", range(50))
def test_out_of_order_message_fails_permanently(seed: int) -> None:
    random = Random(seed)
    one = made(*["alice"] * 50)
    for _ in range(12):
        step = random.choice(list(STEPS))
        wanted = LEGAL[one.state].get(step)
        if wanted is None:
            with pytest.raises(IllegalStep):
                STEPS[step](one)
            wanted = AuthenticationState.FAILED
        else:
            STEPS[step](one)
        assert one.state is wanted


@pytest.mark.parametrize(
    ("expires_ms", "reauth_ms", "lifetime_ms"),
    [
        (None, 0, 0),
        (None, 500, 500),
        (1700, 0, 700),
        (1700, 500, 500),
        (1200, 500, 200),
        (900, 0, 0),
    ],
)
def test_session_lifetime_is_shorter_of_credential_and_setting(
    expires_ms: int | None, reauth_ms: int, lifetime_ms: int
) -> None:
    one = made(expires_ms=expires_ms, reauth_ms=reauth_ms)
    one.on_handshake("PLAIN", 1)
    assert one.on_token(GOOD, 1000).lifetime_ms == lifetime_ms
    assert one.expires is bool(expires_ms or reauth_ms)


def test_reauthentication_with_other_user_or_mechanism_fails() -> None:
    one = made("alice", "alice", "bob")
    for _ in range(2):
        one.on_handshake("PLAIN", 1)
        assert one.on_token(GOOD, 0).failure is None
    one.on_handshake("PLAIN", 1)
    answer = one.on_token(GOOD, 0)
    assert answer.text == "Cannot change principals during re-authentication"
    assert (one.state, one.user) == (AuthenticationState.FAILED, "alice")
    other = made("alice", "alice")
    other.on_handshake("PLAIN", 1)
    other.on_token(GOOD, 0)
    assert other.on_handshake("SCRAM-SHA-256", 1).error == ErrorCode.NONE
    answer = other.on_token(GOOD, 0)
    assert answer.error == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert answer.text == "Cannot change mechanism PLAIN during re-authentication"
    assert (other.state, other.user) == (AuthenticationState.FAILED, "alice")
