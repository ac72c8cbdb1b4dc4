"""Incremental fetch sessions (KIP-227): the partitions of a client, which a request only changes.

Owns the rules of sessions: epochs, what an incremental response leaves out, the order of the
partitions, and which session gives way if all slots are in use; and the changes of a session that
the I/O workers which watch its partitions do not know yet. It must never know how messages get to
them; the time is an argument, in seconds. Each processor has its own cache with a share of the
slots and of the session ids, as each shard of Kafka has, so an id is unique in the broker. A client
that continues a session at another processor gets FETCH_SESSION_ID_NOT_FOUND and starts a new one.
Invariant: there are never more sessions than slots; and a part that does not follow the last one
that the worker executed is rejected by its sequence number, and then all partitions of the worker
are sent again, so a lost part loses no change. Kafka's ``FetchSession``,
``FetchSessionCacheShard`` and ``FetchManager``, which keep a session in one place and read all its
partitions for each request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from minibroker.broker.apis.partition_fetch import (
    FetchLimits,
    FetchQuery,
    FetchReply,
    FetchResult,
    TopicPartition,
    fetch_query,
)
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.fetch import FetchPartition, FetchTopic, ForgottenTopic
from minibroker_protocol.types import Uuid

ALL_PARTITIONS: Final = -1
"""``follows`` of a part with all partitions of the worker."""


class Watched(NamedTuple):
    """A partition of a session, and its position in the order of the session."""

    query: FetchQuery
    position: int


class SessionPart(NamedTuple):
    """Changes of a session since the part ``follows``, and the fetch of its partitions.

    ``seen`` is the mark of the newest reply that became a response. ``moved`` and ``queries`` have
    positions in the order of the session. The worker first removes the partitions in ``forgotten``.
    """

    session_id: int
    follows: int
    sequence: int
    seen: int
    moved: tuple[tuple[TopicPartition, int], ...]
    forgotten: tuple[TopicPartition, ...]
    queries: tuple[Watched, ...]
    max_bytes: int
    enough: int
    deadline: float
    committed: bool


class _SessionAtWorker:
    """The partitions of one worker, and what it does not know of them yet."""

    __slots__ = ("changed", "forgotten", "is_known", "moved", "partitions", "seen", "sequence")

    def __init__(self) -> None:
        self.partitions: dict[TopicPartition, Watched] = {}
        self.changed: dict[TopicPartition, None] = {}
        self.forgotten: dict[TopicPartition, None] = {}
        self.moved: dict[TopicPartition, None] = {}
        self.sequence = 0
        self.seen = 0
        self.is_known = False
        """Whether the last part was sent, so that the next one can follow it."""

    def next_part(
        self, session_id: int, limits: FetchLimits, enough: int, committed: bool
    ) -> SessionPart:
        """The part with all changes since the last one."""
        partitions = self.partitions
        follows = self.sequence if self.is_known else ALL_PARTITIONS
        if not self.is_known:
            self.moved, self.forgotten, self.seen, self.is_known = {}, {}, 0, True
            # In the order of the session, as Kafka reads.
            order = sorted(partitions, key=lambda name: partitions[name].position)
            self.changed = dict.fromkeys(order)
        self.sequence += 1
        part = SessionPart(
            session_id,
            follows,
            self.sequence,
            self.seen,
            tuple((name, partitions[name].position) for name in self.moved),
            tuple(self.forgotten),
            tuple(partitions[name] for name in self.changed),
            limits.bytes_max,
            enough,
            limits.deadline,
            committed,
        )
        self.changed, self.forgotten, self.moved = {}, {}, {}
        return part


class SessionParts:
    """The workers of one session, by owner."""

    def __init__(self, session_id: int) -> None:
        self._session_id = session_id
        self._workers: dict[int, _SessionAtWorker] = {}
        self._committed = False

    def watch(self, owner: int, query: FetchQuery, position: int) -> None:
        """Add a partition, or change its query."""
        worker = self._workers.setdefault(owner, _SessionAtWorker())
        name = query.topic, query.partition
        worker.partitions[name] = Watched(query, position)
        worker.changed[name] = None
        worker.moved.pop(name, None)

    def forget(self, owner: int, name: TopicPartition) -> None:
        """Remove a partition."""
        worker = self._workers[owner]
        del worker.partitions[name]
        worker.changed.pop(name, None)
        worker.moved.pop(name, None)
        worker.forgotten[name] = None
        if not worker.partitions:
            worker.forgotten, worker.is_known = {}, False

    def move(self, owner: int, name: TopicPartition, position: int) -> None:
        """Move a partition in the order of the session."""
        worker = self._workers[owner]
        watched = worker.partitions.get(name)
        if watched is not None:
            worker.partitions[name] = watched._replace(position=position)
            if name not in worker.changed:
                worker.moved[name] = None

    def seen(self, owner: int, mark: int) -> None:
        """Note that a reply with this mark became a response."""
        self._workers[owner].seen = mark

    def read_committed(self, committed: bool) -> None:
        """Change whether records end at the last stable offset; all partitions are read again."""
        if self._committed != committed:
            self._committed = committed
            for worker in self._workers.values():
                worker.is_known = False

    def next_parts(self, limits: FetchLimits) -> dict[int, SessionPart]:
        """The next part of each worker that has partitions. Several workers do not wait."""
        workers = {owner: worker for owner, worker in self._workers.items() if worker.partitions}
        enough = limits.bytes_min if len(workers) == 1 else 0
        return {
            owner: worker.next_part(self._session_id, limits, enough, self._committed)
            for owner, worker in workers.items()
        }

    def complete_parts(
        self, owners: Iterable[int], limits: FetchLimits, enough: int
    ) -> dict[int, SessionPart]:
        """Parts with all partitions, for workers that do not know the session."""
        for owner in owners:
            self._workers[owner].is_known = False
        return {
            owner: self._workers[owner].next_part(self._session_id, limits, enough, self._committed)
            for owner in owners
        }

    def waiting_parts(
        self, replies: Mapping[int, FetchReply], limits: FetchLimits
    ) -> Iterator[tuple[int, SessionPart]]:
        """Parts without changes, which wait for more bytes than a worker has found before."""
        for owner, reply in replies.items():
            sequence = self._workers[owner].sequence
            waiting = SessionPart(
                self._session_id,
                follows=sequence,
                sequence=sequence,
                seen=0,
                moved=(),
                forgotten=(),
                queries=(),
                max_bytes=limits.bytes_max,
                enough=reply.size + 1,
                deadline=limits.deadline,
                committed=self._committed,
            )
            yield owner, waiting


NO_SESSION: Final = 0
INITIAL_EPOCH: Final = 0
"""Epoch of a full request that starts a session."""
FINAL_EPOCH: Final = -1
"""Epoch of a full request that closes its session and starts none."""
EPOCH_MAX: Final = 0x7FFFFFFF

EVICTION_S: Final = 120.0
"""A session that was unused for longer may be evicted by any other.

