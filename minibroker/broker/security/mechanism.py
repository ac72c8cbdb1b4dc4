"""Interface of SASL mechanisms: bytes of the client in, bytes for the client out, finally a user.

Owns the shapes that all mechanisms share. It must never know how bytes are transported, or clocks.
Invariant: a mechanism returns a user once, after the proof; ``client_message`` of a failure
contains only what an unauthenticated client may know. Kafka's ``SaslServer``.
"""

from __future__ import annotations

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
