"""Committed offsets: those of a group, their expiry, and those of transactions that have not ended.

It must never know which members may commit (see ``classic_group``), the format of the records (see
``records``) or the log. Invariants: a partition has one offset, the last committed; of two commits
of the same offset the one that was written later wins, whether either was in a transaction or not
and in whichever order transactions end; an offset does not expire while a member may be consuming
its topic. Kafka's counterparts are ``OffsetMetadataManager`` with its ``OpenTransactions``, and
``OffsetExpirationCondition``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator
from typing import NamedTuple


class CommittedOffset(NamedTuple):
    """One committed offset. ``expire_ms`` is set only by clients that still send a retention
    time (OffsetCommit 2 to 4). Times are epoch milliseconds.
    """

    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int
    expire_ms: int | None = None


class OffsetTable:
    """Offsets of one group by topic and partition."""

    def __init__(self) -> None:
        self._topics: dict[str, dict[int, CommittedOffset]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[str, int, CommittedOffset]]:
        for topic, partitions in self._topics.items():
            for partition, committed in partitions.items():
                yield topic, partition, committed

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OffsetTable) and self._topics == other._topics

    def topics(self) -> list[str]:
        return list(self._topics)

    def partitions(self, topic: str) -> dict[int, CommittedOffset]:
        """Offsets of a topic by partition; empty if there are none."""
        return dict(self._topics.get(topic, {}))

    def get(self, topic: str, partition: int) -> CommittedOffset | None:
        return self._topics.get(topic, {}).get(partition)

    def put(self, topic: str, partition: int, committed: CommittedOffset) -> None:
        partitions = self._topics.setdefault(topic, {})
        self._count += partition not in partitions
        partitions[partition] = committed

    def remove(self, topic: str, partition: int) -> bool:
        """Remove an offset; False if there was none."""
        partitions = self._topics.get(topic)
        if partitions is None or partitions.pop(partition, None) is None:
            return False
        self._count -= 1
        if not partitions:
            del self._topics[topic]
        return True

    def expired(
        self,
        *,
        wall_ms: int,
        retention_ms: int,
        age_from_ms: int | None,
        consumed: Container[str],
    ) -> list[tuple[str, int]]:
        """Topic and partition of each expired offset.

        An offset's age counts from ``age_from_ms`` (when the group became empty) or, if that is
        None, from its commit. An expiry time set by the client overrides both.
        """
        expired_keys = []
        for topic, partition, committed in self:
            if topic in consumed:
                continue
            if committed.expire_ms is not None:
                is_expired = wall_ms >= committed.expire_ms
            else:
                from_ms = committed.commit_ms if age_from_ms is None else age_from_ms
                is_expired = wall_ms - from_ms >= retention_ms
            if is_expired:
                expired_keys.append((topic, partition))
        return expired_keys


OffsetKey = tuple[str, str, int]
"""Group, topic and partition."""


class _Pending(NamedTuple):
    order: int
    committed: CommittedOffset


class PendingOffsets:
    """Offsets of one partition of ``__consumer_offsets`` that were committed in transactions which
    have not ended yet, by producer id.
    """

    def __init__(self) -> None:
        self._by_producer: dict[int, dict[OffsetKey, _Pending]] = {}
        self._producers = Counter[OffsetKey]()
        """Number of producers with a pending commit of each offset."""
        self._offsets = Counter[str]()
        """Number of pending offsets of each group."""
        self._newest: dict[OffsetKey, int] = {}
        """The order of the newest commit of each pending offset that is in force."""
        self._order = 0

    def __bool__(self) -> bool:
        return bool(self._by_producer)

    def add(self, producer_id: int, key: OffsetKey, committed: CommittedOffset) -> None:
        """Add a commit that was just written in a transaction of the producer."""
        self._order += 1
        offsets = self._by_producer.setdefault(producer_id, {})
        if key not in offsets:
            self._producers[key] += 1
            self._offsets[key[0]] += 1
        offsets[key] = _Pending(self._order, committed)

    def committed(self, key: OffsetKey) -> None:
        """Note a commit that was just written outside of transactions."""
        if key in self._producers:
            self._order += 1
            self._newest[key] = self._order

    def discard(self, key: OffsetKey) -> None:
        """Remove all pending commits of an offset, which was deleted."""
        for producer_id in [each for each, keys in self._by_producer.items() if key in keys]:
            self._remove(producer_id, key)

    def abort(self, producer_id: int) -> None:
        """Remove the pending commits of a producer."""
        for key in list(self._by_producer.get(producer_id, ())):
            self._remove(producer_id, key)

    def commit(self, producer_id: int) -> list[tuple[OffsetKey, CommittedOffset]]:
        """Remove the pending commits of a producer; return those that are now in force."""
        in_force = []
        for key, (order, committed) in list(self._by_producer.get(producer_id, {}).items()):
            if order > self._newest.get(key, 0):
                self._newest[key] = order
                in_force.append((key, committed))
            self._remove(producer_id, key)
        return in_force

    def _remove(self, producer_id: int, key: OffsetKey) -> None:
        offsets = self._by_producer[producer_id]
        del offsets[key]
        if not offsets:
            del self._by_producer[producer_id]
        self._offsets[key[0]] -= 1
        if not self._offsets[key[0]]:
            del self._offsets[key[0]]
        self._producers[key] -= 1
        if not self._producers[key]:
            del self._producers[key]
            self._newest.pop(key, None)

    def is_pending(self, key: OffsetKey) -> bool:
        """Whether a transaction that has not ended commits this offset."""
        return key in self._producers

    def of_group(self, group_id: str) -> Iterator[tuple[str, int]]:
        """Topic and partition of each pending offset of a group."""
        if group_id in self._offsets:
            yield from (key[1:] for key in self._producers if key[0] == group_id)

    def groups(self) -> list[str]:
        """Groups that have pending offsets."""
        return list(self._offsets)

    def has_group(self, group_id: str) -> bool:
        return group_id in self._offsets

    def count(self, group_id: str) -> int:
        """Number of pending commits of a group."""
        return self._offsets[group_id]
