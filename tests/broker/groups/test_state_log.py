"""A log of keyed records, as both coordinators use it (more in ``test_offsets_log``)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pytest
from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minibroker.broker.groups.offsets import CommittedOffset, PendingOffsets
from minibroker.broker.groups.records import Entry, GroupEntry, OffsetEntry
from minibroker.broker.groups.state_log import (
    REPLAYED_BYTES_MAX,
    REPLAYED_RECORDS_MAX,
    WARNINGS_MAX,
    OffsetsLog,
    OffsetsTransaction,
    PendingEntry,
    ReplayedEntry,
    StateLog,
    StoredGroup,
    TransactionEnd,
    apply_entries,
    commit_error,
    group_error,
)
from minibroker.broker.log.errors import LogError
from minibroker.broker.log.log import Origin
from minibroker_protocol.compression import Compression
from minibroker_protocol.control_records import EndTransactionMarker
from minibroker_protocol.errors import DecodeError, ErrorCode
from minibroker_protocol.records import HEADER_BYTES, Record, build_batch
from tests.broker.groups.conftest import START_MS, Disk
from tests.broker.groups.stored import stored_group

if TYPE_CHECKING:
    from tests.broker.groups.conftest import Disk


def decode(key: bytes, value: bytes | None) -> tuple[bytes, bytes | None] | None:
    if key == b"bad":
        raise DecodeError("bad", 0)
    return None if key == b"unknown" else (key, value)


def replay(log: StateLog) -> list[tuple[bytes, bytes | None]]:
    return [entry for batch in log.batches() for entry in log.entries(batch, decode)]


def test_appended_records_are_replayed_in_order(disk: Disk) -> None:
    log = StateLog(disk.open(0))
    log.append([(b"a", b"1"), (b"b", None)], now_ms=1)
    log.append([(b"a", b"2")], now_ms=2)
    disk.kill()
    assert replay(StateLog(disk.open(0))) == [(b"a", b"1"), (b"b", None), (b"a", b"2")]


def test_records_that_cannot_be_decoded_are_skipped(
    disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    log = StateLog(disk.open(0))
    log.append([(b"unknown", b"1"), (b"bad", b"2"), (b"a", b"3")], now_ms=1)
    assert replay(log) == [(b"a", b"3")]
    assert len(caplog.messages) == 1


def test_large_log_is_split_into_segments_that_can_be_compacted(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minibroker.broker.groups.state_log.STATE_LOG_SEGMENT_BYTES", 1000)
    log = StateLog(disk.open(0))
    for number in range(100):
        log.append([(b"a", b"%d" % number), (b"b", b"2")], now_ms=1)
    assert len(log.log.segments) > 5
    assert max(segment.size for segment in log.log.segments) < 1200
    disk.compact(0)
    disk.kill()
    assert replay(StateLog(disk.open(0))) == [(b"a", b"99"), (b"b", b"2")]


def test_log_that_cannot_start_a_segment_grows(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minibroker.broker.groups.state_log.STATE_LOG_SEGMENT_BYTES", 100)
    log = StateLog(disk.open(0))

    def refuse(*, now_ms: int) -> None:
        raise LogError(ErrorCode.KAFKA_STORAGE_ERROR, f"no space left at {now_ms}")

    with monkeypatch.context() as patch:
        patch.setattr(log.log, "roll", refuse)
        for number in range(10):
            log.append([(b"a", b"%d" % number)], now_ms=1)
    assert len(log.log.segments) == 1
    log.append([(b"a", b"10")], now_ms=1)
    assert len(log.log.segments) == 2
    assert len(replay(log)) == 11


def test_cleared_log_is_empty(disk: Disk) -> None:
    log = StateLog(disk.open(0))
    log.append([(b"a", b"1")], now_ms=1)
    log.clear()
    assert replay(log) == []
    assert log.leader_epoch == 0


IMAGE = stored_group("consumer", 3, None, None, 5)


def applied(entries: Iterable[ReplayedEntry]) -> dict[str, StoredGroup]:
    return apply_entries(entries, PendingOffsets())


def offset(number: int, group: str = "g", partition: int = 0) -> OffsetEntry:
    return OffsetEntry(group, "t", partition, CommittedOffset(number, -1, "", 1))


def test_replay_after_crash_returns_entries_in_order(disk: Disk) -> None:
    offsets_log = OffsetsLog(disk.open(0))
    offsets_log.write([offset(1), GroupEntry("g", IMAGE)], now_ms=1)
    offsets_log.write([offset(2)], now_ms=2)
    expected: list[Entry] = [offset(1), GroupEntry("g", IMAGE), offset(2)]
    assert list(offsets_log.replay()) == expected
    disk.kill()
    assert list(OffsetsLog(disk.open(0)).replay()) == expected


def test_replay_of_empty_offsets_log_returns_nothing(disk: Disk) -> None:
    assert list(OffsetsLog(disk.open(0)).replay()) == []


def test_fold_keeps_last_entry_of_each_key() -> None:
    tombstone = OffsetEntry("g", "t", 0, None)
    folded = applied([offset(1), GroupEntry("g", IMAGE), offset(2), offset(3, partition=1)])
    assert list(folded["g"].records.values()) == [GroupEntry("g", IMAGE)]
    assert list(folded["g"].offsets) == [
        ("t", 0, CommittedOffset(2, -1, "", 1)),
        ("t", 1, CommittedOffset(3, -1, "", 1)),
    ]
    folded = applied([offset(1), GroupEntry("g", IMAGE), tombstone])
    assert list(folded["g"].records.values()) == [GroupEntry("g", IMAGE)]
    assert applied([offset(1), GroupEntry("g", IMAGE), tombstone, GroupEntry("g", None)]) == {}


def test_tombstones_delete_stored_group() -> None:
    entries: list[Entry] = [offset(1), GroupEntry("g", IMAGE)]
    stored = applied(entries)["g"]
    assert applied([*entries, *stored.tombstones("g")]) == {}


def test_cleared_offsets_log_is_empty_after_restart(disk: Disk) -> None:
    offsets_log = OffsetsLog(disk.open(0))
    offsets_log.write([offset(1)], now_ms=1)
    offsets_log.clear()
    assert list(offsets_log.replay()) == []
    disk.kill()
    assert list(OffsetsLog(disk.open(0)).replay()) == []


def test_replay_skips_unknown_records(disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    offsets_log = OffsetsLog(disk.open(0))
    strange = [
        Record(key=b"\0\x63\0\1g", value=b"a group of another type"),
        Record(key=b"\0\1\0\x63", value=b""),
        Record(key=b"\0\2\0\1g", value=b"\0\x63"),
    ]
    batch = build_batch(strange)
    disk.open(0).append_as_leader(memoryview(batch), now_ms=1, origin=Origin.COORDINATOR)
    control = build_batch([Record(key=b"\0\0\0\1", value=b"\0\0\0\0\0\0")], control=True)
    disk.open(0).append_as_leader(memoryview(control), now_ms=1, origin=Origin.COORDINATOR)
    offsets_log.write([offset(1)], now_ms=2)
    assert list(offsets_log.replay()) == [TransactionEnd(-1, committed=True), offset(1)]
    assert len(caplog.messages) == 2


def hostile_batches() -> list[bytes]:
    """Malformed batches that earlier versions accepted from clients; none contains an entry."""
    good = build_batch([Record(key=b"k", value=b"v")] * 3)
    garbage = good[:HEADER_BYTES] + b"\xff" * (len(good) - HEADER_BYTES)
    bomb = build_batch([Record(value=bytes(REPLAYED_BYTES_MAX + 1))], compression=Compression.ZSTD)
    many = build_batch([Record()] * (REPLAYED_RECORDS_MAX + 1))
    return [garbage, bomb, many]


def test_replay_skips_malformed_batches(disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    offsets_log = OffsetsLog(disk.open(0))
    for hostile in hostile_batches():
        fixed = bytearray(hostile)
        fixed[17:21] = crc32c(memoryview(fixed)[21:]).to_bytes(4, "big")
        disk.open(0).append_as_leader(memoryview(fixed), now_ms=1, origin=Origin.COORDINATOR)
    offsets_log.write([offset(1)], now_ms=2)
    assert list(offsets_log.replay()) == [offset(1)]
    assert len(caplog.messages) == 3


def test_replay_limits_its_warnings(disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    strange = build_batch([Record(key=b"\0\1\0\x63", value=b"")] * (2 * WARNINGS_MAX))
    disk.open(0).append_as_leader(memoryview(strange), now_ms=1, origin=Origin.COORDINATOR)
    assert list(OffsetsLog(disk.open(0)).replay()) == []
    assert len(caplog.messages) == WARNINGS_MAX + 1


def test_replay_continues_after_segment_with_damaged_header(disk: Disk) -> None:
    offsets_log = OffsetsLog(disk.open(0))
    offsets_log.write([offset(1)], now_ms=1)
    log = disk.open(0).log
    log.roll(now_ms=1)
    offsets_log.write([offset(2)], now_ms=2)
    with open(f"{log.directory}/{0:020d}.log", "r+b") as file:
        file.seek(16)
        file.write(b"\x07")
    assert list(offsets_log.replay()) == [offset(2)]


def fetched(groups: dict[str, StoredGroup]) -> int:
    [(_, _, committed)] = groups["g"].offsets
    return committed.offset


def transaction(disk: Disk, producer_id: int) -> OffsetsTransaction:
    guard = disk.open(0).begin_verification(producer_id, 0, -1, adds=False, now_ms=1)
    return OffsetsTransaction(producer_id, 0, guard)


def end(disk: Disk, producer_id: int, *, committed: bool) -> None:
    marker = EndTransactionMarker(committed, coordinator_epoch=0)
    disk.open(0).append_marker(producer_id, 0, marker, transaction_version=0, now_ms=1)


def test_replay_returns_pending_offsets_and_ends_of_transactions(disk: Disk) -> None:
    offsets_log = OffsetsLog(disk.open(0))
    for producer_id, committed in ((5, True), (6, False)):
        offsets_log.write_pending([offset(producer_id)], transaction(disk, producer_id), now_ms=1)
        end(disk, producer_id, committed=committed)
    disk.kill()
    assert list(OffsetsLog(disk.open(0)).replay()) == [
        PendingEntry(5, offset(5)),
        TransactionEnd(5, committed=True),
        PendingEntry(6, offset(6)),
        TransactionEnd(6, committed=False),
    ]


def test_pending_offsets_are_in_force_after_their_commit() -> None:
    pending = PendingOffsets()
    begun: list[ReplayedEntry] = [offset(1), PendingEntry(5, offset(2)), PendingEntry(6, offset(3))]
    assert fetched(apply_entries(begun, pending)) == 1
    assert pending.is_pending(("g", "t", 0))
    ends = [TransactionEnd(6, committed=True), TransactionEnd(5, committed=False)]
    assert fetched(applied([*begun, *ends])) == 3


def test_later_commit_wins_over_earlier_one_of_transaction() -> None:
    begun: list[ReplayedEntry] = [PendingEntry(5, offset(2)), offset(9)]
    groups = applied([*begun, TransactionEnd(5, committed=True)])
    assert fetched(groups) == 9
    deleted = OffsetEntry("g", "t", 0, None)
    gone: list[ReplayedEntry] = [PendingEntry(5, offset(2)), deleted, TransactionEnd(5, True)]
    assert applied(gone) == {}


def test_group_exists_from_its_first_pending_offset_on() -> None:
    assert list(applied([PendingEntry(5, offset(2))])) == ["g"]
    aborted: list[ReplayedEntry] = [PendingEntry(5, offset(2)), TransactionEnd(5, False)]
    assert applied(aborted) == {}


def test_write_errors_map_to_kafka_error_codes() -> None:
    for code in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE):
        assert group_error(code) is ErrorCode.UNKNOWN_SERVER_ERROR
        assert commit_error(code) is ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    assert group_error(ErrorCode.KAFKA_STORAGE_ERROR) is ErrorCode.NOT_COORDINATOR
    assert commit_error(ErrorCode.KAFKA_STORAGE_ERROR) is ErrorCode.NOT_COORDINATOR
    assert commit_error(ErrorCode.NONE) is ErrorCode.NONE


KEYS = st.tuples(st.sampled_from("gh"), st.integers(0, 1))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), KEYS, st.none() | st.integers(0, 9)),
        st.tuples(st.sampled_from((5, 6)), KEYS, st.integers(0, 9)),
        st.tuples(st.sampled_from(("commit", "abort")), st.sampled_from((5, 6))),
        st.sampled_from([("compact",), ("kill",)]),
    ),
    max_size=30,
)


@given(steps=STEPS)
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_compaction_and_crashes_preserve_groups_and_pending_offsets(
    steps: list[tuple[Any, ...]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    disk = Disk(tmp_path_factory.mktemp("data"))
    log = OffsetsLog(disk.open(0))
    written: list[ReplayedEntry] = []
    for step in steps:
        match step:
            case ("kill",):
                disk.kill()
                log = OffsetsLog(disk.open(0))
            case ("compact",):
                disk.compact(0)
            case ("commit" | "abort" as how, int(producer_id)):
                end(disk, producer_id, committed=how == "commit")
                written.append(TransactionEnd(producer_id, how == "commit"))
            case ("write", (group, partition), None):
                written.append(OffsetEntry(group, "t", partition, None))
                log.write([OffsetEntry(group, "t", partition, None)], now_ms=1)
            case ("write", (group, partition), number):
                written.append(offset(number, group, partition))
                log.write([offset(number, group, partition)], now_ms=1)
            case (producer_id, (group, partition), number):
                entry = offset(number, group, partition)
                written.append(PendingEntry(producer_id, entry))
                log.write_pending([entry], transaction(disk, producer_id), now_ms=1)
        assert state(log.replay()) == state(written)
    disk.kill()


State = tuple[dict[str, dict[tuple[str, int], int]], set[tuple[str, str, int]]]


def state(entries: Iterable[ReplayedEntry]) -> State:
    """The committed offsets by group, and which offsets are pending."""
    pending = PendingOffsets()
    groups = {
        group: {(topic, index): committed.offset for topic, index, committed in stored.offsets}
        for group, stored in apply_entries(entries, pending).items()
    }
    keys = {(group, *key) for group in pending.groups() for key in pending.of_group(group)}
    return groups, keys


def test_compacted_log_has_the_last_entry_of_each_key(disk: Disk) -> None:
    log = OffsetsLog(disk.open(0))
    for number in range(2000):
        log.write([offset(number)], now_ms=1)
    log.write([GroupEntry("g", IMAGE), offset(1, "h")], now_ms=1)
    large = disk.bytes()
    log.write([OffsetEntry("h", "t", 0, None)], now_ms=1)
    disk.compact(0)
    disk.compact(0)
    disk.open(0).log.apply_retention(now_ms=START_MS)
    assert disk.bytes() < large / 100
    assert list(log.replay()) == [offset(1999), GroupEntry("g", IMAGE)]
