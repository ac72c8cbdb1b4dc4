"""Messages between processors about tokens, and the limits that tokens represent.

Owns the shapes of messages, and which processor is the home of a key. It must never know how many
tokens a processor has. A key is an address or ``TOTAL``; the home of a key grants its tokens to the
shards. Invariant: each message carries its term, because only within a term all processors have the
same limits. After Redpanda's RFC of 2022-02-07 on connections per address.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias

from minibroker.broker.connections.counts import ExceededCount

TOTAL: Final = ""
"""Key of the limit of all addresses together."""

HOLDINGS_MAX: Final = 1000
"""Keys in one ``Holdings``; further ones go into the next message."""

Term: TypeAlias = tuple[int, int]
"""Controller epoch, and number of the last change of limits; a later term is greater."""


class DropLimits(NamedTuple):
    """Limits beyond which connections are closed at once; None for no limit."""

    total: int | None = None
    per_ip: int | None = None
    overrides: Mapping[str, int] = {}

    def of(self, key: str) -> int | None:
        """Return the limit of a key."""
        return self.total if key == TOTAL else self.overrides.get(key, self.per_ip)


def home_of(key: str, processors: int) -> int:
    """Return the processor that grants the tokens of a key; it is the same in every process."""
    return 0 if key == TOTAL else zlib.crc32(key.encode()) % processors


class Holdings(NamedTuple):
    """Message to a home: numbers of open connections by key; ``more`` messages follow.

    The first message of a shard in a term, and on a new link.
    """

    term: Term
    used: tuple[tuple[str, int], ...]
    more: bool


class RequestToken(NamedTuple):
    """Message to a home: request for a token for the new connection with this number."""

    term: Term
    key: str
    number: int


class ReturnTokens(NamedTuple):
    """Message to a home: returned tokens."""

    term: Term
    key: str
    tokens: int


class Collected(NamedTuple):
    """Message to a home: the answer to ``Collect``, with the cached tokens."""

    term: Term
    key: str
    tokens: int


class Grant(NamedTuple):
    """Message to a shard: tokens; with ``reclaim`` they must be returned when they are free."""

    term: Term
    key: str
    tokens: int
    reclaim: bool


class TokenDenied(NamedTuple):
    """Message to a shard: there is no token for the new connection with this number."""

    term: Term
    key: str
    number: int


class Collect(NamedTuple):
    """Message to a shard: return unused tokens, now and whenever one becomes free."""

    term: Term
    key: str


class AllowCaching(NamedTuple):
    """Message to a shard: free tokens may be cached again."""

    term: Term
    key: str


ToHome: TypeAlias = Holdings | RequestToken | ReturnTokens | Collected
ToShard: TypeAlias = Grant | TokenDenied | Collect | AllowCaching
TokenMessage: TypeAlias = ToHome | ToShard


class Send(NamedTuple):
    """Action: send a message; the order matters."""

    peer: int
    message: TokenMessage


class Admit(NamedTuple):
    """Action: admit the new connection with this number."""

    number: int


class Reject(NamedTuple):
    """Action: reject the new connection with this number."""

    number: int
    refusal: ExceededCount


Action: TypeAlias = Send | Admit | Reject
