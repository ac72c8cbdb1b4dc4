"""The partitions that fetch sessions watch at one I/O worker, and which of them may have changed.

Owns a watch for each session, in the order of use. It must never know requests, sessions' epochs or
logs. Invariant: a partition of a watch that is not pending has no records for the session, and is
as the newest response described it. So a fetch reads only pending partitions, and a session of a
thousand idle partitions costs as much as one of ten. A partition becomes pending when its query or
its log changes, and stays so until a response has told the client that there is nothing new.
Kafka's ``DelayedFetch`` watches by partition too, but reads all partitions of the session.
"""

from __future__ import annotations

from collections.abc import Callable

from minibroker.broker.apis.fetch_sessions import ALL_PARTITIONS, SessionPart
from minibroker.broker.apis.partition_fetch import FetchQuery, TopicPartition


class FetchWatch:
    """The partitions of one session at this worker."""

    __slots__ = ("_idle", "_marks", "_pending", "_positions", "_queries", "sequence", "session_id")

    def __init__(self, session_id: int) -> None:
        self.session_id = session_id
        self.sequence = ALL_PARTITIONS
        self._queries: dict[TopicPartition, FetchQuery] = {}
        self._positions: dict[TopicPartition, int] = {}
        self._pending: dict[TopicPartition, int] = {}
        """Partitions that may have changed, and the mark of the last change."""
        self._idle: dict[TopicPartition, None] = {}
        """Pending partitions for which the last read found nothing to send but offsets."""
        self._marks = 0

    @property
    def mark(self) -> int:
        """Number of changes so far."""
        return self._marks

    @property
    def partitions(self) -> list[TopicPartition]:
        return list(self._queries)

    def pending(self) -> list[FetchQuery]:
        """The queries of all pending partitions in the order of the session."""
        order = sorted(self._pending, key=self._positions.__getitem__)
        return [self._queries[name] for name in order]

    def changed(self, name: TopicPartition) -> None:
        """Make a partition pending."""
        if name in self._queries:
            self._marks += 1
            self._pending[name] = self._marks
            self._idle.pop(name, None)

    def note_idle(self, name: TopicPartition) -> None:
        """Note that a read has found neither records nor an error."""
        self._idle[name] = None

    def advance(self, part: SessionPart) -> None:
        """Apply the changes of the next part."""
        self.sequence = part.sequence
        for name in [name for name in self._idle if self._pending[name] <= part.seen]:
            del self._pending[name], self._idle[name]
        for name, position in part.moved:
            self._positions[name] = position
        for name in part.forgotten:
            self._queries.pop(name, None)
            self._positions.pop(name, None)
            self._pending.pop(name, None)
            self._idle.pop(name, None)
        for query, position in part.queries:
            name = query.topic, query.partition
            self._queries[name] = query
            self._positions[name] = position
            self.changed(name)


class FetchWatches:
    """The watches of one worker, at most ``watches_max``. Used by a single thread."""

    def __init__(self, watches_max: int, wake: Callable[[int], None]) -> None:
        """``wake`` is called with the session id when a partition of its watch has changed."""
        self._watches_max = max(1, watches_max)
        self._wake = wake
        self._watches: dict[int, FetchWatch] = {}
        self._by_partition: dict[TopicPartition, dict[FetchWatch, None]] = {}
        """The watches to notify of the next change of a partition."""

    def __len__(self) -> int:
        return len(self._watches)

    def advance(self, part: SessionPart) -> FetchWatch | None:
        """The watch of a session after a part; None if the part does not follow the last one."""
        if part.follows == ALL_PARTITIONS:
            self._drop(part.session_id)
            watch = FetchWatch(part.session_id)
            while len(self._watches) >= self._watches_max:
                self._drop(next(iter(self._watches)))
        else:
            found = self._watches.pop(part.session_id, None)
            if found is None:
                return None
            watch = found
        self._watches[part.session_id] = watch  # Now the most recently used one.
        if watch.sequence != part.follows:
            return None
        watch.advance(part)
        for name in part.forgotten:
            self._unsubscribe(watch, name)
        return watch

    def is_current(self, watch: FetchWatch, sequence: int) -> bool:
        """Whether no later part of the session has arrived and the watch was not dropped."""
        return watch.sequence == sequence and self._watches.get(watch.session_id) is watch

    def subscribe(self, watch: FetchWatch, name: TopicPartition) -> None:
        """Notify a watch of the next change of a partition that was just read."""
        self._by_partition.setdefault(name, {})[watch] = None

    def changed(self, topic: str, partition: int) -> None:
        """Make a partition pending in all watches that have read it since its last change."""
        watches = self._by_partition.pop((topic, partition), None)
        if watches is not None:
            for watch in watches:
                watch.changed((topic, partition))
                self._wake(watch.session_id)

    def _drop(self, session_id: int) -> None:
        watch = self._watches.pop(session_id, None)
        if watch is not None:
            for name in watch.partitions:
                self._unsubscribe(watch, name)
            self._wake(session_id)

    def _unsubscribe(self, watch: FetchWatch, name: TopicPartition) -> None:
        watches = self._by_partition.get(name)
        if watches is not None:
            watches.pop(watch, None)
            if not watches:
                del self._by_partition[name]
