"""Tests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.log.batch_filter import (
    BYTES_MIN,
    ENTRY_BYTES,
    KEY_BYTES_MAX,
    BatchFilter,
    CleanedTransactions,
    Filtered,
    LastRecord,
    OffsetMap,
    SourceBatch,
    entries_max,
    map_keys,
    read_fields,
    short_key,
)
from minibroker.broker.log.producers import AbortedTransaction
from minibroker_protocol.control_records import EndTransactionMarker, build_marker
from minibroker_protocol.errors import DecodeError
from minibroker_protocol.records import (
    HEADER_BYTES,
    Record,
    TimestampType,
    build_batch,
    iter_records,
    parse_batch_header,
    verify_crc,
)

NOW_MS = 1_000_000


def batch_of(data: bytes) -> SourceBatch:
    return SourceBatch(data, 0, parse_batch_header(data))


def batch_with(*records: Record, **options: object) -> SourceBatch:
    return batch_of(build_batch(records, **options))  # type: ignore[arg-type]


def apply(
    batch: SourceBatch,
    offsets: dict[bytes, int],
    *,
    latest: int = 100,
    last_records: dict[int, LastRecord] | None = None,
    is_last: bool = False,
    now_ms: int = NOW_MS,
) -> Filtered:
    offset_map = OffsetMap(100)
    offset_map.put_all(offsets.items(), len(offsets))
    offset_map.latest_offset = latest
    rules = BatchFilter(
        offset_map,
        CleanedTransactions(),
        last_records or {},
        now_ms=now_ms,
        delete_retention_ms=10,
    )
    return rules.apply(batch, is_last=is_last)


A1 = Record(timestamp=5, key=b"a", value=b"1")
B1 = Record(timestamp=9, key=b"b", value=b"1")
A_GONE = Record(timestamp=7, key=b"a", value=None)


def test_unchanged_batch_is_copied() -> None:
    batch = batch_with(A1, B1)
    kept = apply(batch, {b"a": 0})
    assert bytes(kept.data or b"") == batch.buffer
    assert kept.records == 2


def test_rewritten_batch_keeps_offsets_sequence_and_timestamps() -> None:
    batch = batch_with(A1, B1, A1, base_offset=7, producer_id=3, producer_epoch=1, base_sequence=40)
    kept = apply(batch, {b"a": 50})
    data = bytes(kept.data or b"")
    header = parse_batch_header(data)
    assert (header.base_offset, header.last_offset, header.last_sequence) == (7, 9, 42)
    assert header.max_timestamp == kept.max_timestamp == 9
    assert verify_crc(data)
    assert [(r.offset, r.timestamp, r.key) for r in iter_records(data)] == [(8, 9, b"b")]


def test_batch_without_records_is_removed_unless_it_is_needed() -> None:
    batch = batch_with(A1, producer_id=3, producer_epoch=0, base_sequence=0)
    assert apply(batch, {b"a": 1}).data is None
    for kept in (
        apply(batch, {b"a": 1}, is_last=True),
        apply(batch, {b"a": 1}, last_records={3: LastRecord(0, 0)}),
    ):
        header = parse_batch_header(kept.data or b"")
        assert header.record_count == 0
        assert header.max_timestamp == 5
    assert apply(batch, {b"a": 1}, last_records={3: LastRecord(4, 0)}).data is None


def test_tombstone_gets_a_delete_horizon_once() -> None:
    first = apply(batch_with(A_GONE, B1), {b"a": 0})
    header = parse_batch_header(first.data or b"")
    assert header.has_delete_horizon
    assert header.base_timestamp == NOW_MS + 10
    assert [r.timestamp for r in iter_records(first.data or b"")] == [7, 9]
    again = batch_of(bytes(first.data or b""))
    later = apply(again, {b"a": 0}, now_ms=NOW_MS + 9)
    assert bytes(later.data or b"") == again.buffer
    expired = apply(again, {b"a": 0}, now_ms=NOW_MS + 10)
    assert [r.key for r in iter_records(expired.data or b"")] == [b"b"]
    assert [r.timestamp for r in iter_records(expired.data or b"")] == [9]


def test_delete_horizon_keeps_log_append_time() -> None:
    batch = batch_with(A_GONE, B1, timestamp_type=TimestampType.LOG_APPEND_TIME)
    kept = apply(batch, {})
    assert [r.timestamp for r in iter_records(kept.data or b"")] == [9, 9]


def test_records_behind_the_map_and_without_key() -> None:
    unkeyed = Record(timestamp=1, key=None, value=b"1")
    batch = batch_with(A1, unkeyed, unkeyed, A1, base_offset=10)
    kept = apply(batch, {b"a": 99}, latest=11)
    assert [r.offset for r in iter_records(kept.data or b"")] == [12, 13]


def test_marker_without_data_gets_a_delete_horizon_and_goes() -> None:
    marker = batch_of(
        build_marker(3, 0, EndTransactionMarker(committed=True, coordinator_epoch=1), 5)
    )
    first = apply(marker, {})
    rewritten = batch_of(bytes(first.data or b""))
    assert rewritten.header.base_timestamp == NOW_MS + 10
    assert rewritten.is_commit() is True
    assert apply(rewritten, {}, now_ms=NOW_MS + 9).data is not None
    assert apply(rewritten, {}, now_ms=NOW_MS + 10).data is None


def test_full_map_stops_in_the_middle_of_a_batch() -> None:
    offset_map = OffsetMap(2)
    assert map_keys(batch_with(A1, base_offset=3), offset_map, 0)
    assert not map_keys(batch_with(A1, B1, A1, base_offset=4), offset_map, 0)
    assert offset_map.offsets == {b"a": 4, b"b": 5}
    assert offset_map.latest_offset == 5


def test_unknown_codec_is_a_decode_error() -> None:
    batch = batch_with(A1)
    unknown = batch._replace(header=batch.header._replace(attributes=7))
    with pytest.raises(DecodeError, match="codec 7"):
        unknown.section()


@given(st.sets(st.binary(max_size=80)))
def test_short_keys_are_as_different_as_keys(keys: set[bytes]) -> None:
    assert len({short_key(key) for key in keys}) == len(keys)
    assert all(len(short_key(key)) <= KEY_BYTES_MAX + 1 for key in keys)


def test_size_of_a_map_is_never_below_the_minimum() -> None:
    assert entries_max(0) == BYTES_MIN // ENTRY_BYTES
    assert entries_max(100 * BYTES_MIN) == 100 * BYTES_MIN // ENTRY_BYTES


def test_full_map_accepts_nothing_more() -> None:
    offset_map = OffsetMap(2)
    assert offset_map.put_all([(b"a", 1), (b"b", 2)], 2)
    assert offset_map.utilization == 1
    assert not offset_map.put_all([(b"a", 3)], 1)
    assert offset_map.offsets == {b"a": 1, b"b": 2}
    assert len(offset_map) == 2


RECORDS = st.lists(
    st.builds(
        Record,
        timestamp=st.integers(0, 2**40),
        key=st.none() | st.binary(max_size=200),
        value=st.none() | st.binary(max_size=200),
        headers=st.just(()) | st.just((("h", None),)),
    ),
    min_size=1,
    max_size=70,
)


@given(RECORDS)
def test_fields_are_those_of_the_records(records: list[Record]) -> None:
    data = build_batch(records, base_offset=1000)
    fields = read_fields(data, HEADER_BYTES, len(records), 1000)
    found = list(iter_records(data))
    assert fields.offsets == [record.offset for record in found]
    assert fields.keys == [None if r.key is None else short_key(r.key) for r in found]
    assert fields.tombstones == [i for i, r in enumerate(found) if r.value is None]
    assert fields.positions[-1] == len(data)


@given(RECORDS, st.data())
def test_damage_is_a_decode_error_or_is_read(records: list[Record], data: st.DataObject) -> None:
    section = bytearray(build_batch(records)[HEADER_BYTES:])
    at = data.draw(st.integers(0, len(section) - 1))
    section[at] ^= data.draw(st.integers(1, 255))
    try:
        fields = read_fields(bytes(section), 0, len(records), 0)
    except DecodeError:
        return
    assert len(fields.keys) == len(records)


def test_record_that_is_cut_off_is_a_decode_error() -> None:
    section = build_batch([Record(key=b"a", value=b"value")])[HEADER_BYTES:]
    for size in range(len(section)):
        with pytest.raises(DecodeError):
            read_fields(section[:size], 0, 1, 0)


FIRST = AbortedTransaction(1, 10, 19, 20)
SECOND = AbortedTransaction(1, 30, 39, 40)


def test_aborted_transaction_with_data_keeps_marker_and_entry() -> None:
    transactions = CleanedTransactions([SECOND, FIRST])
    assert not transactions.is_aborted(1, 9)
    assert not transactions.is_dispensable(1, 9, committed=True)
    assert transactions.is_aborted(1, 10)
    assert not transactions.is_dispensable(1, 19, committed=False)
    assert transactions.kept == [FIRST]
    assert transactions.is_dispensable(1, 39, committed=False), "its data is gone"
    assert transactions.kept == [FIRST]


def test_commit_marker_is_dispensable_without_data() -> None:
    transactions = CleanedTransactions()
    assert transactions.is_dispensable(1, 5, committed=True)
    assert not transactions.is_aborted(1, 6)
    assert not transactions.is_dispensable(1, 7, committed=True)
    assert transactions.is_dispensable(1, 8, committed=True)


def test_other_control_batch_stays() -> None:
    assert not CleanedTransactions().is_dispensable(1, 5, committed=None)


def test_producers_are_independent() -> None:
    transactions = CleanedTransactions([FIRST])
    assert not transactions.is_aborted(2, 12)
    assert transactions.is_aborted(1, 13)
    assert not transactions.is_dispensable(2, 14, committed=True)