Kafka's ``MIN_INCREMENTAL_FETCH_SESSION_EVICTION_MS``.
"""

UNKNOWN_OFFSET: Final = -1

PartitionKey = tuple[str | Uuid, int]
"""Topic id, or topic name before version 13, and partition."""


def next_epoch(epoch: int) -> int:
    """The epoch of the next incremental request; it wraps from the largest one to 1."""
    if epoch < 0:
        return FINAL_EPOCH
    return 1 if epoch == EPOCH_MAX else epoch + 1


def session_ids(index: int, processors: int) -> range:
    """The session ids of one processor."""
    size = EPOCH_MAX // processors
    return range(max(1, index * size), (index + 1) * size)


def slots_of(index: int, processors: int, slots: int) -> int:
    """The share of one processor of all slots."""
    return max(0, slots + processors - 1 - index) // processors


class CachedPartition:
    """One partition of a session: what the client requests, and what it was sent."""

    __slots__ = (
        "error",
        "high_watermark",
        "log_start_offset",
        "name",
        "owner",
        "position",
        "requested",
        "topic",
        "topic_id",
    )

    def __init__(self, topic: FetchTopic, requested: FetchPartition, position: int) -> None:
        self.topic: str | None = topic.topic or None
        """The topic's name; with topic ids None until the id is known, and then kept."""
        self.topic_id = topic.topic_id
        self.requested = requested
        self.position = position
        self.high_watermark = UNKNOWN_OFFSET
        self.log_start_offset = UNKNOWN_OFFSET
        self.error = ErrorCode.NONE
        """Error that is found without its owner."""
        self.owner: int | None = None
        """Index of the worker that watches the partition, if one does."""
        self.name: TopicPartition = ("", requested.partition)
        """Topic and partition at the owner."""

    def query(self) -> FetchQuery:
        """The query for its owner."""
        return fetch_query(self.name[0], self.requested)

    def must_respond(self, result: FetchResult, records: object) -> bool:
        """Whether an incremental response includes the partition."""
        return bool(
            records
            or result.is_failed
            or self.high_watermark != result.high_watermark
            or self.log_start_offset != result.log_start_offset
        )


