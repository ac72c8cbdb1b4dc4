"""Epoch, sequence and state rules of transactional batches and markers at one partition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.log.errors import LogError
from minibroker.broker.log.producers import (
    ProducerTable,
    decode_snapshot,
    encode_snapshot,
)
from minibroker.broker.log.transactions import CompletedTransaction
from minibroker.broker.log.validation import Origin
from minibroker.broker.log.verification import NO_GUARD
from minibroker_protocol.control_records import EndTransactionMarker, build_marker
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.records import BatchHeader, Record, build_batch, parse_batch_header

PID = 42
EPOCH_MAX = 2**15 - 1
NOW_MS = 5000
COMMIT = EndTransactionMarker(committed=True, coordinator_epoch=1)
ABORT = EndTransactionMarker(committed=False, coordinator_epoch=1)


def header(
    sequence: int, *, epoch: int = 0, transactional: bool = True, pid: int = PID
) -> BatchHeader:
    return parse_batch_header(
        build_batch(
            [Record(timestamp=1000)],
            producer_id=pid,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
    )


class Leader:
    """A table and the log end offset: checks and records as a log does."""

    def __init__(self) -> None:
        self.table = ProducerTable()

    def verify(self, sequence: int = 0, epoch: int = 0, *, adds: bool = False) -> int:
        return self.table.begin_verification(PID, epoch, sequence, adds=adds, now_ms=NOW_MS)

    def append(
        self, batch: BatchHeader, guard: int = NO_GUARD, origin: Origin = Origin.CLIENT
    ) -> None:
        assert self.table.check(batch, origin, guard) is None
        self.table.record(batch, self.table.end_offset, batch.max_timestamp)
        self.table.end_offset += 1

    def start(self, epoch: int = 0) -> None:
        self.append(header(0, epoch=epoch), self.verify(epoch=epoch))

    def end(
        self, epoch: int = 0, marker: EndTransactionMarker = ABORT, version: int = 0, pid: int = PID
    ) -> CompletedTransaction | None:
        self.table.check_marker(pid, epoch, marker, version)
        batch = parse_batch_header(build_marker(pid, epoch, marker, 2000))
        completed = self.table.record(batch, self.table.end_offset, 2000, marker)
        self.table.end_offset += 1
        return completed


@pytest.fixture
def leader() -> Leader:
    return Leader()


def rejected(leader: Leader, batch: BatchHeader, guard: int = NO_GUARD) -> ErrorCode:
    with pytest.raises(LogError) as caught:
        leader.table.check(batch, Origin.CLIENT, guard)
    return caught.value.code


def marker_rejected(leader: Leader, epoch: int, version: int, coordinator_epoch: int) -> ErrorCode:
    with pytest.raises(LogError) as caught:
        leader.end(epoch, ABORT._replace(coordinator_epoch=coordinator_epoch), version)
    return caught.value.code


def test_verified_batch_opens_transaction_and_later_ones_need_no_guard(leader: Leader) -> None:
    leader.start()
    assert leader.verify(1) == NO_GUARD
    leader.append(header(1))
    assert leader.table.producers[PID].transaction_offset == 0
    assert leader.end() == CompletedTransaction(PID, 0, 2, 3, committed=False)


def test_non_transactional_batch_in_open_transaction_is_rejected(leader: Leader) -> None:
    leader.start()
    assert rejected(leader, header(1, transactional=False)) is ErrorCode.INVALID_TXN_STATE


def test_older_epoch_is_fenced_before_verification(leader: Leader) -> None:
    leader.start(epoch=2)
    assert rejected(leader, header(1, epoch=1)) is ErrorCode.INVALID_PRODUCER_EPOCH
    with pytest.raises(LogError) as caught:
        leader.verify(epoch=1)
    assert caught.value.code is ErrorCode.INVALID_PRODUCER_EPOCH


def test_newer_epoch_in_open_transaction_needs_verification(leader: Leader) -> None:
    leader.start()
    assert rejected(leader, header(0, epoch=1)) is ErrorCode.INVALID_TXN_STATE
    leader.append(header(0, epoch=1), leader.verify(epoch=1))


@pytest.mark.parametrize("adds", [False, True])
def test_first_batch_of_unknown_producer_may_continue_only_before_version_2(
    leader: Leader, adds: bool
) -> None:
    guard = leader.verify(5, adds=adds)
    if adds:
        assert rejected(leader, header(5), guard) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    else:
        leader.append(header(5), guard)


def test_batch_behind_one_that_must_be_retried_is_rejected(leader: Leader) -> None:
    leader.verify(3)
    guard = leader.verify(4)
    assert rejected(leader, header(4), guard) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    leader.append(header(3), guard)
    leader.append(header(4))


def test_sequence_numbers_wrap_in_transaction(leader: Leader) -> None:
    leader.append(header(2**31 - 1), leader.verify(2**31 - 1))
    leader.append(header(0))


def test_coordinators_batches_are_checked_without_sequence_numbers(leader: Leader) -> None:
    leader.append(header(-1), leader.verify(-1), Origin.COORDINATOR)
    leader.append(header(-1), origin=Origin.COORDINATOR)
    assert leader.end() is not None
    with pytest.raises(LogError):
        leader.append(header(-1), origin=Origin.COORDINATOR)


@pytest.mark.parametrize("version", [0, 1])
def test_marker_below_version_2_may_have_the_epoch_of_the_records(
    leader: Leader, version: int
) -> None:
    leader.start(epoch=3)
    assert marker_rejected(leader, 2, version, 1) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert leader.end(3, version=version) is not None
    assert leader.end(3, version=version) is None


def test_marker_of_version_2_needs_a_newer_epoch(leader: Leader) -> None:
    leader.start(epoch=3)
    assert marker_rejected(leader, 3, 2, 1) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert leader.end(4, version=2) is not None


def test_repeated_marker_of_version_2_is_written_again(leader: Leader) -> None:
    leader.start()
    assert leader.end(1, version=2) is not None
    assert leader.end(1, version=2) is None
    leader.start(epoch=1)
    assert marker_rejected(leader, 1, 2, 1) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_marker_with_largest_epoch_ends_transaction_of_same_epoch(leader: Leader) -> None:
    leader.start(epoch=EPOCH_MAX)
    assert leader.end(EPOCH_MAX, version=2) is not None


def test_marker_of_former_coordinator_is_fenced(leader: Leader) -> None:
    leader.end(0)
    assert marker_rejected(leader, 0, 0, 0) is ErrorCode.TRANSACTION_COORDINATOR_FENCED


def test_marker_without_records_creates_state_but_completes_nothing(leader: Leader) -> None:
    assert leader.end(4, version=2) is None
    assert leader.table.producers[PID].coordinator_epoch == 1
    assert rejected(leader, header(0, epoch=3)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert rejected(leader, header(1, epoch=4), leader.verify(1, 4)) is (
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    )


def test_marker_with_epoch_of_next_transaction_keeps_its_verification(leader: Leader) -> None:
    leader.start()
    guard = leader.verify(epoch=1, adds=True)
    leader.end(1, version=2)
    leader.append(header(0, epoch=1), guard)


def test_producer_with_open_transaction_does_not_expire(leader: Leader) -> None:
    leader.start()
    assert leader.table.expire(10**9, 1000) == 0
    leader.end()
    assert leader.table.expire(10**9, 1000) == 1


@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["write", "commit", "abort"]))),
)
def test_snapshot_keeps_open_transactions(steps: list[tuple[int, str]]) -> None:
    leader = Leader()
    sequences = dict.fromkeys(range(3), 0)
    for pid, step in steps:
        if step == "write":
            table = leader.table
            guard = table.begin_verification(pid, 0, sequences[pid], adds=False, now_ms=NOW_MS)
            leader.append(header(sequences[pid], pid=pid), guard)
            sequences[pid] += 1
        else:
            leader.end(0, COMMIT if step == "commit" else ABORT, pid=pid)
    restored = decode_snapshot(encode_snapshot(leader.table), leader.table.end_offset)
    for pid, producer in leader.table.producers.items():
        last = tuple(each._replace(timestamp=producer.last_timestamp) for each in producer.batches)
        assert restored.producers[pid] == producer._replace(batches=last[-1:])
    leader.table.transactions.replicated(leader.table.end_offset)
    offset = leader.table.transactions.first_unstable_offset
    assert restored.transactions.first_unstable_offset == offset
    assert len(restored.transactions) == len(leader.table.transactions)
