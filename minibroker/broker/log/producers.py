"""The producers of one partition and their transactions, and Kafka's files of both.

Owns epochs, the last five batches and the open transaction of each idempotent or transactional
producer, and the ``.snapshot`` files, of which the newest and those at offsets from which recovery
may start are kept; and three tables of transactions. ``UnstableTransactions`` has the first offset
of each transaction that is open, or whose marker is not yet below the high watermark; the records
of every transaction below the first unstable offset are committed or aborted for good.
``TransactionIndex`` is Kafka's ``.txnindex``, 34 bytes an entry, in the segment of the marker; the
records may be in earlier segments. The index of a growing segment is in memory; its file is written
with the other indexes, once there are entries, and recovery rebuilds it. ``Verifications`` has the
guards of verifications in progress: a batch that starts a transaction is appended only with the
guard of a verification that was started after the producer's last marker, so no batch is appended
to a transaction that has ended in the meantime.

It must never know clocks (times are arguments), nor ask a coordinator. Invariants: an appended
batch is recognized as a duplicate while it is among its producer's last five, no sequence number is
skipped or accepted twice within an epoch, and a transactional batch is accepted only into an open
or verified transaction; entries of an index are ordered by the offset of their markers, and their
last stable offsets never fall, so a search stops at the first entry with one past the range. Echoes
``ProducerStateManager``, ``ProducerStateEntry``, ``ProducerAppendInfo``, ``TransactionIndex``,
``AbortedTxn`` and ``VerificationGuard`` (KIP-98, KIP-360, KIP-890, KIP-1228).
"""

from __future__ import annotations

import mmap
import os
from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

from minibroker.broker.log.errors import LogError
from minibroker.broker.log.paths import (
    SNAPSHOT,
    offset_file,
    offsets_of,
    opened,
    remove_files,
    write_file,
)
from minibroker.broker.log.validation import Origin
from minibroker_protocol.checksum import crc32c
from minibroker_protocol.control_records import EndTransactionMarker
from minibroker_protocol.errors import DecodeError, ErrorCode
from minibroker_protocol.records import (
    NO_PRODUCER_EPOCH,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TRANSACTIONAL_BIT,
    BatchHeader,
)

NO_OFFSET: Final = -1


class UnstableTransactions:
    """Transactions of one partition, ordered by their first offsets."""

    def __init__(self) -> None:
        self._open: list[int] = []
        self._unreplicated: list[tuple[int, int]] = []
        self.first_unstable_offset = NO_OFFSET
        """The smallest first offset, or NO_OFFSET if there is no transaction."""

    def __len__(self) -> int:
        """Number of open transactions."""
        return len(self._open)

    def start(self, first_offset: int) -> None:
        """Add an open transaction."""
        insort(self._open, first_offset)
        self._update()

    def complete(self, first_offset: int, last_offset: int) -> int:
        """Complete a transaction by a marker; return the last stable offset that follows."""
        del self._open[bisect_left(self._open, first_offset)]
        insort(self._unreplicated, (first_offset, last_offset))
        self._update()
        return self._open[0] if self._open else last_offset + 1

    def replicated(self, high_watermark: int) -> None:
        """Remove the completed transactions whose markers are below the high watermark."""
        if self._unreplicated:
            self._unreplicated = [each for each in self._unreplicated if each[1] >= high_watermark]
            self._update()

    def _update(self) -> None:
        first = self._open[0] if self._open else NO_OFFSET
        if self._unreplicated and (first == NO_OFFSET or self._unreplicated[0][0] < first):
            first = self._unreplicated[0][0]
        self.first_unstable_offset = first


TRANSACTION_ENTRY: Final = Struct(">hqqqq")
_VERSION: Final = 0