class Sent(NamedTuple):
    """What a response says about one partition."""

    partition: CachedPartition
    high_watermark: int
    log_start_offset: int
    has_records: bool


class FetchSession:
    """The partitions of one client, in the order in which they are read."""

    def __init__(self, session_id: int, now: float, *, is_privileged: bool, by_id: bool) -> None:
        """``is_privileged`` if it belongs to a follower; ``by_id`` if it uses topic ids."""
        self.id = session_id
        self.is_privileged = is_privileged
        self.by_id = by_id
        self.created = now
        self.used = now
        self.epoch = next_epoch(INITIAL_EPOCH)
        self.size = 0
        """Number of partitions at the last use, which decides about eviction."""
        self.parts = SessionParts(session_id)
        self.checked: object = None
        """What the errors of all partitions were found with."""
        self.unchecked: dict[PartitionKey, CachedPartition] = {}
        """Partitions that are new or changed."""
        self.rejected: dict[PartitionKey, CachedPartition] = {}
        """Partitions with an error that is found without their owners."""
        self._partitions: dict[PartitionKey, CachedPartition] = {}
        self._watched: dict[TopicPartition, CachedPartition] = {}
        self._positions = 0
        self._sent: tuple[tuple[Sent, ...], dict[int, int]] = ((), {})
        self._is_closed = False
        self._was_resent = False

    def __len__(self) -> int:
        return len(self._partitions)

    def partitions(self) -> Iterator[tuple[PartitionKey, CachedPartition]]:
        """All partitions, in no particular order."""
        return iter(self._partitions.items())

    def key(self, topic: FetchTopic | ForgottenTopic, partition: int) -> PartitionKey:
        return (topic.topic_id if self.by_id else topic.topic), partition

    def watched(self, name: TopicPartition) -> CachedPartition | None:
        """The partition that is watched by this name."""
        return self._watched.get(name)

    def add(self, topic: FetchTopic, requested: FetchPartition) -> CachedPartition:
        """Add a partition at the end, or change its query and keep its position."""
        key = self.key(topic, requested.partition)
        cached = self._partitions.get(key)
        if cached is None:
            cached = CachedPartition(topic, requested, self._next_position())
            self._partitions[key] = cached
        cached.requested = requested
        self.unchecked[key] = cached
        return cached

    def forget(self, topic: ForgottenTopic, partition: int) -> None:
        """Remove a partition, if the session has it."""
        key = self.key(topic, partition)
        cached = self._partitions.pop(key, None)
        if cached is not None:
            self.unchecked.pop(key, None)
            self.rejected.pop(key, None)
            self._unwatch(cached)

    def place(self, key: PartitionKey, cached: CachedPartition, owner: int | None) -> None:
        """Let a worker watch a partition, or none if it has an error."""
        name = cached.topic or "", key[1]
        if owner is None:
            self.rejected[key] = cached
            self._unwatch(cached)
            return
        self.rejected.pop(key, None)
        if cached.owner is not None and cached.name != name:
            self._unwatch(cached)
        before = self._watched.get(name)
        if before is not None and before is not cached:
            before.owner = None  # Another id of the topic; it is checked and rejected too.
        cached.owner, cached.name = owner, name
        self._watched[name] = cached
        self.parts.watch(owner, cached.query(), cached.position)

    def _unwatch(self, cached: CachedPartition) -> None:
        if cached.owner is not None:
            self.parts.forget(cached.owner, cached.name)
            del self._watched[cached.name]
            cached.owner = None

    def close(self) -> None:
        """Leave the cache; a fetch that is waiting may still use the session."""
        self._is_closed = True

    def may_resend(self) -> bool:
        """Whether a worker that does not know the session is sent all its partitions.

        A closed session is sent only once more: it is in no slot, so it might displace another
        session from a worker, which would displace it in turn, for as long as both are waiting.
        """
        if self._is_closed and self._was_resent:
            return False
        self._was_resent = self._is_closed
        return True

    def note_sent(self, sent: Iterable[Sent], marks: dict[int, int]) -> None:
        """Note what a response says; valid unless the response is withdrawn before the next use.

        ``marks`` are those of the workers' replies, by owner.
        """
        self._sent = tuple(sent), marks

    def withdraw_sent(self) -> None:
        """Note that the response was not sent, because the client is throttled."""
        self._sent = (), {}

    def settle(self) -> None:
        """Apply what the last response said: partitions with records move to the end."""
        (sent, marks), self._sent = self._sent, ((), {})
        for partition, high_watermark, log_start_offset, has_records in sent:
            partition.high_watermark = high_watermark
            partition.log_start_offset = log_start_offset
            if has_records:
                partition.position = self._next_position()
                if partition.owner is not None:
                    self.parts.move(partition.owner, partition.name, partition.position)
        for owner, mark in marks.items():
            self.parts.seen(owner, mark)

    def _next_position(self) -> int:
        self._positions += 1
        return self._positions


