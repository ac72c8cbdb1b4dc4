"""Traffic of one client: its connections with their requests, out of the journal's entries.

Owns which connections belong to a client, which response belongs to which request, and over which
times durations can be trusted. It must never judge. Invariant: every entry is read once and in the
order of sequence numbers; a duration during which the clock was moved is never used.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from minibroker.lab.journal.entries import EntryKind, JournalEntry
from minibroker.lab.journal.filters import matches_wildcard
from minibroker.lab.verdicts.exchanges import ObservedExchange
from minibroker_protocol.registry import ApiKey

HANDSHAKE_APIS: Final = frozenset(
    {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
)
"""APIs that only prepare a connection for others."""


class ObservedConnection:
    """One connection with its requests, in their order."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.opened: JournalEntry | None = None
        self.closed: JournalEntry | None = None
        self.exchanges: list[ObservedExchange] = []
        self.faults: list[JournalEntry] = []
        self.states: list[JournalEntry] = []
        self.client_ids: set[str | None] = set()
        self.address: str | None = None

    @property
    def first(self) -> JournalEntry:
        """The first entry of the connection."""
        entries = [self.opened, *(each.sent for each in self.exchanges[:1]), self.closed]
        return next(entry for entry in entries if entry is not None)

    @property
    def is_served(self) -> bool:
        """Whether the broker answered a request."""
        return any(each.answer is not None for each in self.exchanges)

    @property
    def sequences(self) -> tuple[int, ...]:
        """Sequence numbers of its start and end."""
        ends = (self.first, self.closed)
        return tuple(sorted({entry.sequence for entry in ends if entry is not None}))


class ClientTraffic:
    """Everything that the journal has about one client."""

    def __init__(
        self,
        client_id: str,
        connections: Sequence[ObservedConnection],
        clock_changes: Sequence[JournalEntry],
    ) -> None:
        self.client_id = client_id
        self.connections = sorted(connections, key=lambda each: each.first.sequence)
        self.exchanges = sorted(
            (each for connection in connections for each in connection.exchanges),
            key=lambda each: each.sent.sequence,
        )
        self.closed_at = {
            each.name: each.closed.sequence for each in self.connections if each.closed is not None
        }
        """Sequence numbers at which connections were closed."""
        self._clock_changes = [entry.sequence for entry in clock_changes]
        self._stops = {
            entry.sequence: is_running for entry, is_running in _clock_states(clock_changes)
        }

    @property
    def last(self) -> JournalEntry | None:
        """The last entry of the client."""
        ends = [
            entry
            for each in self.connections
            for entry in (each.first, each.closed, *(_last_entries(each)))
            if entry is not None
        ]
        return max(ends, key=lambda entry: entry.sequence, default=None)

    def is_steady(self, first: int, last: int) -> bool:
        """Whether the clock ran like real time between two sequence numbers."""
        at = bisect_left(self._clock_changes, first)
        if at and not self._stops[self._clock_changes[at - 1]]:
            return False
        return at == bisect_right(self._clock_changes, last)

    def of_api(self, *keys: ApiKey) -> list[ObservedExchange]:
        """Return the requests of some APIs, in their order."""
        return [each for each in self.exchanges if each.key in keys]


def _last_entries(connection: ObservedConnection) -> tuple[JournalEntry | None, ...]:
    if not connection.exchanges:
        return ()
    return connection.exchanges[-1].sent, connection.exchanges[-1].answer


def _clock_states(changes: Sequence[JournalEntry]) -> Iterable[tuple[JournalEntry, bool]]:
    """The changes of the clock, each with whether it runs like real time afterwards."""
    for entry in changes:
        frozen = bool(entry.details.get("frozen"))
        yield entry, not frozen and entry.details.get("rate", 1) == 1


class NoSuchClient(NamedTuple):
    """The journal has no request of a client."""

    client_id: str
    others: tuple[str, ...]
    """Client ids that the journal has."""

    def __str__(self) -> str:
        others = ", ".join(self.others) if self.others else "none"
        return (
            f"no request of the client id {self.client_id!r}; client ids in the journal: {others}"
        )


CLIENT_IDS_MAX: Final = 20
"""Client ids that a message lists."""


def traffic_of(entries: Iterable[JournalEntry], client_id: str) -> ClientTraffic | NoSuchClient:
    """Return the traffic of a client; ``*`` in the client id matches any text.

    A connection without any request belongs to the client if all requests from its address do.
    """
    connections: dict[str, ObservedConnection] = {}
    clock_changes: list[JournalEntry] = []
    for entry in sorted(entries, key=lambda each: each.sequence):
        if entry.kind is EntryKind.CLOCK:
            clock_changes.append(entry)
        elif entry.connection is not None and entry.kind is not EntryKind.CONNECTION_REJECTED:
            found = connections.setdefault(entry.connection, ObservedConnection(entry.connection))
            _note(found, entry)
    named = [each for each in connections.values() if _is_of(each, client_id)]
    if not named:
        ids = Counter(name for each in connections.values() for name in each.client_ids if name)
        others = tuple(sorted(name for name, _ in ids.most_common(CLIENT_IDS_MAX)))
        return NoSuchClient(client_id, others)
    own = {_host(each.address) for each in named}
    shared = {
        _host(each.address)
        for each in connections.values()
        if each.exchanges and not _is_of(each, client_id)
    }
    silent = [
        each
        for each in connections.values()
        if not each.exchanges and _host(each.address) in own - shared - {None}
    ]
    return ClientTraffic(client_id, [*named, *silent], clock_changes)


def _is_of(connection: ObservedConnection, client_id: str) -> bool:
    return any(
        name is not None and matches_wildcard(name, client_id) for name in connection.client_ids
    )


def _host(address: str | None) -> str | None:
    """The address without its port."""
    if address is None:
        return None
    host, separator, port = address.rpartition(":")
    return host if separator and port.isdecimal() else address


def _note(connection: ObservedConnection, entry: JournalEntry) -> None:
    connection.address = connection.address or entry.address
    if entry.kind is EntryKind.CONNECTION_OPENED:
        connection.opened = entry
    elif entry.kind is EntryKind.CONNECTION_CLOSED:
        connection.closed = entry
    elif entry.kind is EntryKind.FAULT:
        connection.faults.append(entry)
    elif entry.kind is EntryKind.STATE:
        connection.states.append(entry)
    elif entry.kind is EntryKind.REQUEST:
        connection.exchanges.append(ObservedExchange(entry))
        connection.client_ids.add(entry.client_id)
    elif entry.kind is EntryKind.RESPONSE:
        for exchange in reversed(connection.exchanges):
            if exchange.sent.correlation_id == entry.correlation_id and exchange.answer is None:
                exchange.answer = entry
                break
