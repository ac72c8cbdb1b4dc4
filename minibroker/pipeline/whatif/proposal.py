"""A proposal: the quotas of one file, and the counters that each sender would use.

Owns the conversion of quota files and broker settings to proposals, and the mapping of names to
counter numbers and bounds; precedence and sharing are those of ``quotas.types``. It must never
know how a counter works. Invariant: a proposal contains the quotas that a broker with these
settings would have after applying only this file, and its name is unique; counters are shared as on
a new broker with only these quotas; a sender without a bound has no counter, because it is never
throttled. ``ConfigCommand`` and ``ClientQuotaManager.getOrCreateQuotaSensors``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np

from minibroker.broker.metadata.quotas import defaults
from minibroker.broker.quotas.command_lines import QuotaFileError, parse
from minibroker.broker.quotas.types import (
    INT_MAX,
    Bound,
    QuotaTable,
    QuotaType,
    Tags,
    bound_of,
    sanitize,
    sharing_group,
)
from minibroker.broker.settings import (
    CONNECTION_IP_THROTTLE_RECHECK,
    CONTROLLER_QUOTA_WINDOW_NUM,
    CONTROLLER_QUOTA_WINDOW_SIZE_SECONDS,
    DELAY,
    QUOTA_THROTTLE_MODE,
    QUOTA_WINDOW_NUM,
    QUOTA_WINDOW_SIZE_SECONDS,
    ConfigError,
    Settings,
)
from minibroker.pipeline.errors import BadInput
from minibroker.pipeline.whatif.columns import KINDS, NONE, Sender, Sharing, Terms

COLD: Final = -(2**62)
"""Earlier than any recorded time."""


@dataclass(frozen=True)
class Proposal:
    """The quotas of one file; ``ips`` are connections per second by address."""

    name: str
    table: QuotaTable = field(default_factory=QuotaTable)
    ips: Mapping[str, float] = field(default_factory=dict)
    ip_default: float | None = None

    def counters_of(self, user: str, client_id: str) -> Iterator[object]:
        """Keys of a sender's counters, without the broker."""
        for kind in KINDS:
            found = self.share(kind, user, client_id)
            if found is not None:
                yield self.name, kind, found[0]

    def share(self, kind: QuotaType, user: str, client_id: str) -> tuple[Tags, Bound] | None:
        """The tags and the bound of a sender's counter; None if it is never throttled."""
        bits = self.table.bits(kind)
        if not bits:
            return None
        tags = sharing_group(self.table, kind, bits, sanitize(user), client_id)
        bound = bound_of(self.table, kind, tags)
        return None if bound is None else (tags, bound)

    @property
    def limits_addresses(self) -> bool:
        """Whether it has connection rates."""
        return bool(self.ips) or self.ip_default is not None

    def of_ip(self, ip: str) -> float | None:
        """The connection rate of an address."""
        return self.ips.get(ip, self.ip_default)


@dataclass(frozen=True)
class Counting:
    """The broker's settings for measuring quotas, with the same names."""

    quota_window_num: int = 11
    quota_window_size_seconds: int = 1
    controller_quota_window_num: int = 11
    controller_quota_window_size_seconds: int = 1
    delays: bool = False
    """``quota.throttle.mode=delay``"""
    rechecks: bool = True
    """``connection.ip.throttle.recheck``"""
    counted_from_ms: Mapping[int, int] = field(default_factory=dict)
    """By broker: the time on its clock from which decisions are reported. Earlier ones only fill
    the counters, whose contents at the start of the recording are unknown.
    """

    @property
    def window_ms(self) -> int:
        """Length of one sample."""
        return self.quota_window_size_seconds * 1000

    @property
    def remembered_ms(self) -> int:
        """How long a recorded value influences a counter."""
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
    """The counters of one proposal, numbered in the order of their first sender."""

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
        """The number of counters."""
        return len(self._numbers)

    def add(self, sender: Sender) -> list[object]:
        """Add the next group; return the keys of its counters."""
        keys: list[object] = []
        numbers, all_tags, bounds = [], [], []
        for at, (tags, bound) in enumerate(self._shares_of(sender.user, sender.client_id)):
            if tags is None:
                numbers.append(NONE)
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
        """The shares by quota type, cached because they are the same at all brokers."""
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
    """Union-find of the senders that have to be replayed together."""

    def __init__(self) -> None:
        self._parents: list[int] = []
        self._keys: dict[object, int] = {}
        self.senders: dict[Sender, int] = {}

    def add(self, sender: Sender, keys: Iterable[object]) -> int:
        """Add a sender with the keys that it shares; return its number, counting from 0."""
        known = self.senders.get(sender)
        if known is not None:
            return known
        number = self.senders[sender] = len(self._parents)
        self._parents.append(number)
        for key in keys:
            self.join(number, self._keys.setdefault(key, number))
        return number

    def join(self, one: int, other: int) -> None:
        """Merge two senders' components, for example if they share a connection."""
        first, second = sorted((self._root(one), self._root(other)))
        self._parents[second] = first

    def roots(self) -> list[int]:
        """The component of each sender, in the order of their numbers."""
        return [self._root(number) for number in range(len(self._parents))]

    def _root(self, number: int) -> int:
        parents = self._parents
        while parents[number] != number:
            parents[number] = parents[parents[number]]
            number = parents[number]
        return number


# Quota files and settings ------------------------------------------------------------------------


def settings_of(pairs: Sequence[str]) -> Settings:
    """The broker's settings; raises BadInput."""
    try:
        return Settings.from_sources(pairs=pairs)
    except ConfigError as error:
        raise BadInput(str(error)) from error


def counting_of(settings: Settings) -> Counting:
    """The settings that affect how quotas are measured."""
    return Counting(
        settings[QUOTA_WINDOW_NUM],
        settings[QUOTA_WINDOW_SIZE_SECONDS],
        settings[CONTROLLER_QUOTA_WINDOW_NUM],
        settings[CONTROLLER_QUOTA_WINDOW_SIZE_SECONDS],
        settings[QUOTA_THROTTLE_MODE] == DELAY,
        settings[CONNECTION_IP_THROTTLE_RECHECK],
    )


def proposal_of(text: str, name: str, settings: Settings) -> Proposal:
    """Parse the text of a quota file; raises BadInput."""
    try:
        file = parse(text, name)
        ips = file.ip_rates()
    except QuotaFileError as error:
        raise BadInput(str(error)) from error
    table = replace(file.table(), defaults=defaults(settings))
    return Proposal(name, table, ips.by_ip, ips.default)


def proposals_of(paths: Sequence[str], settings: Settings) -> list[Proposal]:
    """Read quota files; raises BadInput."""
    names = [Path(path).name for path in paths]
    if len(set(names)) < len(names):
        names = list(paths)
    if len(set(names)) < len(names):
        raise BadInput(
            "a quota file is given twice: give each file once, because results are labelled by file"
        )
    found = []
    for path, name in zip(paths, names, strict=True):
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"{path} cannot be read as a quota file: {error}") from error
        found.append(proposal_of(text, name, settings))
    return found
