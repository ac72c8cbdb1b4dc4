"""The partitions that one I/O worker hosts, over the logs of its ``LogManager``.

Owns the open partitions: their leadership, their high watermarks, and the checks that an API makes
before it uses a log. It follows the cluster image: it drops partitions of deleted topics and
updates the leadership of the others. It must never know requests. Invariant: a partition in the
table has the topic id, leader and leader epoch of the newest image. Consumers read below the high
watermark only, and it never falls while this broker leads; with one replica, it advances to the log
end with every append. Kafka's ``Partition`` and ``ReplicaManager``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from minibroker.broker.log.checkpoint import UNDEFINED_END, EpochEnd
from minibroker.broker.log.errors import LogError
from minibroker.broker.log.log import Appended, FileSlice, Log, Origin
from minibroker.broker.log.manager import LogManager
from minibroker.broker.log.producers import NO_GUARD, NO_OFFSET, AbortedTransaction, Guard
from minibroker.broker.log.validation import PreparedBatch, prepare_batch
from minibroker.broker.metadata.image import Image
from minibroker_protocol.control_records import EndTransactionMarker
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.records import Buffer
from minibroker_protocol.types import Uuid

NO_LEADER_EPOCH: Final = -1
"""Leader epoch of a request from a client that does not know it, which is not checked."""

HIGH_WATERMARK: Final = -1
"""The offset by which a DeleteRecords request means the high watermark."""


PartitionChanged = Callable[[str, int], None]


def ignore_change(_topic: str, _partition: int) -> None:
    """Ignore the change of a partition."""


class Partition:
    """The state of one hosted partition. Used by a single thread; times are epoch milliseconds."""

    __slots__ = (
        "_broker_id",
        "_on_change",
        "_transactions",
        "high_watermark",
        "is_leader",
        "leader_epoch",
        "leader_id",
        "log",
        "topic_id",
    )

    def __init__(
        self,
        log: Log,
        topic_id: Uuid,
        *,
        broker_id: int,
        leader_id: int,
        leader_epoch: int,
        on_change: PartitionChanged = ignore_change,
    ) -> None:
        """``on_change`` is called when the high watermark or the log start has changed."""
        self.log = log
        self.topic_id = topic_id
        self._broker_id = broker_id
        self._on_change = on_change
        self._transactions = log.producers.transactions
        self.high_watermark = log.log_start_offset
        self.update_leadership(leader_id, leader_epoch)

    def update_leadership(self, leader_id: int, leader_epoch: int) -> None:
        """Become the leader or a follower, as the controller has decided."""
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch
        self.is_leader = leader_id == self._broker_id
        if self.is_leader:
            self.log.assign_leader_epoch(leader_epoch, self.log.log_end_offset)
            self._increment_high_watermark()

    def _increment_high_watermark(self) -> None:
        """Advance to the smallest log end of the in-sync replicas, which is this one alone.

        Kafka's ``maybeIncrementLeaderHW``.
        """
        self.high_watermark = self.log.log_end_offset
        if self._transactions.first_unstable_offset != NO_OFFSET:
            self._transactions.replicated(self.high_watermark)
        self._on_change(self.log.topic, self.log.partition)

    @property
    def last_stable_offset(self) -> int:
        """End of the records of completed transactions: the high watermark without open ones."""
        unstable = self._transactions.first_unstable_offset
        if unstable == NO_OFFSET or unstable >= self.high_watermark:
            return self.high_watermark
        return max(unstable, self.log.log_start_offset)

    def check_leader(self, current_leader_epoch: int = NO_LEADER_EPOCH) -> None:
        """Raise LogError if this broker does not lead the partition in the epoch of a request.

        FENCED_LEADER_EPOCH if the client knows an older epoch, UNKNOWN_LEADER_EPOCH if it knows a
        newer one, NOT_LEADER_OR_FOLLOWER if another broker leads.
        """
        epoch = self.leader_epoch
        if current_leader_epoch not in (epoch, NO_LEADER_EPOCH):
            is_older = current_leader_epoch < epoch
            raise LogError(
                ErrorCode.FENCED_LEADER_EPOCH if is_older else ErrorCode.UNKNOWN_LEADER_EPOCH,
                f"{self._name} has leader epoch {epoch}, and the request {current_leader_epoch}",
            )
        if not self.is_leader:
            raise LogError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"the leader of {self._name} is broker {self.leader_id}, not {self._broker_id}",
            )

    @property
    def _name(self) -> str:
        return f"{self.log.topic}-{self.log.partition}"

    def append_as_leader(
        self,
        records: Buffer,
        *,
        now_ms: int,
        origin: Origin = Origin.CLIENT,
        guard: Guard = NO_GUARD,
    ) -> Appended:
        """Validate the one batch in ``records`` and append it. Raises LogError."""
        prepared = prepare_batch(records, self.log.config, now_ms=now_ms, origin=origin)
        return self.append_prepared_as_leader(prepared, now_ms=now_ms, origin=origin, guard=guard)

    def append_prepared_as_leader(
        self,
        prepared: PreparedBatch,
        *,
        now_ms: int,
        origin: Origin = Origin.CLIENT,
        guard: Guard = NO_GUARD,
    ) -> Appended:
        """Append a batch that ``prepare_batch`` returned for the log's config. Raises LogError."""
        if not self.is_leader:
            self.check_leader()
        appended = self.log.append_prepared(
            prepared, now_ms=now_ms, origin=origin, leader_epoch=self.leader_epoch, guard=guard
        )
        self._increment_high_watermark()
        return appended

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        marker: EndTransactionMarker,
        *,
        transaction_version: int,
        now_ms: int,
    ) -> Appended:
        """End a producer's transaction on this partition. Raises LogError."""
        self.check_leader()
        appended = self.log.append_marker(
            producer_id,
            producer_epoch,
            marker,
            transaction_version=transaction_version,
            now_ms=now_ms,
            leader_epoch=self.leader_epoch,
        )
        self._increment_high_watermark()
        return appended

    def begin_verification(
        self, producer_id: int, producer_epoch: int, sequence: int, *, adds: bool, now_ms: int
    ) -> Guard:
        """Begin to verify that a transaction includes this partition. Raises LogError.

        Returns NO_GUARD if the producer's transaction has records here already.
        """
        self.check_leader()
        return self.log.producers.begin_verification(
            producer_id, producer_epoch, sequence, adds=adds, now_ms=now_ms
        )

    def read(self, offset: int, max_bytes: int, *, min_one: bool = True) -> FileSlice | None:
        """Records from ``offset`` on that are below the high watermark. See ``Log.read``."""
        return self.log.read(offset, max_bytes, min_one=min_one, end_offset=self.high_watermark)

    def read_committed(
        self, offset: int, max_bytes: int, *, min_one: bool = True
    ) -> tuple[FileSlice | None, list[AbortedTransaction]]:
        """Records below the last stable offset, and the aborted transactions among them."""
        return self.log.read_committed(offset, max_bytes, self.last_stable_offset, min_one=min_one)

    def end_offset_for_epoch(self, leader_epoch: int) -> EpochEnd:
        """The end of an epoch, or of the largest smaller one that has records, in the log."""
        return self.log.leader_epochs.end_offset_for(leader_epoch, self.log.log_end_offset)

    def find_divergence(self, last_fetched_epoch: int, offset: int) -> EpochEnd | None:
        """Where a log with ``last_fetched_epoch`` before ``offset`` diverges from this one, if so.

        Raises LogError OFFSET_OUT_OF_RANGE if the epoch is not known (KIP-595).
        """
        if offset < self.log.log_start_offset:
            return None  # The read rejects it.
        epoch_end = self.end_offset_for_epoch(last_fetched_epoch)
        if epoch_end == UNDEFINED_END:
            raise LogError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self._name} has no leader epoch {last_fetched_epoch}; the latest is"
                f" {self.log.leader_epochs.latest_epoch}",
            )
        is_same = epoch_end.epoch == last_fetched_epoch and epoch_end.end_offset >= offset
        return None if is_same else epoch_end

    def delete_records(self, before_offset: int) -> int:
        """Move the log start to ``before_offset`` or to the high watermark; return the log start.

        Raises LogError, OFFSET_OUT_OF_RANGE if the offset is above the high watermark.
        """
        self.check_leader()
        high_watermark = self.high_watermark
        if before_offset == HIGH_WATERMARK:
            before_offset = high_watermark
        if not 0 <= before_offset <= high_watermark:
            raise LogError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"records of {self._name} can't be deleted before offset {before_offset}; the high"
                f" watermark is {high_watermark}",
            )
        log_start_offset = self.log.delete_records(before_offset)
        self._on_change(self.log.topic, self.log.partition)
        return log_start_offset


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