class AbortedTransaction(NamedTuple):
    """One entry; ``last_offset`` is the offset of the marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """Entries of a segment, as they are in the file."""

    def __init__(self, data: bytes | bytearray | mmap.mmap = b"") -> None:
        """Raises DecodeError if ``data`` is not an index."""
        if len(data) % TRANSACTION_ENTRY.size:
            raise DecodeError(f"a transaction index of {len(data)} bytes ends in an entry", 0)
        self._data = data if isinstance(data, mmap.mmap) else bytearray(data)
        if len(self) and TRANSACTION_ENTRY.unpack_from(self._data)[0] > _VERSION:
            raise DecodeError("a transaction index has entries of a later version", 0)

    def __len__(self) -> int:
        """Number of entries."""
        return len(self._data) // TRANSACTION_ENTRY.size

    def __iter__(self) -> Iterator[AbortedTransaction]:
        return map(self._entry, range(len(self)))

    def _entry(self, slot: int) -> AbortedTransaction:
        return AbortedTransaction._make(
            TRANSACTION_ENTRY.unpack_from(self._data, slot * TRANSACTION_ENTRY.size)[1:]
        )

    def append(self, entry: AbortedTransaction) -> None:
        """Add an entry whose marker is behind those of all others."""
        assert isinstance(self._data, bytearray)
        self._data += TRANSACTION_ENTRY.pack(_VERSION, *entry)

    def truncate(self, count: int) -> None:
        """Keep the first ``count`` entries."""
        assert isinstance(self._data, bytearray)
        del self._data[count * TRANSACTION_ENTRY.size :]

    def encode(self, first: int = 0) -> bytes:
        """The file's bytes from entry ``first`` on."""
        return bytes(self._data[first * TRANSACTION_ENTRY.size :])

    def overlapping(self, start: int, end: int) -> tuple[list[AbortedTransaction], bool]:
        """Transactions with an offset from ``start`` up to ``end``, and whether that is all.

        If not, later segments may have further ones.
        """
        found: list[AbortedTransaction] = []
        first = bisect_left(range(len(self)), start, key=lambda slot: self._entry(slot).last_offset)
        for slot in range(first, len(self)):
            entry = self._entry(slot)
            if entry.first_offset < end:
                found.append(entry)
            if entry.last_stable_offset >= end:
                return found, True
        return found, False


def search_transaction_index(
    path: str, start: int, end: int
) -> tuple[list[AbortedTransaction], bool]:
    """As ``TransactionIndex.overlapping``, in a file. Raises OSError and DecodeError."""
    with opened(path) as fd, mmap.mmap(fd, 0, prot=mmap.PROT_READ) as pages:
        return TransactionIndex(pages).overlapping(start, end)


Guard: TypeAlias = int
"""Identifies one verification. Every guard of a partition is different."""

NO_GUARD: Final[Guard] = 0
"""Guard of a batch that was not verified."""


class Verification(NamedTuple):
    """One verification in progress, and the lowest sequence number that it covers.

    The lowest sequence number blocks later batches while a retry of an earlier one is expected.
    ``adds`` is set if the verification adds the partition to the transaction (version 2).
    """

    guard: Guard
    started_ms: int
    lowest_sequence: int
    epoch: int
    adds: bool


class Verifications:
    """Verifications in progress by producer id."""

    def __init__(self) -> None:
        self._by_producer: dict[int, Verification] = {}
        self._last_guard = NO_GUARD

    def __len__(self) -> int:
        return len(self._by_producer)

    def get(self, producer_id: int) -> Verification | None:
        """The producer's verification in progress."""
        return self._by_producer.get(producer_id)

    def begin(
        self, producer_id: int, sequence: int, epoch: int, *, adds: bool, now_ms: int
    ) -> Guard:
        """Begin or continue the verification of a producer; return its guard."""
        known = self._by_producer.get(producer_id)
        if known is None:
            self._last_guard += 1
            known = Verification(self._last_guard, now_ms, sequence, epoch, adds)
        elif epoch > known.epoch or (epoch == known.epoch and sequence < known.lowest_sequence):
            known = known._replace(epoch=epoch, lowest_sequence=sequence)
        self._by_producer[producer_id] = known
        return known.guard

    def is_verified(self, producer_id: int, guard: Guard) -> bool:
        """Whether the guard is that of the producer's verification in progress."""
        known = self._by_producer.get(producer_id)
        return known is not None and known.guard == guard

    def end(self, producer_id: int) -> None:
        """Forget the verification: the transaction has records now, or has ended."""
        self._by_producer.pop(producer_id, None)

    def expire(self, now_ms: int, idle_ms: int) -> None:
        """Forget verifications that were started ``idle_ms`` ago or earlier."""
        self._by_producer = {
            producer_id: known
            for producer_id, known in self._by_producer.items()
            if now_ms - known.started_ms < idle_ms
        }


