"""Tests."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.log.errors import LogError
from minibroker.broker.log.producers import (
    BATCHES_RETAINED,
    NO_GUARD,
    NO_OFFSET,
    TRANSACTION_ENTRY,
    AbortedTransaction,
    BatchMetadata,
    Producer,
    ProducerTable,
    TransactionIndex,
    TransactionMarker,
    UnstableTransactions,
    Verifications,
    decode_snapshot,
    encode_snapshot,
    read_snapshot,
    remove_snapshots_after,
    remove_unused_snapshots,
    search_transaction_index,
    write_snapshot,
)
from minibroker.broker.log.validation import Origin
from minibroker_protocol.control_records import EndTransactionMarker, build_marker
from minibroker_protocol.errors import DecodeError, ErrorCode
from minibroker_protocol.records import BatchHeader, Record, build_batch, parse_batch_header

PID = 42


def header(sequence: int, count: int = 1, epoch: int = 0, pid: int = PID) -> BatchHeader:
    return parse_batch_header(
        build_batch(
            [Record(timestamp=1000 + sequence % 10)] * count,
            producer_id=pid,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
    )


def take(table: ProducerTable, batch: BatchHeader) -> BatchMetadata | None:
    """What a log does: check, then remember at the next offsets unless it is a duplicate."""
    seen = table.check(batch)
    if seen is None:
        last_offset = table.end_offset + batch.last_offset_delta
        table.record(batch, last_offset, batch.max_timestamp)
        table.end_offset = last_offset + 1
    return seen


def refused(table: ProducerTable, batch: BatchHeader) -> ErrorCode:
    with pytest.raises(LogError) as caught:
        table.check(batch)
    return caught.value.code


def test_sequence_gap_is_rejected() -> None:
    table = ProducerTable()
    assert take(table, header(0, 3)) is None
    assert take(table, header(3)) is None
    assert refused(table, header(5)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert take(table, header(4)) is None


def test_unknown_producer_in_the_middle_of_its_sequence_is_rejected_if_that_is_checked() -> None:
    table = ProducerTable()
    with pytest.raises(LogError, match="sequence number 5") as caught:
        table.check_known(header(5), ErrorCode.UNKNOWN_PRODUCER_ID)
    assert caught.value.code is ErrorCode.UNKNOWN_PRODUCER_ID
    table.check_known(header(0), ErrorCode.UNKNOWN_PRODUCER_ID)
    take(table, header(0))
    table.check_known(header(5), ErrorCode.UNKNOWN_PRODUCER_ID)


def test_last_five_batches_are_recognized_as_duplicates() -> None:
    table = ProducerTable()
    for first in range(0, 14, 2):
        take(table, header(first, 2))
    for first in range(4, 14, 2):
        seen = table.check(header(first, 2))
        assert seen is not None
        assert (seen.first_offset, seen.last_offset) == (first, first + 1)
    assert len(table.producers[PID].batches) == BATCHES_RETAINED
    assert refused(table, header(2, 2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_overlapping_batch_is_rejected_instead_of_deduplicated() -> None:
    table = ProducerTable()
    take(table, header(0, 3))
    assert refused(table, header(0, 2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refused(table, header(1, 2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_new_epoch_starts_at_sequence_0_and_fences_older_epoch() -> None:
    table = ProducerTable()
    take(table, header(0, epoch=1))
    assert refused(table, header(1, epoch=2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert take(table, header(0, epoch=2)) is None
    assert refused(table, header(1, epoch=1)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert refused(table, header(0, epoch=1)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert take(table, header(1, epoch=2)) is None


def test_unknown_producer_may_start_at_any_sequence() -> None:
    table = ProducerTable()
    assert take(table, header(17, epoch=4)) is None
    assert take(table, header(18, epoch=4)) is None
    assert refused(table, header(20, epoch=4)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_sequence_wraps_to_zero() -> None:
    table = ProducerTable()
    take(table, header(2**31 - 2, 3))
    assert table.producers[PID].last_sequence == 0
    assert table.check(header(2**31 - 2, 3)) is not None
    assert take(table, header(1)) is None
    take(table, header(2**31 - 1, pid=1))
    assert take(table, header(0, pid=1)) is None


def test_idle_producers_expire() -> None:
    table = ProducerTable([(1, Producer(0, 1000)), (2, Producer(0, 1001))])
    assert table.expire(1500, 500) == 1
    assert list(table.producers) == [2]


ENTRY = st.builds(
    lambda epoch, last_sequence, last_offset, delta, time: Producer(
        epoch, time, (BatchMetadata(last_sequence, last_offset, delta, time),)
    ),
    st.integers(0, 2**15 - 1),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**31 - 1),
    st.integers(-1, 2**63 - 1),
)


@given(producers=st.dictionaries(st.integers(0, 2**63 - 1), ENTRY, max_size=5))
def test_snapshot_round_trips_and_corrupt_one_is_rejected(producers: dict[int, Producer]) -> None:
    data = encode_snapshot(ProducerTable(producers.items(), 9))
    table = decode_snapshot(data, 9)
    assert (table.producers, table.end_offset) == (producers, 9)
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1
        with pytest.raises(DecodeError):
            decode_snapshot(bytes(damaged), 9)
    with pytest.raises(DecodeError):
        decode_snapshot(data[:-1], 9)


def test_snapshot_includes_producer_without_batches() -> None:
    table = ProducerTable([(5, Producer(2, 1000))])
    again = decode_snapshot(encode_snapshot(table), 0)
    assert again.producers == {5: Producer(2, 1000)}


def test_snapshot_has_kafka_encoding() -> None:
    producer = Producer(1, 1000, (BatchMetadata(3, 9, 2, 999), BatchMetadata(5, 11, 1, 1000)))
    data = encode_snapshot(ProducerTable([(258, producer)]))
    assert data[:2].hex() == "0001"
    assert data[6:].hex(" ", 4) == bytes.fromhex(
        "00000001"
        "0000000000000102 0001 00000005 000000000000000b 00000001 00000000000003e8"
        "ffffffff ffffffffffffffff"
    ).hex(" ", 4)


EPOCH_MAX = 2**15 - 1
NOW_MS = 5000
COMMIT = EndTransactionMarker(committed=True, coordinator_epoch=1)
ABORT = EndTransactionMarker(committed=False, coordinator_epoch=1)


def transactional_header(
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
        self.append(transactional_header(0, epoch=epoch), self.verify(epoch=epoch))

    def end(
        self, epoch: int = 0, marker: EndTransactionMarker = ABORT, version: int = 0, pid: int = PID
    ) -> AbortedTransaction | None:
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
    leader.append(transactional_header(1))
    assert leader.table.producers[PID].transaction_offset == 0
    assert leader.end() == AbortedTransaction(PID, 0, 2, 3)


def test_non_transactional_batch_in_open_transaction_is_rejected(leader: Leader) -> None:
    leader.start()
    assert (
        rejected(leader, transactional_header(1, transactional=False))
        is ErrorCode.INVALID_TXN_STATE
    )


def test_older_epoch_is_fenced_before_verification(leader: Leader) -> None:
    leader.start(epoch=2)
    assert rejected(leader, transactional_header(1, epoch=1)) is ErrorCode.INVALID_PRODUCER_EPOCH
    with pytest.raises(LogError) as caught:
        leader.verify(epoch=1)
    assert caught.value.code is ErrorCode.INVALID_PRODUCER_EPOCH


def test_newer_epoch_in_open_transaction_needs_verification(leader: Leader) -> None:
    leader.start()
    assert rejected(leader, transactional_header(0, epoch=1)) is ErrorCode.INVALID_TXN_STATE
    leader.append(transactional_header(0, epoch=1), leader.verify(epoch=1))


@pytest.mark.parametrize("adds", [False, True])
def test_first_batch_of_unknown_producer_may_continue_only_before_version_2(
    leader: Leader, adds: bool
) -> None:
    guard = leader.verify(5, adds=adds)
    if adds:
        assert (
            rejected(leader, transactional_header(5), guard)
            is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        )
    else:
        leader.append(transactional_header(5), guard)


def test_batch_behind_one_that_must_be_retried_is_rejected(leader: Leader) -> None:
    leader.verify(3)
    guard = leader.verify(4)
    assert (
        rejected(leader, transactional_header(4), guard) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    )
    leader.append(transactional_header(3), guard)
    leader.append(transactional_header(4))


def test_sequence_numbers_wrap_in_transaction(leader: Leader) -> None:
    leader.append(transactional_header(2**31 - 1), leader.verify(2**31 - 1))
    leader.append(transactional_header(0))


def test_coordinators_batches_are_checked_without_sequence_numbers(leader: Leader) -> None:
    leader.append(transactional_header(-1), leader.verify(-1), Origin.COORDINATOR)
    leader.append(transactional_header(-1), origin=Origin.COORDINATOR)
    assert leader.end() is not None
    with pytest.raises(LogError):
        leader.append(transactional_header(-1), origin=Origin.COORDINATOR)


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
    assert rejected(leader, transactional_header(0, epoch=3)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert rejected(leader, transactional_header(1, epoch=4), leader.verify(1, 4)) is (
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    )


def test_marker_with_epoch_of_next_transaction_keeps_its_verification(leader: Leader) -> None:
    leader.start()
    guard = leader.verify(epoch=1, adds=True)
    leader.end(1, version=2)
    leader.append(transactional_header(0, epoch=1), guard)


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
            leader.append(transactional_header(sequences[pid], pid=pid), guard)
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


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A log with snapshots at 3, 5 and 9."""
    for offset in (0, 3, 5, 9):
        write_snapshot(str(tmp_path), ProducerTable(end_offset=offset))
    return tmp_path


