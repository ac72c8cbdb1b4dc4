"""Which entries of the journal are meant.

Owns the conditions on an entry. It must never know a query, or read a clock. Invariant: all given
conditions must hold, and an entry that does not have the wanted field never matches; a body is
decoded only if everything that costs less matches and the frame contains the wanted text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any, Final

from minibroker.broker.patterns.wildcard import matches_wildcard
from minibroker.lab.journal.entries import EntryKind, JournalEntry, api_key, decoded_message
from minibroker.lab.journal.topic_ids import TopicIds
from minibroker_protocol.entities import values
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.meanings import Meaning

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
        frame, ids = entry.frame, self.topic_ids.of(self.topic or "")
        if frame is None or not any(topic_id in frame for topic_id in ids):
            return False
        return any(value in ids for value in _values(entry, _TOPIC_IDS))

    def _matches_named(
        self, entry: JournalEntry, wanted: str | None, what: str, meanings: Set[Meaning]
    ) -> bool:
        if wanted is None:
            return True
        if entry.kind is EntryKind.STATE:
            return entry.details.get("what") == what and entry.details.get("name") == wanted
        if entry.frame is None or wanted.encode() not in entry.frame:
            return False
        return wanted in _values(entry, meanings)


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
