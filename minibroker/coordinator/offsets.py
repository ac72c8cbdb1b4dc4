"""How far a group has read: committed offsets, and when they are forgotten.

It must never know who may commit (``machine`` does) or how offsets are written (``records``).
Invariant: a partition has one offset, the last one put. Nothing expires while somebody may still
be consuming it. Kafka's ``OffsetMetadataManager`` and ``OffsetExpirationCondition``.
"""

from __future__ import annotations

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
        """Forgets an offset; False if there was none."""
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
        """What may be forgotten now.

        Age counts from ``age_from_ms`` (when the group became empty) or, where that is None, from
        each offset's commit. A client's own expiry time goes before both.
        """
        due = []
        for topic, partition, committed in self:
            if topic in consumed:
                continue
            if committed.expire_ms is not None:
                over = wall_ms >= committed.expire_ms
            else:
                since = committed.commit_ms if age_from_ms is None else age_from_ms
                over = wall_ms - since >= retention_ms
            if over:
                due.append((topic, partition))
        return due
