from __future__ import annotations

import pytest

from minibroker.broker.log.cleaner.batch_filter import (
    BatchFilter,
    Filtered,
    LastRecord,
    SourceBatch,
    map_keys,
)
from minibroker.broker.log.cleaner.cleaned_transactions import CleanedTransactions
from minibroker.broker.log.cleaner.offset_map import OffsetMap
from minibroker_protocol.control_records import EndTransactionMarker, build_marker
from minibroker_protocol.errors import DecodeError
from minibroker_protocol.records import (
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