def kept(directory: Path) -> list[int]:
    return sorted(int(path.stem) for path in directory.iterdir())


@pytest.mark.parametrize(("offset", "found"), [(2, 0), (3, 3), (8, 5), (100, 9)])
def test_newest_snapshot_at_or_before_offset_is_read(
    directory: Path, offset: int, found: int
) -> None:
    assert kept(directory) == [3, 5, 9]
    assert read_snapshot(str(directory), offset).end_offset == found


def test_corrupt_snapshot_is_removed_and_older_one_read(directory: Path) -> None:
    (directory / f"{5:020d}.snapshot").write_bytes(b"damaged")
    assert read_snapshot(str(directory), 8).end_offset == 3
    assert kept(directory) == [3, 9]


def test_snapshots_are_kept_if_usable_or_newest(directory: Path) -> None:
    remove_unused_snapshots(str(directory), {3, 4})
    assert kept(directory) == [3, 9]


def test_snapshots_after_the_end_of_the_log_are_removed(directory: Path) -> None:
    remove_snapshots_after(str(directory), 5)
    assert kept(directory) == [3, 5]


def test_first_unstable_offset_is_that_of_oldest_open_transaction() -> None:
    transactions = UnstableTransactions()
    assert transactions.first_unstable_offset == NO_OFFSET
    transactions.start(5)
    transactions.start(9)
    assert transactions.first_unstable_offset == 5
    assert transactions.complete(5, 12) == 9
    assert len(transactions) == 1


