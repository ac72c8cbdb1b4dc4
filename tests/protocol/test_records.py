"""Batches round trip, and damage is always a DecodeError."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker_protocol.compression import Compression
from minibroker_protocol.errors import DecodeError
from minibroker_protocol.records import (
    HEADER_BYTES,
    Record,
    TimestampType,
    build_batch,
    build_keyed_batch,
    iter_batches,
    iter_records,
    parse_batch_header,
    read_varint,
    recompressed,
    stamped_header,
    varint,
    verify_crc,
)

FIELD = st.none() | st.binary(max_size=40)
HEADERS = st.lists(st.tuples(st.text(max_size=8), FIELD), max_size=3).map(tuple)
TIMESTAMP = st.integers(-1, 2**45)
RECORD = st.builds(
    Record, offset=st.just(0), timestamp=TIMESTAMP, key=FIELD, value=FIELD, headers=HEADERS
)
RECORDS = st.lists(RECORD, min_size=1, max_size=20)
PLAIN = build_batch([Record(timestamp=5, key=b"k", value=b"value", headers=(("h", None),))])


@given(records=RECORDS, codec=st.sampled_from(Compression), base=st.integers(0, 2**40))
def test_built_batch_decodes_to_same_records_with_offsets(
    records: list[Record], codec: Compression, base: int
) -> None:
    batch = build_batch(records, base_offset=base, compression=codec)
    wanted = [record._replace(offset=base + i) for i, record in enumerate(records)]
    assert verify_crc(batch)
    assert list(iter_records(batch)) == wanted
    assert list(iter_records(memoryview(bytearray(batch)))) == wanted


@given(records=RECORDS)
def test_batch_header_describes_its_records(records: list[Record]) -> None:
    batch = build_batch(
        records, base_offset=7, producer_id=9, producer_epoch=3, base_sequence=2**31 - 2
    )
    header = parse_batch_header(b"xx" + batch, 2)
    count = len(records)
    assert header.size == len(batch)
    assert (header.last_offset, header.next_offset) == (6 + count, 7 + count)
    assert (header.record_count, header.last_offset_delta) == (count, count - 1)
    assert header.base_timestamp == records[0].timestamp
    assert header.max_timestamp == max(record.timestamp for record in records)
    assert header.last_sequence == (2**31 - 2 + count - 1) % 2**31
    assert header.has_producer_id
    assert not parse_batch_header(build_batch(records)).has_producer_id


def test_batch_attributes_are_decoded() -> None:
    record = Record(timestamp=1)
    header = parse_batch_header(
        build_batch([record], compression=Compression.ZSTD, transactional=True, control=True)
    )
    assert (header.codec, header.is_transactional, header.is_control) == (4, True, True)
    assert header.timestamp_type is TimestampType.CREATE_TIME
    assert not header.has_delete_horizon
    plain = parse_batch_header(build_batch([record]))
    assert (plain.codec, plain.is_transactional, plain.is_control) == (0, False, False)


def test_log_append_time_is_timestamp_of_every_record() -> None:
    records = [Record(timestamp=10), Record(timestamp=30)]
    batch = build_batch(records, timestamp_type=TimestampType.LOG_APPEND_TIME)
    assert parse_batch_header(batch).timestamp_type is TimestampType.LOG_APPEND_TIME
    assert [record.timestamp for record in iter_records(batch)] == [30, 30]


@given(
    st.lists(st.tuples(st.binary(max_size=200), st.none() | st.binary(max_size=2000)), min_size=1),
    st.integers(-1, 2**62),
)
def test_keyed_batch_has_the_bytes_of_any_batch(
    pairs: list[tuple[bytes, bytes | None]], timestamp: int
) -> None:
    records = [Record(timestamp=timestamp, key=key, value=value) for key, value in pairs]
    assert build_keyed_batch(iter(pairs), timestamp) == build_batch(records)


def test_keyed_batch_without_records_is_rejected() -> None:
    with pytest.raises(ValueError, match="at least one record"):
        build_keyed_batch([], 0)


def test_batch_without_records_is_rejected() -> None:
    with pytest.raises(ValueError, match="at least one record"):
        build_batch([])


@given(records=RECORDS, codec=st.sampled_from(Compression))
def test_stamped_header_changes_only_offset_and_leader_epoch(
    records: list[Record], codec: Compression
) -> None:
    batch = build_batch(records, compression=codec)
    header = parse_batch_header(batch)
    head = stamped_header(
        batch, header, base_offset=1000, leader_epoch=4, max_timestamp=header.max_timestamp
    )
    stamped = head + batch[HEADER_BYTES:]
    assert verify_crc(stamped)
    assert parse_batch_header(stamped) == header._replace(
        base_offset=1000, partition_leader_epoch=4
    )
    assert list(iter_records(stamped)) == [
        record._replace(offset=1000 + i) for i, record in enumerate(records)
    ]


@given(records=RECORDS, codec=st.sampled_from(Compression))
def test_stamped_header_with_log_append_time_has_valid_checksum(
    records: list[Record], codec: Compression
) -> None:
    batch = build_batch(records, compression=codec, producer_id=5, base_sequence=1)
    header = parse_batch_header(batch)
    head = stamped_header(
        batch,
        header,
        base_offset=0,
        leader_epoch=0,
        max_timestamp=123456,
        is_log_append_time=True,
    )
    stamped = head + batch[HEADER_BYTES:]
    assert verify_crc(stamped)
    assert {record.timestamp for record in iter_records(stamped)} == {123456}
    assert parse_batch_header(stamped).producer_id == 5


def test_stamped_header_with_new_max_timestamp_has_valid_checksum() -> None:
    batch = build_batch([Record(timestamp=30, value=b"x"), Record(timestamp=10)])
    header = parse_batch_header(batch)
    head = stamped_header(batch, header, base_offset=7, leader_epoch=0, max_timestamp=31)
    stamped = head + batch[HEADER_BYTES:]
    assert verify_crc(stamped)
    assert parse_batch_header(stamped).max_timestamp == 31
    assert parse_batch_header(stamped).timestamp_type is TimestampType.CREATE_TIME


@given(records=RECORDS, old=st.sampled_from(Compression), new=st.sampled_from(Compression))
def test_recompressed_batch_has_same_records(
    records: list[Record], old: Compression, new: Compression
) -> None:
    batch = build_batch(records, compression=old, producer_id=8, base_sequence=3)
    other = recompressed(batch, new)
    header = parse_batch_header(other)
    assert verify_crc(other)
    assert (header.codec, header.producer_id, header.size) == (new, 8, len(other))
    assert list(iter_records(other)) == list(iter_records(batch))


@given(value=st.integers(-(2**63), 2**63 - 1))
def test_varints_round_trip(value: int) -> None:
    data = varint(value)
    assert read_varint(data, 0) == (value, len(data))
    assert len(data) <= 10


def test_varint_longer_than_10_bytes_is_rejected() -> None:
    with pytest.raises(DecodeError, match="longer than 10 bytes"):
        read_varint(b"\xff" * 20, 0)


def test_iter_batches_stops_at_truncated_batch() -> None:
    second = build_batch([Record(timestamp=6)], base_offset=1)
    data = PLAIN + second + PLAIN[:-1]
    found = [(position, header.base_offset) for position, header in iter_batches(data)]
    assert found == [(0, 0), (len(PLAIN), 1)]


@pytest.mark.parametrize("magic", [0, 1, 3, 127])
def test_batch_with_other_magic_is_rejected(magic: int) -> None:
    batch = bytearray(PLAIN)
    batch[16] = magic
    with pytest.raises(DecodeError, match="format"):
        parse_batch_header(batch)


@pytest.mark.parametrize("length", [-1, 0, 48])
def test_batch_with_too_small_length_is_rejected(length: int) -> None:
    batch = PLAIN[:8] + length.to_bytes(4, "big", signed=True) + PLAIN[12:]
    with pytest.raises(DecodeError, match="too small"):
        parse_batch_header(batch)
    assert not verify_crc(batch)


def test_checksum_detects_every_flipped_byte() -> None:
    for position in range(17, len(PLAIN)):
        batch = bytearray(PLAIN)
        batch[position] ^= 0x10
        assert not verify_crc(batch)


def test_truncated_batch_fails_checksum() -> None:
    assert not verify_crc(PLAIN[:-1])


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        (b"", "cut off"),
        (b"\x02", "claims 1 bytes"),
        (b"\x7f", "claims -64 bytes"),
        (b"\x0c\x00\x00\x00\x01\x01\x7f", "headers"),
        (b"\x0c\x00\x00\x00\x03\x01\x00", "claims -2 bytes"),
        (b"\x0c\x00\x00\x00\x40\x01\x00", "claims 32 bytes"),
        (b"\x0e\x00\x00\x00\x01\x01\x00\x00", "off its length"),
        (b"\x0e\x00\x00\x00\x01\x01\x02\x01", "no key"),
        (b"\x0c\x00\x00\x00\x01\x01\x00\x0c", "follow the last record"),
    ],
)
def test_corrupt_record_is_rejected_with_reason(section: bytes, problem: str) -> None:
    head = bytearray(PLAIN[:HEADER_BYTES])
    head[8:12] = (HEADER_BYTES - 12 + len(section)).to_bytes(4, "big")
    with pytest.raises(DecodeError, match=problem):
        list(iter_records(bytes(head) + section))


def test_unknown_codec_is_rejected() -> None:
    batch = bytearray(PLAIN)
    batch[22] = 5
    with pytest.raises(DecodeError, match="codec 5"):
        list(iter_records(batch))
    with pytest.raises(DecodeError, match="codec 5"):
        recompressed(batch, Compression.NONE)


def test_records_larger_than_decompression_limit_are_rejected() -> None:
    batch = build_batch([Record(value=bytes(10_000))], compression=Compression.ZSTD)
    with pytest.raises(DecodeError, match="limit"):
        list(iter_records(batch, limit=5000))