class TransactionMarker(NamedTuple):
    """The outcome of one transaction for some of its partitions (topic, index).

    ``transaction_version`` is the one of the producer's requests (KIP-1228).
    """

    producer_id: int
    producer_epoch: int
    committed: bool
    coordinator_epoch: int
    transaction_version: int
    partitions: tuple[tuple[str, int], ...]

    @property
    def marker(self) -> EndTransactionMarker:
        """The content of the control records."""
        return EndTransactionMarker(self.committed, self.coordinator_epoch)


BATCHES_RETAINED: Final = 5

_SNAPSHOT_VERSION: Final = 1
_SNAPSHOT_HEAD: Final = Struct(">hI")
_COUNT: Final = Struct(">i")
_ENTRY: Final = Struct(">qhiqiqiq")
_INT32_MAX: Final = 2**31 - 1
_EPOCH_MAX: Final = 2**15 - 1

NO_COORDINATOR_EPOCH: Final = -1
EPOCH_BUMP_VERSION: Final = 2
"""Transaction version since which every transaction has its own epoch."""


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
    """A producer's state; ``batches`` are of ``epoch``, oldest first, at most BATCHES_RETAINED.

    ``transaction_offset`` is the first offset of the open transaction, NO_OFFSET without one.
    ``coordinator_epoch`` is that of the last marker.
    """

    epoch: int = NO_PRODUCER_EPOCH
    last_timestamp: int = NO_TIMESTAMP
    batches: tuple[BatchMetadata, ...] = ()
    coordinator_epoch: int = NO_COORDINATOR_EPOCH
    transaction_offset: int = NO_OFFSET

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def has_transaction(self, epoch: int) -> bool:
        """Whether a transaction is open that was started with this epoch."""
        return self.transaction_offset != NO_OFFSET and self.epoch == epoch


_UNKNOWN: Final = Producer()
_NO_BATCH: Final = BatchMetadata(NO_SEQUENCE, NO_OFFSET, 0, NO_TIMESTAMP)


