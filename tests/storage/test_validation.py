"""Each refusal that a producer can meet, with the code that Kafka answers."""

from __future__ import annotations

import contextlib
import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from minibroker.storage.config import LogConfig
from minibroker.storage.errors import LogError
from minibroker.storage.validation import Origin, check_batch
from protocol.compression import Compression
from protocol.errors import ErrorCode
from protocol.records import Record, TimestampType, build_batch, parse_batch_header

NOW_MS = 1_700_000_000_000
DEFAULT = LogConfig()
RECORDS = [Record(timestamp=NOW_MS, key=b"k", value=b"v"), Record(timestamp=NOW_MS - 5)]
GOOD = build_batch(RECORDS)


def refused(
    records: bytes, config: LogConfig = DEFAULT, origin: Origin = Origin.CLIENT
) -> ErrorCode:
    with pytest.raises(LogError) as caught:
        check_batch(records, config, now_ms=NOW_MS, origin=origin)
    return caught.value.code


def accepted(records: bytes, config: LogConfig = DEFAULT, origin: Origin = Origin.CLIENT) -> bool:
    header = check_batch(records, config, now_ms=NOW_MS, origin=origin)
    return header == parse_batch_header(records)


def changed(position: int, form: str, value: int, batch: bytes = GOOD) -> bytes:
    """The batch with another value in its header, and the checksum that goes with it."""
    data = bytearray(batch)
    struct.pack_into(form, data, position, value)
    if position >= 21:
        struct.pack_into(">I", data, 17, crc32c(memoryview(data)[21:]))
    return bytes(data)


@pytest.mark.parametrize("codec", Compression)
def test_a_good_batch_of_any_codec_passes(codec: Compression) -> None:
    assert accepted(build_batch(RECORDS, compression=codec))


def test_bytes_after_the_batch_are_left_out() -> None:
    assert accepted(GOOD + GOOD[:16])
    assert accepted(GOOD + GOOD[:-1])


@pytest.mark.parametrize("records", [b"", GOOD[:16], GOOD[:-1]])
def test_no_whole_batch(records: bytes) -> None:
    assert refused(records) is ErrorCode.INVALID_RECORD


def test_two_batches() -> None:
    assert refused(GOOD + GOOD) is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("magic", [0, 1])
def test_an_old_message_format(magic: int) -> None:
    assert refused(changed(16, "B", magic)) is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("magic", [3, 255])
def test_an_unknown_message_format(magic: int) -> None:
    assert refused(changed(16, "B", magic)) is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("length", [-1, 13, 48])
def test_an_impossible_length(length: int) -> None:
    assert refused(changed(8, ">i", length)) is ErrorCode.CORRUPT_MESSAGE


def test_a_wrong_checksum() -> None:
    assert refused(changed(17, ">I", 1)) is ErrorCode.CORRUPT_MESSAGE


def test_clients_number_from_zero_and_the_coordinator_as_it_likes() -> None:
    batch = changed(0, ">q", 5)
    assert refused(batch) is ErrorCode.INVALID_RECORD
    assert accepted(batch, origin=Origin.COORDINATOR)


def test_a_batch_above_the_topics_limit() -> None:
    size = len(GOOD)
    assert accepted(GOOD, LogConfig(max_message_bytes=size))
    config = LogConfig(max_message_bytes=size - 1)
    assert refused(GOOD, config) is ErrorCode.MESSAGE_TOO_LARGE


def test_a_batch_above_a_segments_size() -> None:
    size = len(GOOD)
    assert accepted(GOOD, LogConfig(segment_bytes=size))
    config = LogConfig(segment_bytes=size - 1)
    assert refused(GOOD, config) is ErrorCode.RECORD_LIST_TOO_LARGE


@pytest.mark.parametrize("count", [-1, 0, 1, 3])
def test_a_count_that_is_not_the_offsets(count: int) -> None:
    assert refused(changed(57, ">i", count)) is ErrorCode.INVALID_RECORD


def test_a_count_that_can_not_be() -> None:
    batch = changed(23, ">i", 2**20 - 1, changed(57, ">i", 2**20))
    assert refused(batch) is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec(codec: int) -> None:
    assert refused(changed(21, ">h", codec)) is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_control_batches_are_the_brokers_own() -> None:
    batch = build_batch(RECORDS, control=True)
    assert refused(batch) is ErrorCode.INVALID_RECORD
    assert accepted(batch, origin=Origin.COORDINATOR)


def test_a_producer_id_needs_a_sequence() -> None:
    batch = build_batch(RECORDS, producer_id=1, producer_epoch=0, base_sequence=-1)
    assert refused(batch) is ErrorCode.INVALID_RECORD
    assert accepted(batch, origin=Origin.COORDINATOR)


def test_a_transactional_batch_needs_a_transaction() -> None:
    batch = build_batch(
        RECORDS, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True
    )
    assert refused(batch) is ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize("kind", TimestampType)
def test_producers_do_not_set_log_append_time(kind: TimestampType) -> None:
    batch = build_batch(RECORDS, timestamp_type=TimestampType.LOG_APPEND_TIME)
    assert refused(batch, LogConfig(timestamp_type=kind)) is ErrorCode.INVALID_TIMESTAMP


def test_timestamps_from_too_far_ahead() -> None:
    config = LogConfig(timestamp_after_max_ms=1000)
    assert accepted(build_batch([Record(timestamp=NOW_MS + 1000)]), config)
    late = build_batch([Record(timestamp=NOW_MS), Record(timestamp=NOW_MS + 1001)])
    assert refused(late, config) is ErrorCode.INVALID_TIMESTAMP
    stamped = LogConfig(timestamp_after_max_ms=0, timestamp_type=TimestampType.LOG_APPEND_TIME)
    assert accepted(late, stamped)


@pytest.mark.parametrize("codec", Compression)
def test_timestamps_from_too_long_ago(codec: Compression) -> None:
    config = LogConfig(timestamp_before_max_ms=1000)
    early = [Record(timestamp=NOW_MS), Record(timestamp=NOW_MS - 1001)]
    assert refused(build_batch(early, compression=codec), config) is ErrorCode.INVALID_TIMESTAMP
    assert accepted(build_batch([Record(timestamp=NOW_MS - 1000)], compression=codec), config)
    assert accepted(build_batch([Record(timestamp=-1)], compression=codec), config)


def test_a_compacted_topic_needs_keys() -> None:
    config = LogConfig(compact=True)
    assert refused(GOOD, config) is ErrorCode.INVALID_RECORD
    assert accepted(build_batch(RECORDS[:1]), config)


def test_records_that_can_not_be_read_where_they_must_be() -> None:
    broken = changed(61, "B", 0x7F)
    assert refused(broken, LogConfig(compact=True)) is ErrorCode.INVALID_RECORD


@given(data=st.binary(max_size=200))
def test_any_bytes_pass_or_are_refused(data: bytes) -> None:
    with contextlib.suppress(LogError):
        check_batch(data, LogConfig(compact=True), now_ms=NOW_MS, origin=Origin.CLIENT)
