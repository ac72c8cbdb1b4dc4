"""State machine of a connection's authentication: allowed requests and their answers.

Owns the order of steps of authentication and reauthentication (KIP-368). Mechanisms check the
credentials. It must never know frames or clocks. The table below is complete.

    START --versions--> NAMED --handshake--> TOKENS (v1) or RAW (v0) --last token--> COMPLETE
      +--------------------handshake--------------^                                     |
                                                  ^-----------------handshake-----------+

Invariant: in any other order, and after any failure, the connection is FAILED for good; an
authenticated user never changes. Kafka's ``SaslServerAuthenticator``.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from minibroker_protocol.errors import ErrorCode

# -------------------------------------- SASL PLAIN (RFC 4616): user name and password in plain text
# Owns the form of the token and the comparison. It must never reveal which of the two was wrong, in
# text or in time. Invariant: unknown users take the same work as wrong passwords. Kafka's
# ``PlainSaslServer`` and ``PlainServerCallbackHandler``.


PLAIN: Final = "PLAIN"
SCRAM_SHA_256: Final = "SCRAM-SHA-256"
SCRAM_SHA_512: Final = "SCRAM-SHA-512"
OAUTHBEARER: Final = "OAUTHBEARER"


class AuthenticationFailed(Exception):
    """Authentication failed.

    The text is logged. ``client_message`` is sent to the client if it may know more than that its
    credentials are invalid.
    """

    def __init__(self, text: str, client_message: str | None = None) -> None:
        super().__init__(text)
        self.client_message = client_message


class AuthenticatedUser(NamedTuple):
    """The authenticated user; ``expires_ms`` is the end of the credential in epoch milliseconds.

    ``by_token`` says that the credential was a delegation token.
    """

    user: str
    expires_ms: int | None = None
    by_token: bool = False


class AuthenticationStep(NamedTuple):
    """Bytes to send, and the user if this is the last step."""

    response: bytes
    proven: AuthenticatedUser | None = None


class Mechanism(Protocol):
    """One exchange with one client."""

    def respond(self, token: bytes) -> AuthenticationStep:
        """Return the answer to the client's next token. Raises ``AuthenticationFailed``."""
        ...


def text_of(token: bytes) -> str:
    """Decode a token as text. Raises ``AuthenticationFailed``."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        raise AuthenticationFailed("the token is not text in UTF-8") from None


# SASL PLAIN (RFC 4616) ----------------------------------------------------------------------------
#
# User name and password in plain text. It must never reveal which of the two was wrong, in text or
# in time. Invariant: unknown users take the same work as wrong passwords. Kafka's
# ``PlainSaslServer`` and ``PlainServerCallbackHandler``.


_IMPOSSIBLE = "\0"
"""A password that no token can contain."""


class Plain:
    """One exchange; ``passwords`` by user name."""

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._passwords = passwords

    def respond(self, token: bytes) -> AuthenticationStep:
        """Handle the only token of the exchange."""
        parts = text_of(token).split("\0")
        if len(parts) != 3:
            text = f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}"
            raise AuthenticationFailed(text, text)
        acting_as, user, password = parts
        for name, value in (("username", user), ("password", password)):
            if not value:
                text = f"Authentication failed: {name} not specified"
                raise AuthenticationFailed(text, text)
        if not _same(self._passwords.get(user, _IMPOSSIBLE), password):
            text = "Authentication failed: Invalid username or password"
            raise AuthenticationFailed(text, text)
        if acting_as not in ("", user):
            text = "Authentication failed: Client requested an authorization id that is different "
            raise AuthenticationFailed(text + "from username", text + "from username")
        return AuthenticationStep(b"", AuthenticatedUser(user))


def _same(expected: str, given: str) -> bool:
    """Compare in constant time, also for texts of different length."""
    digests = [hashlib.sha256(text.encode()).digest() for text in (expected, given)]
    return hmac.compare_digest(*digests)


_REAUTHENTICATION: Final = "re-authentication"
REAUTHENTICATION_PAUSE_S: Final = 1.0
"""Time between two reauthentications, Kafka's ``MIN_REAUTH_INTERVAL_ONE_SECOND_NANOS``."""


class AuthenticationState(StrEnum):
    """State of an authentication."""

    START = "start"
    NAMED = "named"
    """The client has sent ApiVersions."""
    TOKENS = "tokens"
    RAW = "raw"
    """As TOKENS, but in frames without headers."""
    COMPLETE = "complete"
    FAILED = "failed"


class IllegalStep(Exception):
    """A request that is not allowed in this state; the text is logged."""


class AuthenticationAnswer(NamedTuple):
    """Answer to the client.

    With ``failure``, which is logged, it is sent after a delay and is the last one. ``lifetime_ms``
    is the time until the client must reauthenticate; 0 is unlimited.
    """

    error: ErrorCode
    text: str | None = None
    data: bytes = b""
    lifetime_ms: int = 0
    failure: str | None = None