def test_completed_transaction_is_unstable_until_marker_is_replicated() -> None:
    transactions = UnstableTransactions()
    transactions.start(5)
    assert transactions.complete(5, 12) == 13
    transactions.replicated(12)
    assert transactions.first_unstable_offset == 5
    transactions.replicated(13)
    assert transactions.first_unstable_offset == NO_OFFSET


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=60))
def test_first_unstable_offset_agrees_with_all_transactions(
    steps: list[tuple[bool, int]],
) -> None:
    transactions = UnstableTransactions()
    opened: list[int] = []
    unreplicated: list[tuple[int, int]] = []
    for offset, (starts, choice) in enumerate(steps):
        if starts:
            transactions.start(offset)
            opened.append(offset)
        elif opened:
            first = opened.pop(choice % len(opened))
            stable = transactions.complete(first, offset)
            assert stable == min(opened, default=offset + 1)
            unreplicated.append((first, offset))
        elif choice:
            transactions.replicated(offset)
            unreplicated = [each for each in unreplicated if each[1] >= offset]
        expected = min([*opened, *(first for first, _ in unreplicated)], default=NO_OFFSET)
        assert transactions.first_unstable_offset == expected


ENTRIES = [AbortedTransaction(1, 0, 4, 2), AbortedTransaction(2, 2, 6, 7)]


def index_of(entries: list[AbortedTransaction]) -> TransactionIndex:
    index = TransactionIndex()
    for entry in entries:
        index.append(entry)
    return index


