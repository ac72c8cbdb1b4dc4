"""A proposal: the quotas of one file, and which counter each sender of requests would have.

Owns going from names to numbers of counters and bounds; precedence and sharing are those of
``quotas.entity``. It must never know how a counter counts, nor read a file. Invariant: a fresh
broker that was given these quotas and no others would share counters just so; who has no bound has
no counter, since nothing ever holds them. ``ClientQuotaManager.getOrCreateQuotaSensors``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from minibroker.pipeline.whatif.events import KINDS, NOBODY, Sharing, Terms
from minibroker.quotas.entity import (
    Bound,
    QuotaTable,
    QuotaType,
    Tags,
    bound_of,
    sanitize,
    sharing_group,
)
from minibroker.quotas.manager import INT_MAX

COLD: Final = -(2**62)
"""Before all times."""


class Sender(NamedTuple):
    """Who sends requests: the names as they came. A broker that was started again has a new life,
    and counts from nothing.
    """

    broker: int
    life: int
    user: str
    client_id: str


@dataclass(frozen=True)
class Proposal:
    """What one file sets; ``ips`` are connections a second by address."""

    name: str
    table: QuotaTable = field(default_factory=QuotaTable)
    ips: Mapping[str, float] = field(default_factory=dict)
    ip_default: float | None = None

    def counters_of(self, user: str, client_id: str) -> Iterator[object]:
        """What stands for the counters of somebody, whatever the broker."""
        for kind in KINDS:
            found = self.share(kind, user, client_id)
            if found is not None:
                yield self.name, kind, found[0]

    def share(self, kind: QuotaType, user: str, client_id: str) -> tuple[Tags, Bound] | None:
        """With whom somebody shares a counter, and its bound; None if nothing holds them."""
        bits = self.table.bits(kind)
        if not bits:
            return None
        tags = sharing_group(self.table, kind, bits, sanitize(user), client_id)
        bound = bound_of(self.table, kind, tags)
        return None if bound is None else (tags, bound)

    def of_ip(self, ip: str) -> float | None:
        """The connections a second that an address may make."""
        return self.ips.get(ip, self.ip_default)


@dataclass(frozen=True)
class Counting:
    """How is counted: the broker's settings of the same names."""

    quota_window_num: int = 11
    quota_window_size_seconds: int = 1
    controller_quota_window_num: int = 11
    controller_quota_window_size_seconds: int = 1
    delays: bool = False
    """``quota.throttle.mode=delay``"""
    rechecks: bool = True
    """``connection.ip.throttle.recheck``"""
    counted_from_ms: Mapping[int, int] = field(default_factory=dict)
    """By broker: the time on its clock from which on what was decided is told; what came before
    only fills the counters, of which nobody knows what was in them when the recording began."""

    @property
    def window_ms(self) -> int:
        """Of one sample."""
        return self.quota_window_size_seconds * 1000

    @property
    def remembered_ms(self) -> int:
        """For how long a counter knows what it counted."""
        return (self.quota_window_num + 1) * self.window_ms

    def terms(self, *, closed: bool) -> Terms:
        """The same for compiled code."""
        return Terms(
            self.window_ms,
            float(self.controller_quota_window_num * self.controller_quota_window_size_seconds),
            self.delays,
            closed,
            (self.quota_window_num - 1) * self.window_ms / 1000,
        )


class Shares:
    """The counters of one proposal, numbered as senders turn up."""

    def __init__(self, proposal: Proposal, counting: Counting) -> None:
        self.proposal = proposal
        self.tags: list[list[Tags | None]] = []
        self.bounds: list[list[Bound | None]] = []
        self._counting = counting
        self._numbers: dict[tuple[int, int, int, Tags], int] = {}
        self._rows: list[list[int]] = []
        self._from_ms: list[int] = []
        self._sharing: Sharing | None = None
        self._found: dict[tuple[str, str], list[tuple[Tags | None, Bound | None]]] = {}

    @property
    def counters(self) -> int:
        """How many there are."""
        return len(self._numbers)

    def add(self, sender: Sender) -> list[object]:
        """The next group; what stands for its counters."""
        keys: list[object] = []
        numbers, all_tags, bounds = [], [], []
        for at, (tags, bound) in enumerate(self._shares_of(sender.user, sender.client_id)):
            if tags is None:
                numbers.append(NOBODY)
            else:
                key = (sender.broker, sender.life, at, tags)
                numbers.append(self._numbers.setdefault(key, len(self._numbers)))
                keys.append((self.proposal.name, *key))
            all_tags.append(tags)
            bounds.append(bound)
        self._rows.append(numbers)
        self.tags.append(all_tags)
        self.bounds.append(bounds)
        self._from_ms.append(self._counting.counted_from_ms.get(sender.broker, COLD))
        self._sharing = None
        return keys

    def _shares_of(self, user: str, client_id: str) -> list[tuple[Tags | None, Bound | None]]:
        """By type, which is the same at all brokers and so is found out once."""
        found = self._found.get((user, client_id))
        if found is None:
            shares = (self.proposal.share(kind, user, client_id) for kind in KINDS)
            found = self._found[user, client_id] = [share or (None, None) for share in shares]
        return found

    def sharing(self) -> Sharing:
        """The same for compiled code."""
        if self._sharing is None:
            bounds = [
                [INT_MAX if bound is None else bound.value for bound in row] for row in self.bounds
            ]
            shape = (len(self._rows), len(KINDS))
            self._sharing = Sharing(
                np.array(self._rows, np.int32).reshape(shape),
                np.array(bounds, np.float64).reshape(shape),
                np.array(self._from_ms, np.int64),
            )
        return self._sharing


class Components:
    """Who has to be replayed together, found out as senders turn up."""

    def __init__(self) -> None:
        self._parents: list[int] = []
        self._keys: dict[object, int] = {}
        self.senders: dict[Sender, int] = {}

    def add(self, sender: Sender, keys: Iterable[object]) -> int:
        """The sender's own number, which counts up from 0; ``keys`` are what it shares."""
        known = self.senders.get(sender)
        if known is not None:
            return known
        number = self.senders[sender] = len(self._parents)
        self._parents.append(number)
        for key in keys:
            self.join(number, self._keys.setdefault(key, number))
        return number

    def join(self, one: int, other: int) -> None:
        """Two senders share something, such as a connection."""
        first, second = sorted((self._root(one), self._root(other)))
        self._parents[second] = first

    def roots(self) -> list[int]:
        """The same of all senders, in the order in which they turned up."""
        return [self._root(number) for number in range(len(self._parents))]

    def _root(self, number: int) -> int:
        parents = self._parents
        while parents[number] != number:
            parents[number] = parents[parents[number]]
            number = parents[number]
        return number