class _RejectedExchange:
    """An exchange that fails at the client's first token."""

    def __init__(self, text: str) -> None:
        self._text = text

    def respond(self, _token: bytes) -> AuthenticationStep:
        raise AuthenticationFailed(self._text, self._text)


class Authentication:
    """The authentication of one connection.

    ``make`` starts an exchange; ``reauth_max_ms`` limits the session.
    """

    def __init__(
        self,
        mechanisms: Sequence[str],
        make: Callable[[str], Mechanism],
        reauth_max_ms: Callable[[str], int],
    ) -> None:
        self.mechanisms = tuple(mechanisms)
        self._make = make
        self._reauth_max_ms = reauth_max_ms
        self.state = AuthenticationState.START
        self._mechanism: str | None = None
        self._exchange: Mechanism | None = None
        self.user: str | None = None
        """The authenticated user."""
        self.by_token = False
        """Whether the user was authenticated with a delegation token."""
        self.expires = False
        """Whether the session expires."""
        self._reauthenticated_at: float | None = None

    def may_reauthenticate(self, now: float) -> bool:
        """Whether a SaslHandshake at ``now`` starts a reauthentication, which is then noted.

        It does not within a second of the last one: it is then a request at a wrong time.
        """
        last = self._reauthenticated_at
        if last is not None and now - last < REAUTHENTICATION_PAUSE_S:
            return False
        self._reauthenticated_at = now
        return True

    def on_versions(self, *, served: bool) -> None:
        """Handle ApiVersions, in a version that is ``served`` or not."""
        if self.state is not AuthenticationState.START:
            raise self._illegal("ApiVersions")
        if served:
            self.state = AuthenticationState.NAMED

    def on_handshake(self, mechanism: str, version: int) -> AuthenticationAnswer:
        """Handle SaslHandshake: the client chooses a mechanism."""
        if self.state not in (
            AuthenticationState.START,
            AuthenticationState.NAMED,
            AuthenticationState.COMPLETE,
        ):
            raise self._illegal("SaslHandshake")
        if mechanism not in self.mechanisms:
            self.state = AuthenticationState.FAILED
            text = "the client requests a mechanism that is not in sasl.enabled.mechanisms"
            return AuthenticationAnswer(ErrorCode.UNSUPPORTED_SASL_MECHANISM, failure=text)
        if self._mechanism in (None, mechanism):
            self._mechanism = mechanism
            self._exchange = self._make(mechanism)
        else:
            # The mechanism is served, so UNSUPPORTED_SASL_MECHANISM would mislead the client.
            self._exchange = _RejectedExchange(
                f"Cannot change mechanism {self._mechanism} during {_REAUTHENTICATION}"
            )
        self.state = AuthenticationState.TOKENS if version >= 1 else AuthenticationState.RAW
        return AuthenticationAnswer(ErrorCode.NONE)

    def on_token(self, token: bytes, wall_ms: int) -> AuthenticationAnswer:
        """Handle a token of the mechanism; ``wall_ms`` is the time since the epoch."""
        if (
            self.state not in (AuthenticationState.TOKENS, AuthenticationState.RAW)
            or self._exchange is None
        ):
            raise self._illegal("SaslAuthenticate")
        try:
            response, authenticated = self._exchange.respond(token)
            if authenticated is None:
                return AuthenticationAnswer(ErrorCode.NONE, data=response)
            lifetime_ms = self._accept_user(authenticated, wall_ms)
        except AuthenticationFailed as failure:
            self.state, self._exchange = AuthenticationState.FAILED, None
            message = failure.client_message or (
                "Authentication failed during authentication due to invalid credentials with SASL "
                f"mechanism {self._mechanism}"
            )
            code = ErrorCode.SASL_AUTHENTICATION_FAILED
            return AuthenticationAnswer(code, message, failure=f"{self._mechanism}: {failure}")
        return AuthenticationAnswer(ErrorCode.NONE, data=response, lifetime_ms=lifetime_ms)

    def _accept_user(self, authenticated: AuthenticatedUser, wall_ms: int) -> int:
        """Accept the user; return the session lifetime in milliseconds, 0 for unlimited."""
        if self.user not in (None, authenticated.user):
            text = f"Cannot change principals during {_REAUTHENTICATION}"
            raise AuthenticationFailed(text, text)
        assert self._mechanism is not None
        self.by_token = authenticated.by_token
        self.user, self.state, self._exchange = (
            authenticated.user,
            AuthenticationState.COMPLETE,
            None,
        )
        bounds = [bound for bound in (self._reauth_max_ms(self._mechanism),) if bound > 0]
        if authenticated.expires_ms is not None:
            bounds.append(authenticated.expires_ms - wall_ms)
        self.expires = bool(bounds)
        return max(0, min(bounds, default=0))

    def _illegal(self, what: str) -> IllegalStep:
        state, self.state = self.state, AuthenticationState.FAILED
        return IllegalStep(f"{what} is not allowed in the authentication state {state}")
