"""Batches round trip, and damage is always a DecodeError."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from hypothesis import example, given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch

from minibroker_protocol.compression import Compression
from minibroker_protocol.errors import DecodeError
from minibroker_protocol.records import (
    HEADER_BYTES,
    RUN_MAX,
    Record,
    TimestampType,
    TooManyReadsError,
    build_batch,
    build_keyed_batch,
    iter_batches,
    iter_records,
    parse_batch_header,
    read_plain_batch,
    read_varint,
    recompressed,
    scan_records,
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


# Batches without compression ----------------------------------------------------------------------


FIELDS = st.none() | st.binary(max_size=80) | st.binary(min_size=60, max_size=200)
TIMES = st.integers(0, 2**60)


def read_generally(data: bytes) -> tuple[object, int, bool]:
    """The header, the timestamp, and whether there is a key, of a batch of one record."""
    header = parse_batch_header(data)
    assert verify_crc(data)
    assert (header.base_offset, header.attributes, header.size) == (0, 0, len(data))
    scan = scan_records(memoryview(data)[HEADER_BYTES:], 1, None, None, positions_max=1)
    return header, header.base_timestamp + scan.max_timestamp_delta, not scan.without_key


@given(TIMES, FIELDS, FIELDS)
@example(0, None, None)
@example(0, b"", b"")
def test_plain_batch_is_read_as_by_the_general_functions(
    timestamp: int, key: bytes | None, value: bytes | None
) -> None:
    data = build_batch([Record(timestamp=timestamp, key=key, value=value)])
    found = read_plain_batch(memoryview(data))
    if found is None:  # Its key is too long for one byte of length.
        assert key is not None
        assert len(key) > 63
    else:
        assert tuple(found) == read_generally(data)


@given(st.binary(max_size=120), st.integers(0, 200), st.integers(1, 255), st.booleans())
def test_changed_batch_is_read_as_none_or_as_by_the_general_functions(
    value: bytes, position: int, change: int, with_checksum: bool
) -> None:
    data = bytearray(build_batch([Record(timestamp=1, key=b"k", value=value)]))
    data[position % len(data)] ^= change
    if with_checksum:
        data = bytearray(with_new_checksum(bytes(data)))
    found = read_plain_batch(memoryview(bytes(data)))
    if found is not None:
        assert tuple(found) == read_generally(bytes(data))


def with_new_checksum(data: bytes) -> bytes:
    from minibroker_protocol.checksum import crc32c

    return data[:17] + crc32c(data[21:]).to_bytes(4, "big") + data[21:]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(61),
        build_batch([Record(value=b"a"), Record(value=b"b")]),
        build_batch([Record(value=b"a", headers=(("h", b"v"),))]),
        build_batch([Record(value=b"a")], compression=Compression.GZIP),
        build_batch([Record(value=b"a")]) + b"\0",
        build_batch([Record(value=b"a")])[:-1],
        build_batch([Record(value=b"a")], transactional=True),
    ],
    ids=["empty", "zeros", "two", "headers", "compressed", "longer", "shorter", "transactional"],
)
def test_other_batches_are_read_as_none(data: bytes) -> None:
    assert read_plain_batch(memoryview(data)) is None


# Scans of records ---------------------------------------------------------------------------------


BASE = 1_700_000_000_000

VALUES = st.one_of(st.none(), st.binary(max_size=5), st.sampled_from([b"x" * 63, b"x" * 300]))
SINGLE = st.builds(
    Record,
    timestamp=st.integers(BASE - 3, BASE + 200),
    key=VALUES,
    value=VALUES,
    headers=st.lists(st.tuples(st.text(max_size=2), VALUES), max_size=2).map(tuple),
)
RUNS = st.lists(st.tuples(SINGLE, st.sampled_from([1, 2, 5, 64, 130])), min_size=1, max_size=6).map(
    lambda runs: [record for record, count in runs for _ in range(count)]
)

LARGE = [Record(timestamp=BASE, key=b"k", value=b"x" * 70)] * 9000
"""Not copied for the scan."""


def section_of(batch: bytes) -> bytes:
    return batch[HEADER_BYTES:]


def plain(section: bytes, count: int) -> tuple[int, int, list[int]] | None:
    """Return the same three figures by decoding every record, or None if one is invalid."""
    head = bytearray(build_batch([Record(timestamp=0)])[:HEADER_BYTES])
    head[8:12] = (HEADER_BYTES - 12 + len(section)).to_bytes(4, "big")
    head[57:61] = count.to_bytes(4, "big")
    try:
        records = list(iter_records(bytes(head) + section))
    except DecodeError:
        return None
    if [record.offset for record in records] != list(range(count)):
        return None
    times = [record.timestamp for record in records]
    without_key = [i for i, record in enumerate(records) if record.key is None]
    return max(times), times.index(max(times)), without_key


def scanned(section: bytes, count: int) -> tuple[int, int, list[int]] | None:
    try:
        found = scan_records(section, count, positions_max=10_000)
    except DecodeError:
        return None
    return found.max_timestamp_delta, found.latest, found.without_key


@given(records=RUNS)
@example(records=[Record(timestamp=BASE)] * (3 * RUN_MAX))
@example(records=LARGE)
def test_scan_of_valid_batch_matches_decoding(records: list[Record]) -> None:
    section = section_of(build_batch(records))
    expected = plain(section, len(records))
    assert expected is not None
    assert scanned(section, len(records)) == expected


@given(
    records=RUNS,
    changes=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=3),
    more=st.integers(-1, 1),
)
@example(records=LARGE, changes=[(len(LARGE) * 80 + 4, 1)], more=0)
@example(records=LARGE, changes=[(5, 5)], more=0)
@example(records=LARGE, changes=[(0, 0)], more=1)
def test_scan_of_mutated_batch_matches_decoding(
    records: list[Record], changes: list[tuple[int, int]], more: int
) -> None:
    section = bytearray(section_of(build_batch(records)))
    for position, byte in changes:
        section[position % len(section)] = byte
    count = len(records) + more
    assert scanned(bytes(section), count) == plain(bytes(section), count)


@given(records=RUNS, cut=st.integers(1, 400))
def test_scan_of_truncated_batch_raises_decode_error(records: list[Record], cut: int) -> None:
    section = section_of(build_batch(records))
    with pytest.raises(DecodeError):
        scan_records(section[: max(0, len(section) - cut)], len(records))


@given(data=st.binary(max_size=300), count=st.integers(1, 50))
def test_scan_of_random_bytes_passes_or_raises_decode_error(data: bytes, count: int) -> None:
    with contextlib.suppress(DecodeError):
        scan_records(data, count)


@given(records=RUNS, first=st.integers(-3, 100), length=st.integers(0, 100))
def test_records_outside_of_timestamp_range_are_listed(
    records: list[Record], first: int, length: int
) -> None:
    batch = build_batch(records)
    base = parse_batch_header(batch).base_timestamp
    allowed = range(BASE + first - base, BASE + first + length - base)
    no_timestamp = BASE - base
    found = scan_records(
        section_of(batch),
        len(records),
        allowed_deltas=allowed,
        no_timestamp_delta=no_timestamp,
        positions_max=10_000,
    )
    assert found.invalid_timestamps == [
        position
        for position, record in enumerate(records)
        if record.timestamp != BASE and not BASE + first <= record.timestamp < BASE + first + length
    ]


def test_listed_record_positions_are_limited() -> None:
    section = section_of(build_batch([Record(timestamp=BASE)] * 100))
    found = scan_records(section, 100, allowed_deltas=range(5, 6), positions_max=7)
    assert found.without_key == found.invalid_timestamps == list(range(7))


def unlike(count: int) -> bytes:
    """A section in which no record has the size of the next one."""
    records = [Record(timestamp=BASE, value=bytes(i % 3)) for i in range(count)]
    return section_of(build_batch(records))


def test_records_alike_are_read_once_for_each_run() -> None:
    section = section_of(build_batch(LARGE))
    found = scan_records(section, len(LARGE), reads_max=100)
    assert found.reads <= 100
    assert found == scan_records(section, len(LARGE))


@pytest.mark.parametrize("allowed", [0, 1, 99])
def test_scan_ends_when_too_many_records_must_be_read(allowed: int) -> None:
    section = unlike(100)
    assert scan_records(section, 100, reads_max=100).reads == 100
    with pytest.raises(TooManyReadsError) as caught:
        scan_records(section, 100, reads_max=allowed)
    assert caught.value.reads <= allowed


def test_scan_ends_after_a_sample_that_predicts_too_many_reads() -> None:
    with pytest.raises(TooManyReadsError) as caught:
        scan_records(unlike(10_000), 10_000, reads_max=5000)
    assert caught.value.reads < 100


def test_scan_ends_after_its_reads_if_the_sample_predicted_fewer() -> None:
    alike = [Record(timestamp=BASE)] * 5000
    records = alike + [Record(timestamp=BASE, value=bytes(i % 3)) for i in range(5000)]
    with pytest.raises(TooManyReadsError) as caught:
        scan_records(section_of(build_batch(records)), len(records), reads_max=1000)
    assert caught.value.reads == 1000


# Batches of other producers -----------------------------------------------------------------------


START_MS = 1_700_000_000_000
PRODUCED_RECORDS = [
    Record(0, START_MS, b"k1", b"a" * 150, (("h1", b"x"), ("h2", None))),
    Record(1, START_MS + 1, None, b"b" * 150),
    Record(2, START_MS + 2, b"k3", None),
    Record(3, START_MS + 5, b"", b""),
]
GOLDEN: list[dict[str, str]] = json.loads(
    (Path(__file__).parent / "golden_batches.json").read_text("utf-8")
)


@pytest.mark.parametrize(
    "golden", GOLDEN, ids=lambda golden: f"{golden['client']} {golden['codec']}"
)
def test_batch_of_client_is_decoded(golden: dict[str, str]) -> None:
    batch = bytes.fromhex(golden["batch"])
    header = parse_batch_header(batch)
    assert verify_crc(batch)
    assert [(0, header)] == list(iter_batches(batch))
    assert header.codec == Compression[golden["codec"].upper()]
    assert (header.size, header.record_count) == (len(batch), 4)
    assert (header.base_timestamp, header.max_timestamp) == (START_MS, START_MS + 5)
    assert list(iter_records(batch)) == PRODUCED_RECORDS


def test_golden_batches_cover_every_client_and_codec() -> None:
    clients = {golden["client"].split()[0] for golden in GOLDEN}
    assert clients == {"librdkafka", "kafka-python", "aiokafka", "kafka-clients"}
    assert {(g["client"].split()[0], g["codec"]) for g in GOLDEN} == {
        (client, codec.name.lower()) for client in clients for codec in Compression
    }


def as_records(batch: Any) -> list[Record]:
    return [
        Record(r.offset, r.timestamp, r.key, r.value, tuple((k, v) for k, v in r.headers))
        for r in batch
    ]


@pytest.mark.parametrize("codec", Compression)
def test_aiokafka_decodes_built_batch(codec: Compression) -> None:
    theirs = AiokafkaBatch(build_batch(PRODUCED_RECORDS, compression=codec))
    assert theirs.validate_crc()
    assert as_records(theirs) == PRODUCED_RECORDS


# It needs packages of its own for the other codecs.
@pytest.mark.parametrize("codec", [Compression.NONE, Compression.GZIP])
def test_kafka_python_decodes_built_batch(codec: Compression) -> None:
    theirs = KafkaPythonBatch(build_batch(PRODUCED_RECORDS, compression=codec))
    assert theirs.validate_crc()
    assert as_records(theirs) == PRODUCED_RECORDS


def test_uncompressed_batch_equals_batch_of_kafka() -> None:
    (java,) = (
        bytes.fromhex(g["batch"])
        for g in GOLDEN
        if g["client"].startswith("kafka-clients") and g["codec"] == "none"
    )
    epoch = parse_batch_header(java).partition_leader_epoch
    assert build_batch(PRODUCED_RECORDS, partition_leader_epoch=epoch) == java
