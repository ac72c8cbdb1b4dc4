"""The partitions that one I/O worker hosts, over the logs of its ``LogManager``.

Owns the open partitions and follows the cluster image: it drops those of deleted topics and updates
the leadership of the others. It must never know requests. Invariant: a partition in its table has
the topic id, leader and leader epoch of the newest image. Kafka's ``ReplicaManager``.
"""

from __future__ import annotations

from minibroker.broker.log.manager import LogManager
from minibroker.broker.log.partition import Partition, PartitionChanged, ignore_change
from minibroker.broker.metadata.image import Image


class ReplicaManager:
    """The open partitions of one worker. Used by a single thread."""

    def __init__(
        self, logs: LogManager, broker_id: int, on_change: PartitionChanged = ignore_change
    ) -> None:
        """``on_change`` is called when the offsets or the leader of a partition have changed."""
        self._on_change = on_change
        self._logs = logs
        self._broker_id = broker_id
        self._partitions: dict[tuple[str, int], Partition] = {}

    def open_partition(self, topic: str, index: int) -> Partition | None:
        """The partition if its log is open, else None."""
        return self._partitions.get((topic, index))

    def get(self, image: Image, topic: str, index: int, *, now_ms: int) -> Partition | None:
        """The partition, with its log opened or created if needed; None if it is not hosted here.

        Raises LogError if the log cannot be opened.
        """
        partition = self._partitions.get((topic, index))
        if partition is not None:
            return partition
        registration = image.partition(topic, index)
        if registration is None:
            return None
        log = self._logs.get(image, topic, index, now_ms=now_ms)
        if log is None:
            return None
        partition = self._partitions[topic, index] = Partition(
            log,
            image.topics[topic].topic_id,
            broker_id=self._broker_id,
            leader_id=registration.leader,
            leader_epoch=registration.leader_epoch,
            on_change=self._on_change,
        )
        return partition

    def follow(self, before: Image, after: Image) -> None:
        """Close the partitions of deleted topics; update configs and leadership of the others."""
        self._logs.follow(before, after)
        if before.topics is after.topics:
            return
        for (topic, index), partition in list(self._partitions.items()):
            known = after.topics.get(topic)
            if known is before.topics.get(topic):
                continue
            is_gone = known is None or known.topic_id != partition.topic_id
            if known is None or is_gone or index >= len(known.partitions):
                # Partitions are removed from a topic only by the return to a snapshot.
                del self._partitions[topic, index]
                self._on_change(topic, index)
            else:
                registration = known.partitions[index]
                partition.update_leadership(registration.leader, registration.leader_epoch)
                self._on_change(topic, index)

    def forget_all(self) -> None:
        """Forget all partitions, whose logs were closed."""
        partitions, self._partitions = self._partitions, {}
        for topic, index in partitions:
            self._on_change(topic, index)