class ProducerTable:
    """All producers of one partition, as of ``end_offset`` (the next offset to be appended)."""

    def __init__(self, producers: Iterable[tuple[int, Producer]] = (), end_offset: int = 0) -> None:
        self.producers: dict[int, Producer] = {}
        self.transactions = UnstableTransactions()
        self.verifications = Verifications()
        self.end_offset = end_offset
        for producer_id, producer in producers:
            self.add(producer_id, producer)

    def add(self, producer_id: int, producer: Producer) -> None:
        """Add a producer that was read from a file."""
        self.producers[producer_id] = producer
        if producer.transaction_offset != NO_OFFSET:
            self.transactions.start(producer.transaction_offset)

    def begin_verification(
        self, producer_id: int, epoch: int, sequence: int, *, adds: bool, now_ms: int
    ) -> Guard:
        """Begin to verify that a producer's transaction includes the partition.

        Returns NO_GUARD if a transaction is open, which needs no verification. Raises LogError
        INVALID_PRODUCER_EPOCH.
        """
        current = self.producers.get(producer_id, _UNKNOWN)
        if epoch < current.epoch:
            raise _fenced(producer_id, epoch, current.epoch)
        if current.has_transaction(epoch):
            return NO_GUARD
        return self.verifications.begin(producer_id, sequence, epoch, adds=adds, now_ms=now_ms)

    def check(
        self, header: BatchHeader, origin: Origin = Origin.CLIENT, guard: Guard = NO_GUARD
    ) -> BatchMetadata | None:
        """Return the batch that ``header`` repeats, or None when it is the next in order.

        Raises LogError: INVALID_PRODUCER_EPOCH for a fenced producer,
        OUT_OF_ORDER_SEQUENCE_NUMBER for a gap, INVALID_TXN_STATE for a transactional batch outside
        a transaction and for another one inside. A producer that is not known (expired, or its
        records deleted) may continue with any sequence number, as in Kafka since KIP-360.
        Coordinators' batches have no sequence numbers.
        """
        current = self.producers.get(header.producer_id, _UNKNOWN)
        epoch = header.producer_epoch
        if epoch == current.epoch:
            if origin is not Origin.COORDINATOR:
                last, first = header.last_sequence, header.base_sequence
                for batch in current.batches:
                    if batch.last_sequence == last and batch.first_sequence == first:
                        return batch
        elif epoch < current.epoch:
            raise _fenced(header.producer_id, epoch, current.epoch)
        is_transactional = header.attributes & TRANSACTIONAL_BIT
        if is_transactional:
            if not current.has_transaction(epoch):
                self._check_verified(header, guard)
            if origin is not Origin.COORDINATOR:
                self._check_first_sequence(header, current)
        if origin is not Origin.COORDINATOR and current.epoch != NO_PRODUCER_EPOCH:
            expected = 0 if epoch != current.epoch else current.last_sequence + 1 & _INT32_MAX
            if header.base_sequence != expected:
                raise _out_of_order(header, expected)
        if current.transaction_offset != NO_OFFSET and not is_transactional:
            raise LogError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {header.producer_id} has an open transaction since offset"
                f" {current.transaction_offset}, and the batch is not transactional",
            )
        return None

    def check_known(self, header: BatchHeader, error: int) -> None:
        """Raise LogError for a batch in the middle of the sequence of an unknown producer.

        Kafka returned an error before KIP-360; `check` accepts the batch.
        """
        if header.base_sequence > 0 and header.producer_id not in self.producers:
            raise LogError(
                ErrorCode(error),
                f"producer {header.producer_id} is not known, and its batch starts with sequence"
                f" number {header.base_sequence}",
            )

    def _check_verified(self, header: BatchHeader, guard: Guard) -> None:
        if not self.verifications.is_verified(header.producer_id, guard):
            raise LogError(
                ErrorCode.INVALID_TXN_STATE,
                f"the batch of producer {header.producer_id} belongs to no transaction that is"
                " under way",
            )

    def _check_first_sequence(self, header: BatchHeader, current: Producer) -> None:
        """Check the sequence number of the first batch of a transaction."""
        verification = self.verifications.get(header.producer_id)
        if verification is None:
            return
        if verification.adds and header.base_sequence and not current.batches:
            raise _out_of_order(header, 0)
        if header.base_sequence > verification.lowest_sequence:
            raise _out_of_order(header, verification.lowest_sequence)

    def check_marker(
        self, producer_id: int, epoch: int, marker: EndTransactionMarker, version: int
    ) -> None:
        """Raise LogError if a marker is not accepted at this transaction version.

        INVALID_PRODUCER_EPOCH for a marker of an earlier transaction: below version 2 that is one
        with a smaller epoch. From version 2 on the epoch must be larger, or the same without an
        open transaction, which repeats a marker. TRANSACTION_COORDINATOR_FENCED for a marker of a
        former coordinator.
        """
        current = self.producers.get(producer_id, _UNKNOWN)
        is_repeated = epoch == current.epoch and (
            version < EPOCH_BUMP_VERSION
            or current.transaction_offset == NO_OFFSET
            or epoch == _EPOCH_MAX
        )
        if epoch <= current.epoch and not is_repeated:
            raise _fenced(producer_id, epoch, current.epoch)
        if marker.coordinator_epoch < current.coordinator_epoch:
            raise LogError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"the marker for producer {producer_id} has coordinator epoch"
                f" {marker.coordinator_epoch}; the last one had {current.coordinator_epoch}",
            )

    def record(
        self,
        header: BatchHeader,
        last_offset: int,
        timestamp: int,
        marker: EndTransactionMarker | None = None,
    ) -> AbortedTransaction | None:
        """Record an appended batch that has a producer id, with its largest timestamp.

        Returns the transaction that a marker aborts, unless it has no records on this partition:
        such a marker has no effect on the last stable offset.
        """
        if header.is_control:
            return (
                None if marker is None else self._complete(header, marker, last_offset, timestamp)
            )
        producer_id = header.producer_id
        batch = BatchMetadata(
            header.last_sequence, last_offset, header.last_offset_delta, timestamp
        )
        current = self.producers.get(producer_id, _UNKNOWN)
        earlier = current.batches if current.epoch == header.producer_epoch else ()
        transaction_offset = current.transaction_offset
        if header.attributes & TRANSACTIONAL_BIT:
            self.verifications.end(producer_id)
            if transaction_offset == NO_OFFSET:
                transaction_offset = batch.first_offset
                self.transactions.start(transaction_offset)
        self.producers[producer_id] = Producer(
            header.producer_epoch,
            timestamp,
            (*earlier[1 - BATCHES_RETAINED :], batch),
            current.coordinator_epoch,
            transaction_offset,
        )
        return None

    def _complete(
        self, header: BatchHeader, marker: EndTransactionMarker, offset: int, timestamp: int
    ) -> AbortedTransaction | None:
        producer_id, epoch = header.producer_id, header.producer_epoch
        verification = self.verifications.get(producer_id)
        # With its own epoch, a verification belongs to the transaction after the marker.
        if verification is not None and not (verification.adds and verification.epoch == epoch):
            self.verifications.end(producer_id)
        current = self.producers.get(producer_id, _UNKNOWN)
        batches = current.batches if current.epoch == epoch else ()
        self.producers[producer_id] = Producer(
            epoch, timestamp, batches, marker.coordinator_epoch, NO_OFFSET
        )
        first_offset = current.transaction_offset
        if first_offset == NO_OFFSET:
            return None
        stable = self.transactions.complete(first_offset, offset)
        if marker.committed:
            return None
        return AbortedTransaction(producer_id, first_offset, offset, stable)

    def expire(self, now_ms: int, idle_ms: int) -> int:
        """Remove producers whose last batch is at least ``idle_ms`` old; returns their number.

        A producer with an open transaction remains.
        """
        idle = [
            producer_id
            for producer_id, producer in self.producers.items()
            if now_ms - producer.last_timestamp >= idle_ms
            and producer.transaction_offset == NO_OFFSET
        ]
        for producer_id in idle:
            del self.producers[producer_id]
        self.verifications.expire(now_ms, idle_ms)
        return len(idle)


