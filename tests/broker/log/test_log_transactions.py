"""Transactions in a log: appends, markers, the last stable offset, aborted transactions, recovery.

The property test plays transactions of several producers in any order, with small segments, deleted
records, restarts and kills between them, and reads as a ``read_committed`` consumer does.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.errors import LogError
from minibroker.broker.log.log import Log
from minibroker.broker.log.producers import AbortedTransaction
from minibroker.broker.log.replica_manager import Partition
from minibroker_protocol.control_records import EndTransactionMarker
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.records import Record, build_batch, iter_batches, iter_records

NOW_MS = 1_700_000_000_000
COMMIT = EndTransactionMarker(committed=True, coordinator_epoch=0)
ABORT = EndTransactionMarker(committed=False, coordinator_epoch=0)
PRODUCERS = 3


class Broker:
    """A partition, and producers that know their own epochs and sequence numbers."""

    def __init__(self, directory: Path, **config: Any) -> None:
        self._directory = directory
        self._config = LogConfig(file_delete_delay_ms=0, **config)
        self.sequences = dict.fromkeys(range(PRODUCERS), 0)
        self.epochs = dict.fromkeys(range(PRODUCERS), 0)
        self.open()

    def open(self) -> None:
        self.log = Log.open(self._directory, "t", 0, self._config, now_ms=NOW_MS)
        self.partition = Partition(self.log, bytes(16), broker_id=1, leader_id=1, leader_epoch=0)

    def kill(self) -> None:
        self.log.abandon()
        self.open()

    def lose_checkpoint(self) -> None:
        """Kill the broker; lose its checkpoint too, unless it was flushed."""
        self.log.abandon()
        if self.log.recovery_point <= self.log.segments.base_offsets[0]:
            (Path(self.log.directory) / "checkpoint.json").unlink()
        self.open()

    def restart(self) -> None:
        self.log.close(now_ms=NOW_MS)
        self.open()

    def write(self, value: bytes, producer: int | None = None) -> int:
        """Append a record, of a verified transaction if a producer is given; return its offset."""
        if producer is None:
            batch = build_batch([Record(timestamp=NOW_MS, value=value)])
            return self.partition.append_as_leader(batch, now_ms=NOW_MS).base_offset
        epoch, sequence = self.epochs[producer], self.sequences[producer]
        guard = self.partition.begin_verification(
            producer, epoch, sequence, adds=True, now_ms=NOW_MS
        )
        batch = transactional_batch(value, producer, epoch, sequence)
        appended = self.partition.append_as_leader(batch, now_ms=NOW_MS, guard=guard)
        self.sequences[producer] += 1
        return appended.base_offset

    def end(self, producer: int, marker: EndTransactionMarker, *, version: int = 2) -> int:
        """Append a marker; from version 2 on with the next epoch, which the producer uses then."""
        if version >= 2:
            self.epochs[producer] += 1
            self.sequences[producer] = 0
        appended = self.partition.append_marker(
            producer, self.epochs[producer], marker, transaction_version=version, now_ms=NOW_MS
        )
        return appended.base_offset

    def committed(self, offset: int) -> Iterator[tuple[int, bytes]]:
        """(offset, value) of the committed records from an offset on, as a consumer finds them."""
        while True:
            piece, aborted = self.partition.read_committed(offset, 150)
            if piece is None or not len(piece):
                return
            pending = sorted(aborted, key=lambda each: each.first_offset)
            discarded: set[int] = set()
            data = piece.load()
            for position, header in iter_batches(data):
                while pending and pending[0].first_offset <= header.last_offset:
                    discarded.add(pending.pop(0).producer_id)
                if header.is_control:
                    discarded.discard(header.producer_id)
                elif not (header.is_transactional and header.producer_id in discarded):
                    for record in iter_records(data[position : position + header.size]):
                        if record.offset >= offset:
                            yield record.offset, record.value or b""
                offset = header.next_offset


def transactional_batch(value: bytes, producer: int, epoch: int, sequence: int) -> bytes:
    return build_batch(
        [Record(timestamp=NOW_MS, value=value)],
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=True,
    )


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = Broker(tmp_path)
    yield made
    made.log.abandon()


KINDS = [
    *("write", "write", "write", "plain", "commit", "abort"),
    *("kill", "restart", "delete", "flush", "retain"),
    "lose checkpoint",
]
STEPS = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, PRODUCERS - 1)),
    max_size=40,
)


@settings(max_examples=80)
@given(steps=STEPS, version=st.sampled_from([0, 2]), segment_bytes=st.sampled_from([80, 300, 9999]))
def test_consumer_reads_exactly_the_committed_records(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[str, int]],
    version: int,
    segment_bytes: int,
) -> None:
    directory = tmp_path_factory.mktemp("log")
    broker = Broker(directory, segment_bytes=segment_bytes, index_interval_bytes=100)
    open_offsets: dict[int, list[tuple[int, bytes]]] = {}
    committed: list[tuple[int, bytes]] = []
    for number, (step, producer) in enumerate(steps):
        value = b"%d" % number
        if step == "write":
            offset = broker.write(value, producer)
            open_offsets.setdefault(producer, []).append((offset, value))
        elif step == "plain":
            committed.append((broker.write(value), value))
        elif step in ("commit", "abort"):
            broker.end(producer, COMMIT if step == "commit" else ABORT, version=version)
            records = open_offsets.pop(producer, [])
            committed += records if step == "commit" else []
        elif step == "delete":
            broker.partition.delete_records(broker.log.log_end_offset // 2)
        elif step == "flush":
            broker.log.flush(now_ms=NOW_MS)
        elif step == "retain":
            broker.log.apply_retention(now_ms=NOW_MS)
        elif step == "lose checkpoint":
            broker.lose_checkpoint()
        else:
            broker.kill() if step == "kill" else broker.restart()
        first_open = min((each[0][0] for each in open_offsets.values()), default=None)
        end = broker.log.log_end_offset
        start = broker.log.log_start_offset
        stable = end if first_open is None else max(first_open, start)
        assert broker.partition.last_stable_offset == stable
        readable = sorted(each for each in committed if start <= each[0] < stable)
        assert list(broker.committed(start)) == readable
        middle = (start + stable) // 2
        assert list(broker.committed(middle)) == [each for each in readable if each[0] >= middle]
    broker.log.abandon()
    shutil.rmtree(directory)


def test_marker_without_data_does_not_move_last_stable_offset(broker: Broker) -> None:
    broker.write(b"a", 0)
    assert broker.end(1, ABORT) == 1
    assert broker.partition.last_stable_offset == 0
    assert broker.end(0, ABORT) == 2
    assert broker.partition.last_stable_offset == 3
    _, aborted = broker.partition.read_committed(0, 1000)
    assert aborted == [AbortedTransaction(0, 0, 2, 3)]


def test_unverified_transactional_batch_is_rejected(broker: Broker) -> None:
    batch = transactional_batch(b"v", 0, 0, 0)
    with pytest.raises(LogError) as caught:
        broker.partition.append_as_leader(batch, now_ms=NOW_MS)
    assert caught.value.code is ErrorCode.INVALID_TXN_STATE


def test_verification_does_not_outlive_the_marker_of_its_transaction(broker: Broker) -> None:
    guard = broker.partition.begin_verification(0, 0, 0, adds=False, now_ms=NOW_MS)
    broker.end(0, ABORT, version=0)
    batch = transactional_batch(b"v", 0, 0, 0)
    with pytest.raises(LogError) as caught:
        broker.partition.append_as_leader(batch, now_ms=NOW_MS, guard=guard)
    assert caught.value.code is ErrorCode.INVALID_TXN_STATE


def test_marker_of_another_leader_is_rejected(broker: Broker) -> None:
    broker.partition.update_leadership(2, 1)
    with pytest.raises(LogError) as caught:
        broker.end(0, ABORT)
    assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_transaction_stays_open_after_kill_and_its_producer_continues(broker: Broker) -> None:
    first = broker.write(b"a", 0)
    broker.kill()
    assert broker.partition.last_stable_offset == first
    broker.write(b"b", 0)
    broker.end(0, COMMIT)
    assert [value for _, value in broker.committed(0)] == [b"a", b"b"]


@pytest.mark.parametrize("deleted", [0, 1, 2])
def test_transaction_over_several_segments_stays_open_without_checkpoint(
    tmp_path: Path, deleted: int
) -> None:
    broker = Broker(tmp_path, segment_bytes=80)
    for number in range(2):
        broker.write(b"%d" % number, 0)
    broker.write(b"plain")
    broker.partition.delete_records(deleted)
    broker.log.apply_retention(now_ms=NOW_MS)
    assert len(broker.log.segments) == 3 - deleted
    broker.lose_checkpoint()
    assert broker.partition.last_stable_offset == deleted
    broker.write(b"2", 0)
    assert list(broker.committed(deleted)) == []
    broker.end(0, COMMIT)
    expected = [b"0", b"1", b"plain", b"2"][deleted:]
    assert [value for _, value in broker.committed(deleted)] == expected
    broker.log.abandon()


@pytest.mark.parametrize("damage", [b"", b"\0" * 10])
def test_damaged_transaction_index_is_rebuilt(tmp_path: Path, damage: bytes) -> None:
    broker = Broker(tmp_path, segment_bytes=200)
    for number in range(6):
        broker.write(b"%d" % number, 0)
        broker.end(0, ABORT if number % 2 else COMMIT)
    broker.restart()
    assert broker.log.opened_clean
    indexes = sorted(tmp_path.glob("t-0/*.txnindex"))
    assert len(indexes) > 1
    before = [path.read_bytes() for path in indexes]
    broker.log.close(now_ms=NOW_MS)
    indexes[0].write_bytes(before[0][:20] + damage)
    broker.open()
    assert [value for _, value in broker.committed(0)] == [b"0", b"2", b"4"]
    broker.log.close(now_ms=NOW_MS)
    assert [path.read_bytes() for path in indexes] == before
