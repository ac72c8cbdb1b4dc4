"""Which entries of the journal are meant, and assertions over them.

Owns the conditions on an entry, the rule for every selector of a tester in which ``*`` is any text
(those of fault rules and verdicts, too), which ids a topic's name had, for requests that have only
the id (KIP-516), and the assertions: what happened, in which order, and what did not, with their
explanations. It must never know a query, how entries are collected or where topics come from, or
read a clock. Invariants: all given conditions must hold, and an entry that does not have the wanted
field never matches; a body is decoded only if everything that costs less matches and the frame
contains the wanted text; each part of a selector between two ``*`` is searched once, from the end
of the one before, so no selector takes exponential time; memory of ids is bounded by forgetting
those that were learned first; an assertion that something did not happen never holds if entries are
missing of which one may have been the entry in question.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from minibroker.lab.journal.entries import (
    EntryKind,
    JournalEntry,
    api_key,
    decoded_message,
    entry_in_namespace,
    lost_entries,
)
from minibroker.lab.namespaces import NAMES, PrefixedNames, prefix_of
from minibroker_protocol.entities import values
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.metadata import MetadataResponse


def matches_wildcard(text: str, selector: str) -> bool:
    """Whether a text matches a selector, in which ``*`` matches any text."""
    first, *others = selector.split("*")
    if not others:
        return text == selector
    *middle, last = others
    if not (text.startswith(first) and text.endswith(last)):
        return False
    at, end = len(first), len(text) - len(last)
    for part in middle:
        at = text.find(part, at, end)
        if at < 0:
            return False
        at += len(part)
    return at <= end


Uuid: TypeAlias = bytes

TOPIC_IDS_MAX: Final = 50_000
"""Ids that are kept, in some ten megabytes."""


class TopicIds:
    """Ids with their names."""

    def __init__(self, ids_max: int = TOPIC_IDS_MAX) -> None:
        self._ids_max = ids_max
        self._names: dict[Uuid, str] = {}
        self._ids: dict[str, frozenset[Uuid]] = {}

    def learn(self, names: Mapping[Uuid, str]) -> None:
        """Add names by their ids."""
        for topic_id in names.keys() - self._names.keys():
            name = self._names[topic_id] = names[topic_id]
            self._ids[name] = self.of(name) | {topic_id}
        while len(self._names) > self._ids_max:
            self._forget(next(iter(self._names)))

    def _forget(self, topic_id: Uuid) -> None:
        name = self._names.pop(topic_id)
        rest = self._ids.pop(name) - {topic_id}
        if rest:
            self._ids[name] = rest

    def name_of(self, topic_id: Uuid) -> str | None:
        """Return the name of the topic with an id."""
        return self._names.get(topic_id)

    def of(self, name: str) -> frozenset[Uuid]:
        """Return the ids of all topics that have, or had, a name."""
        return self._ids.get(name, frozenset())


_TOPICS: Final = frozenset({Meaning.TOPIC})
_TOPIC_IDS: Final = frozenset({Meaning.TOPIC_ID})
_GROUPS: Final = frozenset({Meaning.GROUP, Meaning.COORDINATOR_KEY})
"""A response of FindCoordinator does not say whether a key is a group."""
_ERRORS: Final = frozenset({Meaning.ERROR, Meaning.PARTIAL_ERROR})


@dataclass(frozen=True, slots=True)
class EntryFilter:
    """Conditions on entries; an empty one matches every entry."""

    kinds: frozenset[EntryKind] = frozenset()
    api: str | None = None
    """Kafka's name of an API, or its key."""
    client_id: str | None = None
    """A client id; ``*`` matches any text."""
    connection: str | None = None
    role: str | None = None
    topic: str | None = None
    """A topic that the body of a request or response names, or has the id of, or whose state
    changed.
    """
    group: str | None = None
    """The same for a group."""
    names: PrefixedNames | None = None
    """The names of a namespace, of which an entry must have one; ``topic`` and ``group``, too."""
    error: str | None = None
    """An error code in a response, by name or number."""
    details: Mapping[str, object] = field(default_factory=dict)
    """Values that ``details`` of the entry must have."""
    after: int = 0
    """Only entries with a greater sequence."""
    topic_ids: TopicIds = field(default_factory=TopicIds, compare=False)
    """The ids of topics; more may be learned later."""

    def matches(self, entry: JournalEntry) -> bool:
        """Whether an entry is meant."""
        return (
            entry.sequence > self.after
            and (not self.kinds or entry.kind in self.kinds)
            and self._matches_client(entry)
            and all(entry.details.get(name) == value for name, value in self.details.items())
            and self._matches_topic(entry)
            and self._matches_named(entry, self.group, "group", _GROUPS)
            and (self.names is None or self.is_in_namespace(entry, self.names))
            and (self.error is None or _has_error(entry, self.error))
        )

    def could_match_lost(self, entry: JournalEntry) -> bool:
        """Whether this is a loss of entries, of which one could have matched."""
        return (
            entry.kind is EntryKind.LOST
            and entry.sequence > self.after
            and self.kinds != {EntryKind.LOST}
            and (self.role is None or entry.role in {"", self.role})
        )

    def _matches_client(self, entry: JournalEntry) -> bool:
        return (
            (self.connection is None or entry.connection == self.connection)
            and (self.role is None or entry.role == self.role)
            and (self.api is None or (entry.api is not None and same_api(entry.api, self.api)))
            and (
                self.client_id is None
                or (
                    entry.client_id is not None
                    and matches_wildcard(entry.client_id, self.client_id)
                )
            )
        )

    def _matches_topic(self, entry: JournalEntry) -> bool:
        if self._matches_named(entry, self.topic, "topic", _TOPICS):
            return True
        frame, ids = entry.frame, self.topic_ids.of(self._broker_name(self.topic) or "")
        if frame is None or not any(topic_id in frame for topic_id in ids):
            return False
        return any(value in ids for value in _values(entry, _TOPIC_IDS))

    def _matches_named(
        self, entry: JournalEntry, wanted: str | None, what: str, meanings: Set[Meaning]
    ) -> bool:
        wanted = self._broker_name(wanted)
        if wanted is None:
            return True
        if entry.kind is EntryKind.STATE:
            return entry.details.get("what") == what and entry.details.get("name") == wanted
        if entry.frame is None or wanted.encode() not in entry.frame:
            return False
        return wanted in _values(entry, meanings)

    def _broker_name(self, name: str | None) -> str | None:
        return name if name is None or self.names is None else self.names.prefix + name

    def is_in_namespace(self, entry: JournalEntry, names: PrefixedNames) -> bool:
        """Whether an entry names something of a namespace, or has the id of one of its topics."""
        if entry.kind is EntryKind.STATE:
            return str(entry.details.get("name", "")).startswith(names.prefix)
        if entry.frame is None:
            return False
        if names.prefix.encode() in entry.frame and any(map(names.has, _values(entry, NAMES))):
            return True
        named = map(self.topic_ids.name_of, _values(entry, _TOPIC_IDS))
        return any(name is not None and names.has(name) for name in named)


