"""Transactional batches and markers of one producer, appended at the leader without requests."""

from __future__ import annotations

from typing import Any

from minibroker_protocol.control_records import EndTransactionMarker
from minibroker_protocol.records import Record, build_batch

PID = 77
WALL_MS = 1_700_000_000_000


def transactional_batch(
    sequence: int = 0, *values: bytes, epoch: int = 0, producer_id: int = PID
) -> bytes:
    return build_batch(
        [Record(0, WALL_MS, None, value) for value in values or (b"v",)],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=True,
    )


class TransactionalProducer:
    """A producer with one record after another in a partition, and transactions of version 2."""

    def __init__(self, worker: Any, partition: Any, topic: str, index: int) -> None:
        self._worker = worker
        self._partition = partition
        self._key = topic, index
        self.epoch = 0
        self.sequence = 0

    def write(self) -> int:
        """Append a batch of one record; return its offset."""
        guard = self._partition.begin_verification(
            PID, self.epoch, self.sequence, adds=True, now_ms=WALL_MS
        )
        batch = transactional_batch(self.sequence, epoch=self.epoch)
        appended = self._partition.append_as_leader(batch, now_ms=WALL_MS, guard=guard)
        self.sequence += 1
        self._worker.appended(*self._key, len(batch), 1)
        return int(appended.base_offset)

    def end(self, *, committed: bool) -> int:
        """Append a marker; return its offset."""
        self.epoch += 1
        self.sequence = 0
        marker = EndTransactionMarker(committed, 0)
        appended = self._partition.append_marker(
            PID, self.epoch, marker, transaction_version=2, now_ms=WALL_MS
        )
        self._worker.appended(*self._key, 0, 0)
        return int(appended.base_offset)


def producer_at(apis: Any, topic: str, index: int) -> TransactionalProducer:
    """A producer at the owner of a partition."""
    (worker,) = (each for each in apis.workers.values() if each.partition(topic, index) is not None)
    return TransactionalProducer(worker, worker.partition(topic, index), topic, index)