class FetchSessionCache:
    """The sessions of one processor. Used by a single thread."""

    def __init__(self, slots: int, ids: range, random_id: Callable[[int, int], int]) -> None:
        """``random_id`` returns a random integer from its first argument up to the second, which
        it does not reach.
        """
        self._slots = slots
        self._ids = ids
        self._random_id = random_id
        self._sessions: dict[int, FetchSession] = {}
        """The least recently used one first."""
        self._partitions = 0
        self.evictions = 0
        """Number of sessions that were evicted so far."""

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partition_count(self) -> int:
        """Number of partitions in all sessions."""
        return self._partitions

    def get(self, session_id: int, epoch: int, *, by_id: bool) -> FetchSession | ErrorCode:
        """The session of an incremental request, or the error of the request."""
        session = self._sessions.get(session_id)
        if session is None:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if session.epoch != epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        if session.by_id != by_id:
            return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        return session

    def create(
        self, size: int, now: float, *, is_privileged: bool, by_id: bool
    ) -> FetchSession | None:
        """An empty session that will have ``size`` partitions; None if all slots are in use."""
        if len(self._sessions) >= self._slots and not self._evict(size, now, is_privileged):
            return None
        session_id = self._new_id()
        session = FetchSession(session_id, now, is_privileged=is_privileged, by_id=by_id)
        self._sessions[session_id] = session
        return session

    def _new_id(self) -> int:
        while True:
            session_id = self._random_id(self._ids.start, self._ids.stop)
            if session_id not in self._sessions:
                return session_id

    def touch(self, session: FetchSession, now: float) -> None:
        """Note the use of a session, after its partitions have changed."""
        del self._sessions[session.id]
        self._sessions[session.id] = session
        self._partitions += len(session) - session.size
        session.used, session.size = now, len(session)

    def remove(self, session_id: int) -> None:
        """Close a session if it exists."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.close()
            self._partitions -= session.size

    def clear(self) -> None:
        """Close all sessions."""
        for session_id in list(self._sessions):
            self.remove(session_id)

    def _evict(self, size: int, now: float, is_privileged: bool) -> bool:
        """Evict a session for a new one with ``size`` partitions, if a session must give way.

        That is one that was unused for long; otherwise the smallest one that is older, unless it is
        larger. Followers also evict consumers, and never the other way round.
        """
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return False
        evicted = oldest
        if now - oldest.used <= EVICTION_S:
            candidates = (
                session
                for session in self._sessions.values()
                if session.used - session.created > EVICTION_S
                or (is_privileged and not session.is_privileged)
            )
            least = min(candidates, key=_value, default=None)
            if least is None or (is_privileged, size, 0) < _value(least):
                return False
            evicted = least
        self.remove(evicted.id)
        self.evictions += 1
        return True


def _value(session: FetchSession) -> tuple[bool, int, int]:
    """The value of a session: the least valuable one is evicted first."""
    return session.is_privileged, session.size, session.id