def in_namespace(entries: Sequence[JournalEntry], namespace: str) -> Iterator[JournalEntry]:
    """Iterate over the entries of connections on which clients used names of a namespace.

    Entries have the names that these clients know.
    """
    names = PrefixedNames(prefix_of(namespace))
    ids = TopicIds()
    for entry in entries:
        if entry.kind is EntryKind.RESPONSE and same_api(entry.api or "", "Metadata"):
            ids.learn(_named_ids(entry))
    used = EntryFilter(frozenset({EntryKind.REQUEST}), names=names, topic_ids=ids)
    connections = {entry.connection for entry in entries if used.matches(entry)}
    for entry in entries:
        if entry.connection is None or entry.connection in connections:
            yield entry_in_namespace(entry, names)


def _named_ids(entry: JournalEntry) -> Mapping[Uuid, str]:
    """The topics that a response of Metadata names, by their ids."""
    message = decoded_message(entry)
    if message is None or not isinstance(message[0], MetadataResponse):
        return {}
    return {each.topic_id: each.name for each in message[0].topics if each.name}


def same_api(one: str, other: str) -> bool:
    """Whether two names, or keys, are those of the same API."""
    return one == other or (api_key(one) is not None and api_key(one) == api_key(other))


def _has_error(entry: JournalEntry, wanted: str) -> bool:
    if entry.kind is not EntryKind.RESPONSE:
        return False
    codes = _values(entry, _ERRORS)
    if wanted.lstrip("-").isdecimal():
        return int(wanted) in codes
    code = ErrorCode.__members__.get(wanted.upper())
    return code is not None and code in codes


