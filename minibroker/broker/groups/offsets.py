"""Committed offsets of a group, and their expiry.

It must never know which members may commit (see ``group_state_machine``) or the format of the
records (see ``records``). Invariant: a partition has one offset, the last committed. An offset does
not expire while a member may be consuming its topic. Kafka's counterparts are
``OffsetMetadataManager`` and ``OffsetExpirationCondition``.
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
