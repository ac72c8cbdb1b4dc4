"""The state of a partition's idempotent producers.

Owns epochs, the last five batches of each producer, and Kafka's snapshot file of them. It must
never know files or clocks: bytes and times are arguments. Invariant: an appended batch is
recognized as a duplicate while it is among its producer's last five, and no sequence number is
skipped or accepted twice within an epoch. Echoes ``ProducerStateManager``, ``ProducerStateEntry``
and ``ProducerAppendInfo`` (KIP-98, KIP-360); transactions are not tracked yet.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Final, NamedTuple

from minibroker.storage.errors import LogError
from protocol.checksum import crc32c
from protocol.errors import DecodeError, ErrorCode
from protocol.records import NO_PRODUCER_EPOCH, NO_SEQUENCE, NO_TIMESTAMP, BatchHeader

BATCHES_RETAINED: Final = 5

_SNAPSHOT_VERSION: Final = 1
_SNAPSHOT_HEAD: Final = Struct(">hI")
_COUNT: Final = Struct(">i")
_ENTRY: Final = Struct(">qhiqiqiq")
_NO_OFFSET: Final = -1
_NO_COORDINATOR_EPOCH: Final = -1
_INT32_MAX: Final = 2**31 - 1


class BatchMetadata(NamedTuple):
    """One appended batch; ``offset_delta`` is its last offset less its first."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        return (self.last_sequence - self.offset_delta) & _INT32_MAX

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


class Producer(NamedTuple):
    """A producer's state; ``batches`` are of ``epoch``, oldest first, at most BATCHES_RETAINED."""

    epoch: int = NO_PRODUCER_EPOCH
    last_timestamp: int = NO_TIMESTAMP
    batches: tuple[BatchMetadata, ...] = ()

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE


_UNKNOWN: Final = Producer()
_NO_BATCH: Final = BatchMetadata(NO_SEQUENCE, _NO_OFFSET, 0, NO_TIMESTAMP)


class ProducerTable:
    """All producers of one partition, as of ``end_offset`` (the next offset to be appended)."""

    def __init__(self, producers: Iterable[tuple[int, Producer]] = (), end_offset: int = 0) -> None:
        self.producers: dict[int, Producer] = dict(producers)
        self.end_offset = end_offset

    def check(self, header: BatchHeader) -> BatchMetadata | None:
        """Return the batch that ``header`` repeats, or None when it is the next in order.

        Raises LogError: INVALID_PRODUCER_EPOCH for a fenced producer,
        OUT_OF_ORDER_SEQUENCE_NUMBER for a gap. A producer that is not known (expired, or its
        records deleted) may continue with any sequence number, as in Kafka since KIP-360.
        """
        current = self.producers.get(header.producer_id, _UNKNOWN)
        epoch, first = header.producer_epoch, header.base_sequence
        if epoch == current.epoch:
            last = header.last_sequence
            for batch in current.batches:
                if batch.last_sequence == last and batch.first_sequence == first:
                    return batch
        elif epoch < current.epoch:
            raise LogError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {header.producer_id} has epoch {epoch}, a newer one with epoch"
                f" {current.epoch} has taken over",
            )
        if current.epoch == NO_PRODUCER_EPOCH:
            return None
        expected = 0 if epoch != current.epoch else current.last_sequence + 1 & _INT32_MAX
        if first != expected:
            raise LogError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id}, epoch {epoch}, sent sequence number {first}"
                f" where {expected} is expected",
            )
        return None

    def record(self, header: BatchHeader, last_offset: int, timestamp: int) -> None:
        """Record an appended batch that has a producer id, with its largest timestamp."""
        batch = BatchMetadata(
            header.last_sequence, last_offset, header.last_offset_delta, timestamp
        )
        current = self.producers.get(header.producer_id, _UNKNOWN)
        earlier = current.batches if current.epoch == header.producer_epoch else ()
        self.producers[header.producer_id] = Producer(
            header.producer_epoch, timestamp, (*earlier[1 - BATCHES_RETAINED :], batch)
        )

    def expire(self, now_ms: int, idle_ms: int) -> int:
        """Remove producers whose last batch is at least ``idle_ms`` old; returns their number."""
        idle = [
            producer_id
            for producer_id, producer in self.producers.items()
            if now_ms - producer.last_timestamp >= idle_ms
        ]
        for producer_id in idle:
            del self.producers[producer_id]
        return len(idle)


def encode_snapshot(table: ProducerTable) -> bytes:
    """Kafka's ``.snapshot`` file, version 1: the last batch of every producer."""
    parts = [_COUNT.pack(len(table.producers))]
    for producer_id, producer in table.producers.items():
        last = producer.batches[-1] if producer.batches else _NO_BATCH
        parts.append(
            _ENTRY.pack(
                producer_id,
                producer.epoch,
                last.last_sequence,
                last.last_offset,
                last.offset_delta,
                producer.last_timestamp,
                _NO_COORDINATOR_EPOCH,
                _NO_OFFSET,
            )
        )
    body = b"".join(parts)
    return _SNAPSHOT_HEAD.pack(_SNAPSHOT_VERSION, crc32c(body)) + body


def decode_snapshot(data: bytes, end_offset: int) -> ProducerTable:
    """Read a ``.snapshot`` file taken at ``end_offset``. Raises DecodeError when it is damaged."""
    if len(data) < _SNAPSHOT_HEAD.size + _COUNT.size:
        raise DecodeError(f"a producer snapshot of {len(data)} bytes is too short", 0)
    version, crc = _SNAPSHOT_HEAD.unpack_from(data)
    body = memoryview(data)[_SNAPSHOT_HEAD.size :]
    if version != _SNAPSHOT_VERSION or crc != crc32c(body):
        raise DecodeError(f"a producer snapshot (version {version}) has a wrong checksum", 0)
    (count,) = _COUNT.unpack_from(body)
    if count * _ENTRY.size != len(body) - _COUNT.size:
        raise DecodeError(f"a producer snapshot claims {count} producers", _SNAPSHOT_HEAD.size)
    table = ProducerTable(end_offset=end_offset)
    for entry in _ENTRY.iter_unpack(body[_COUNT.size :]):
        producer_id, epoch, last_sequence, last_offset, delta, timestamp, _, _ = entry
        batches: tuple[BatchMetadata, ...] = ()
        if last_offset >= 0:
            batches = (BatchMetadata(last_sequence, last_offset, delta, timestamp),)
        table.producers[producer_id] = Producer(epoch, timestamp, batches)
    return table