def _values(entry: JournalEntry, meanings: Set[Meaning]) -> Iterator[Any]:
    """Yield the values of all fields with the meanings, and the elements of arrays of them."""
    message = decoded_message(entry)
    return iter(()) if message is None else values(*message, meanings)


class AssertionResult(NamedTuple):
    """Whether an assertion holds, why, and the entries that show it."""

    holds: bool
    text: str
    entries: tuple[JournalEntry, ...]


def happened(
    entries: Iterable[JournalEntry], wanted: EntryFilter, times: int = 1
) -> AssertionResult:
    """Assert that at least so many entries match."""
    found: list[JournalEntry] = []
    losses: list[JournalEntry] = []
    for entry in entries:
        if wanted.matches(entry):
            found.append(entry)
        elif wanted.could_match_lost(entry):
            losses.append(entry)
    holds = len(found) >= times
    text = f"{len(found)} entries match, at least {times} are wanted"
    if not holds:
        text += _unknown(losses, wanted.after)
    return AssertionResult(holds, text, tuple(found))


def happened_in_order(
    entries: Iterable[JournalEntry], wanted: Sequence[EntryFilter]
) -> AssertionResult:
    """Assert that there is an entry for each filter, each after the one before it."""
    found: list[JournalEntry] = []
    losses: list[JournalEntry] = []
    for entry in entries:
        if len(found) == len(wanted):
            break
        if wanted[len(found)].matches(entry):
            found.append(entry)
        elif wanted[len(found)].could_match_lost(entry):
            losses.append(entry)
    if len(found) == len(wanted):
        return AssertionResult(True, "all happened in this order", tuple(found))
    since = f"after entry {found[-1].sequence}" if found else "at all"
    text = f"step {len(found) + 1} of {len(wanted)} did not happen {since}"
    return AssertionResult(False, text + _unknown(losses, wanted[0].after), tuple(found))


def _unknown(losses: Sequence[JournalEntry], after: int) -> str:
    if not losses:
        return ""
    return f"; {_lost_after(losses, after)} entries were lost, which may have matched"


def did_not_happen_before(
    entries: Iterable[JournalEntry],
    unwanted: EntryFilter,
    clock_ms: float | None = None,
    *,
    pending: Mapping[str, int] | None = None,
) -> AssertionResult:
    """Assert that no entry matches, or none before a time of the broker's clock.

    ``pending`` has the numbers of entries that processes have recorded but not handed over.
    """
    losses: list[JournalEntry] = []
    found: list[JournalEntry] = []
    for entry in entries:
        if unwanted.matches(entry):
            if clock_ms is None or entry.clock_ms < clock_ms:
                found.append(entry)
        elif unwanted.could_match_lost(entry) and _began_before(entry, clock_ms):
            losses.append(entry)
    if found:
        since = "" if clock_ms is None else f" {clock_ms - found[0].clock_ms:g} ms too early"
        text = f"entry {found[0].sequence} matches{since}"
        return AssertionResult(False, text, tuple(found))
    if losses:
        lost, last = _lost_after(losses, unwanted.after), losses[-1].sequence
        text = f"{lost} entries up to {last} were lost, so it is unknown whether one matched"
        return AssertionResult(False, text, tuple(losses))
    for role, entries_of_role in (pending or {}).items():
        if unwanted.role in {None, role}:
            text = (
                f"{role} does not respond and has {entries_of_role} entries, so it is unknown "
                "whether one matches"
            )
            return AssertionResult(False, text, ())
    return AssertionResult(True, "no entry matches", ())


def _began_before(loss: JournalEntry, clock_ms: float | None) -> bool:
    since_ms = loss.details["since_ms"]
    return clock_ms is None or (isinstance(since_ms, float | int) and since_ms < clock_ms)


def _lost_after(losses: Sequence[JournalEntry], sequence: int) -> int:
    return sum(min(lost_entries(loss), loss.sequence - sequence) for loss in losses)
