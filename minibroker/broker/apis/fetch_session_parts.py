"""What a processor sends to I/O workers for an incremental fetch: the changes of a session.

Owns the messages between a session and the workers that watch its partitions, and the changes that
a worker does not know yet. It must never know requests or the rules of sessions. Invariant: a part
that does not follow the last one that the worker executed is rejected by its sequence number, and
then all partitions of the worker are sent again; so a lost part loses no change. Kafka keeps a
session in one place and reads all its partitions for each request.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from minibroker.broker.apis.partition_fetch import (
    FetchLimits,
    FetchQuery,
    FetchResult,
    TopicPartition,
)

ALL: Final = -1
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


class SessionReply(NamedTuple):
    """The partitions that may have changed; ``due`` as in ``FetchReply``.

    ``is_lost`` if the worker does not know the session, so it needs all partitions.
    """

    found: dict[TopicPartition, FetchResult]
    size: int = 0
    failed: bool = False
    due: bool = True
    mark: int = 0
    is_lost: bool = False


class _Worker:
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
        follows = self.sequence if self.is_known else ALL
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
        self._workers: dict[int, _Worker] = {}
        self._committed = False

    def watch(self, owner: int, query: FetchQuery, position: int) -> None:
        """Add a partition, or change its query."""
        worker = self._workers.setdefault(owner, _Worker())
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
        self, replies: Mapping[int, SessionReply], limits: FetchLimits
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