def test_index_has_kafkas_format() -> None:
    assert index_of(ENTRIES[:1]).encode().hex() == (
        "00000000000000000001000000000000000000000000000000040000000000000002"
    )


def test_index_is_read_back() -> None:
    index = index_of(ENTRIES)
    assert list(TransactionIndex(index.encode())) == ENTRIES
    assert index.encode(1) == index.encode()[TRANSACTION_ENTRY.size :]
    assert len(index) == 2


@pytest.mark.parametrize(
    "data", [b"\0", b"\0" * (TRANSACTION_ENTRY.size - 1), b"\0\1" + b"\0" * 32]
)
def test_damaged_index_is_rejected(data: bytes) -> None:
    with pytest.raises(DecodeError):
        TransactionIndex(data)


def test_index_file_is_searched(tmp_path: Path) -> None:
    path = tmp_path / "i"
    path.write_bytes(index_of(ENTRIES).encode())
    assert search_transaction_index(str(path), 5, 7) == (ENTRIES[1:], True)
    assert search_transaction_index(str(path), 0, 9) == (ENTRIES, False)


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(0, 80), st.integers(1, 30))
def test_search_finds_all_aborted_transactions_of_range(
    steps: list[int], start: int, length: int
) -> None:
    """Transactions that overlap are opened and aborted; the search must miss none of a range."""
    transactions, opened, index = UnstableTransactions(), list[int](), TransactionIndex()
    everything: list[AbortedTransaction] = []
    for offset, choice in enumerate(steps):
        if choice == 0 or not opened:
            transactions.start(offset)
            opened.append(offset)
            continue
        first = opened.pop(choice % len(opened))
        everything.append(
            AbortedTransaction(first, first, offset, transactions.complete(first, offset))
        )
        index.append(everything[-1])
    stable = opened[0] if opened else len(steps)
    end = min(start + length, stable)
    if end <= start:
        return
    found, is_complete = index.overlapping(start, end)
    needed = [each for each in everything if each.last_offset >= start and each.first_offset < end]
    assert found == needed
    assert is_complete or not everything or everything[-1].last_stable_offset < end


def test_guard_verifies_its_producer_until_verification_ends() -> None:
    verifications = Verifications()
    guard = verifications.begin(7, 0, 0, adds=True, now_ms=0)
    assert verifications.is_verified(7, guard)
    assert not verifications.is_verified(8, guard)
    assert not verifications.is_verified(7, NO_GUARD)
    verifications.end(7)
    assert not verifications.is_verified(7, guard)


def test_guard_of_earlier_verification_is_not_accepted() -> None:
    verifications = Verifications()
    stale = verifications.begin(7, 0, 0, adds=False, now_ms=0)
    verifications.end(7)
    fresh = verifications.begin(7, 0, 0, adds=False, now_ms=0)
    assert stale != fresh
    assert not verifications.is_verified(7, stale)


def test_lowest_sequence_falls_within_epoch_and_restarts_with_next_epoch() -> None:
    verifications = Verifications()
    guard = verifications.begin(7, 5, 0, adds=False, now_ms=0)
    assert verifications.begin(7, 3, 0, adds=False, now_ms=0) == guard
    assert verifications.begin(7, 8, 0, adds=False, now_ms=0) == guard
    lowest = verifications.get(7)
    assert lowest is not None
    assert (lowest.lowest_sequence, lowest.epoch) == (3, 0)
    verifications.begin(7, 6, 1, adds=False, now_ms=0)
    lowest = verifications.get(7)
    assert lowest is not None
    assert (lowest.lowest_sequence, lowest.epoch) == (6, 1)


def test_verification_without_result_expires() -> None:
    verifications = Verifications()
    verifications.begin(7, 0, 0, adds=False, now_ms=0)
    verifications.begin(8, 0, 0, adds=False, now_ms=1)
    verifications.expire(1000, 1000)
    assert verifications.get(7) is None
    assert len(verifications) == 1


def test_marker_request_is_sent_between_processes_as_it_is() -> None:
    request = TransactionMarker(7, 2, True, 5, 2, (("t", 0), ("t", 1)))
    assert pickle.loads(pickle.dumps(request)) == request
    assert request.marker == EndTransactionMarker(committed=True, coordinator_epoch=5)
