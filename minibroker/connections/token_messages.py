"""What the processors tell each other about tokens, and what the limits are that tokens stand for.

Owns shapes and the one rule of who keeps which tokens; never who has how many. A key is an address
or ``TOTAL``, and each key has one home, which gives its tokens out to the shards. Invariant: every
message carries the term it belongs to, because a limit is the same for all within a term only.
After Redpanda's RFC of 2022-02-07 on connections per address.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias

from minibroker.connections.counts import ExceededCount

TOTAL: Final = ""
"""The key of the limit that holds for all addresses together."""

HOLDINGS_MAX: Final = 1000
"""Keys that one ``Holdings`` names; more go into further ones."""

Term: TypeAlias = tuple[int, int]
"""Controller epoch, and number of the change that last touched limits; a later one is greater."""


class DropLimits(NamedTuple):
    """Limits beyond which connections are closed unheard; ``None`` for no limit."""

    total: int | None = None
    per_ip: int | None = None
    overrides: Mapping[str, int] = {}

    def of(self, key: str) -> int | None:
        """The limit of a key."""
        return self.total if key == TOTAL else self.overrides.get(key, self.per_ip)


def home_of(key: str, processors: int) -> int:
    """The processor that gives out the tokens of a key: the same wherever it is asked."""
    return 0 if key == TOTAL else zlib.crc32(key.encode()) % processors


class Holdings(NamedTuple):
    """To a home: how many connections of which keys are open here; ``more`` of it follows.

    It is the first that a shard tells in a term, or after its link came to be.
    """

    term: Term
    used: tuple[tuple[str, int], ...]
    more: bool


class Ask(NamedTuple):
    """To a home: a token for the newcomer of this number."""

    term: Term
    key: str
    number: int


class Give(NamedTuple):
    """To a home: tokens come back."""

    term: Term
    key: str
    tokens: int


class Collected(NamedTuple):
    """To a home: the answer to ``Collect``, with what was cached."""

    term: Term
    key: str
    tokens: int


class Grant(NamedTuple):
    """To a shard: tokens; with ``reclaim`` they shall come back as soon as they are free."""

    term: Term
    key: str
    tokens: int
    reclaim: bool


class TokenDenied(NamedTuple):
    """To a shard: there is no token for the newcomer of this number."""

    term: Term
    key: str
    number: int


class Collect(NamedTuple):
    """To a shard: tokens that are not in use are wanted back, now and whenever one becomes free."""

    term: Term
    key: str


class Relax(NamedTuple):
    """To a shard: free tokens may be kept again."""

    term: Term
    key: str


ToHome: TypeAlias = Holdings | Ask | Give | Collected
ToShard: TypeAlias = Grant | TokenDenied | Collect | Relax
TokenMessage: TypeAlias = ToHome | ToShard


class Send(NamedTuple):
    """Something to do: send this, in the order given."""

    peer: int
    message: TokenMessage


class Admit(NamedTuple):
    """Something to do: let the newcomer of this number in."""

    number: int


class Reject(NamedTuple):
    """Something to do: close the newcomer of this number."""

    number: int
    refusal: ExceededCount


Action: TypeAlias = Send | Admit | Reject
