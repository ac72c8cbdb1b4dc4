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

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from minibroker.broker.security.mechanism import (
    AuthenticatedUser,
    AuthenticationFailed,
    AuthenticationStep,
    Mechanism,
)
from minibroker_protocol.errors import ErrorCode

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
