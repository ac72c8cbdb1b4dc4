"""Who a request comes from: a kind, nearly always ``User``, and a name.

Owns the pair and its text ``User:alice``; it must never know how somebody proved to be that.  The
invariant: ``parse(str(principal)) == principal``.  Echoes ``KafkaPrincipal``.
"""

from __future__ import annotations

from typing import Final, NamedTuple

USER: Final = "User"


class BadPrincipal(ValueError):
    """A text that names no principal; the message says what would."""


class Principal(NamedTuple):
    """One identity; two are the same if kind and name are."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


class Introduction(NamedTuple):
    """What a connection has shown: what ``principal.builder.class`` is given to make a name of.

    ``sasl_user`` is proven; ``subject`` is that of a certificate that was checked, as text.
    """

    listener: str
    security_protocol: str
    client_host: str
    sasl_user: str | None
    subject: str | None


ANONYMOUS: Final = Principal(USER, "ANONYMOUS")
"""Who comes in where nobody is asked for a proof."""


def parse(text: str) -> Principal:
    """The principal of a text; the name may have colons. Raises `BadPrincipal`."""
    kind, colon, name = text.partition(":")
    if not (kind and colon and name):
        raise BadPrincipal(f"'{text}' must be KIND:NAME, e.g. User:alice")
    return Principal(kind, name)
