"""SASL PLAIN (RFC 4616): user name and password in plain text.

Owns the form of the token and the comparison. It must never reveal which of the two was wrong, in
text or in time. Invariant: unknown users take the same work as wrong passwords. Kafka's
``PlainSaslServer`` and ``PlainServerCallbackHandler``.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

from minibroker.broker.security.mechanism import (
    AuthenticatedUser,
    AuthenticationFailed,
    AuthenticationStep,
    text_of,
)

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
