"""What a SASL mechanism is to us: bytes of a client in, bytes for it out, a name in the end.

Owns the shapes that all mechanisms share; it must never know how bytes travel or which clock tells
the time.  The invariant: a mechanism gives a name once, and only after it has seen a proof; a
failure's ``told`` has no more in it than who has no account may know.  Echoes ``SaslServer``.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

PLAIN: Final = "PLAIN"
SCRAM_SHA_256: Final = "SCRAM-SHA-256"
SCRAM_SHA_512: Final = "SCRAM-SHA-512"
OAUTHBEARER: Final = "OAUTHBEARER"


class AuthenticationFailed(Exception):
    """A proof is none. The text is for the log; ``told`` is for the client, if it may know more
    than that its credentials are invalid.
    """

    def __init__(self, text: str, told: str | None = None) -> None:
        super().__init__(text)
        self.told = told


class Proven(NamedTuple):
    """Who the client is; ``expires_ms`` is the end of its proof in epoch milliseconds, if any."""

    user: str
    expires_ms: int | None = None


class Step(NamedTuple):
    """What to send, and the end if this is it."""

    response: bytes
    proven: Proven | None = None


class Mechanism(Protocol):
    """One exchange with one client."""

    def respond(self, token: bytes) -> Step:
        """The answer to the client's next bytes. Raises ``AuthenticationFailed``."""
        ...


def text_of(token: bytes) -> str:
    """A token's text. Raises ``AuthenticationFailed``."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        raise AuthenticationFailed("the token is not text in UTF-8") from None