def _fenced(producer_id: int, epoch: int, current_epoch: int) -> LogError:
    return LogError(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"producer {producer_id} has epoch {epoch}; the last seen epoch is {current_epoch}",
    )


def _out_of_order(header: BatchHeader, expected: int) -> LogError:
    return LogError(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"producer {header.producer_id}, epoch {header.producer_epoch}, sent sequence number"
        f" {header.base_sequence} where {expected} is expected",
    )


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
                producer.coordinator_epoch,
                producer.transaction_offset,
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
        producer_id, epoch, last_sequence, last_offset, delta, timestamp, *transaction = entry
        batches: tuple[BatchMetadata, ...] = ()
        if last_offset >= 0:
            batches = (BatchMetadata(last_sequence, last_offset, delta, timestamp),)
        coordinator_epoch, transaction_offset = transaction
        table.add(
            producer_id,
            Producer(epoch, timestamp, batches, coordinator_epoch, max(transaction_offset, -1)),
        )
    return table


def write_snapshot(directory: str, producers: ProducerTable) -> None:
    """Write the producers' states at the end of the log, if it has records. Raises OSError."""
    if producers.end_offset > 0:
        path = offset_file(directory, producers.end_offset, SNAPSHOT)
        write_file(path, encode_snapshot(producers))


def read_snapshot(directory: str, offset: int) -> ProducerTable:
    """The newest snapshot at or before ``offset``; an empty table without one. Raises OSError."""
    for snapshot_offset in reversed(offsets_of(directory, SNAPSHOT)):
        if snapshot_offset <= offset:
            path = offset_file(directory, snapshot_offset, SNAPSHOT)
            try:
                with open(path, "rb") as file:
                    return decode_snapshot(file.read(), snapshot_offset)
            except DecodeError:
                os.unlink(path)
    return ProducerTable()


def remove_unused_snapshots(directory: str, usable: Collection[int]) -> None:
    """Keep the newest snapshot and those at offsets from which recovery may start."""
    for offset in offsets_of(directory, SNAPSHOT)[:-1]:
        if offset not in usable:
            remove_files(directory, offset, (SNAPSHOT,))


def remove_snapshots_after(directory: str, offset: int) -> None:
    """Remove the snapshots after ``offset``, the end of a log that recovery truncated."""
    for snapshot_offset in offsets_of(directory, SNAPSHOT):
        if snapshot_offset > offset:
            remove_files(directory, snapshot_offset, (SNAPSHOT,))
