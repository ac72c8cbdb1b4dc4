"""SASL PLAIN (RFC 4616): user name and password in plain text.

Owns the form of the token and the comparison. It must never reveal which of the two was wrong, in
text or in time. Invariant: unknown users take the same work as wrong passwords. Kafka's
``PlainSaslServer`` and ``PlainServerCallbackHandler``.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

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
