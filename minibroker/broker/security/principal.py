"""Principal of a request: a type, usually ``User``, and a name.

Owns the pair and its text ``User:alice``. It must never know how it was authenticated. Invariant:
``parse(str(principal)) == principal``. Kafka's ``KafkaPrincipal``.
"""

from __future__ import annotations

from typing import Final, NamedTuple

USER: Final = "User"


class BadPrincipal(ValueError):
    """Not a principal; the message shows the expected form."""


class Principal(NamedTuple):
    """One principal; equal if type and name are."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


class Introduction(NamedTuple):
    """Facts of a connection, from which ``principal.builder.class`` builds a principal.

    ``sasl_user`` is authenticated; ``subject`` is the text of a validated certificate's subject.
    """

    listener: str
    security_protocol: str
    client_host: str
    sasl_user: str | None
    subject: str | None


ANONYMOUS: Final = Principal(USER, "ANONYMOUS")
"""The principal of connections without authentication."""


def parse(text: str) -> Principal:
    """Parse a principal; its name may contain colons. Raises `BadPrincipal`."""
    kind, colon, name = text.partition(":")
    if not (kind and colon and name):
        raise BadPrincipal(f"'{text}' must be KIND:NAME, e.g. User:alice")
    return Principal(kind, name)
