"""Each refusal that a producer can meet, with the code that Kafka answers."""

from __future__ import annotations

import contextlib
import struct

import lz4.frame
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.errors import LogError, RecordError
from minibroker.broker.log.validation import (
    DECOMPRESSED_MAX_BYTES,
    RECORDS_MAX,
    STEP_BYTES_MAX,
    STEP_READS_MAX,
    STEP_RECORDS_MAX,
    BatchExceedsStepError,
    Origin,
    StepBudget,
    prepare_batch,
)
from minibroker_protocol.compression import Compression, compress
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.records import (
    HEADER_BYTES,
    Record,
    TimestampType,
    build_batch,
    iter_records,
    parse_batch_header,
)
from tests.protocol.compressed_frames import compressed_frames

NOW_MS = 1_700_000_000_000
DEFAULT = LogConfig()
RECORDS = [Record(timestamp=NOW_MS, key=b"k", value=b"v"), Record(timestamp=NOW_MS - 5)]
GOOD = build_batch(RECORDS)


def refused(
    records: bytes, config: LogConfig = DEFAULT, origin: Origin = Origin.CLIENT
) -> ErrorCode:
    with pytest.raises(LogError) as caught:
        prepare_batch(records, config, now_ms=NOW_MS, origin=origin)
    return caught.value.code


def accepted(records: bytes, config: LogConfig = DEFAULT, origin: Origin = Origin.CLIENT) -> bool:
    prepared = prepare_batch(records, config, now_ms=NOW_MS, origin=origin)
    return prepared.header == parse_batch_header(records)


def changed(position: int, form: str, value: int, batch: bytes = GOOD) -> bytes:
    """The batch with another value in its header, and the checksum that goes with it."""
    data = bytearray(batch)
    struct.pack_into(form, data, position, value)
    if position >= 21:
        struct.pack_into(">I", data, 17, crc32c(memoryview(data)[21:]))
    return bytes(data)


@pytest.mark.parametrize("codec", Compression)
def test_valid_batch_of_any_codec_is_accepted(codec: Compression) -> None:
    assert accepted(build_batch(RECORDS, compression=codec))


def test_bytes_after_batch_are_ignored() -> None:
    assert accepted(GOOD + GOOD[:16])
    assert accepted(GOOD + GOOD[:-1])


@pytest.mark.parametrize("records", [b"", GOOD[:16], GOOD[:-1]])
def test_incomplete_batch_is_rejected(records: bytes) -> None:
    assert refused(records) is ErrorCode.INVALID_RECORD


def test_two_batches_are_rejected() -> None:
    assert refused(GOOD + GOOD) is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("magic", [0, 1])
def test_old_message_format_is_rejected(magic: int) -> None:
    assert refused(changed(16, "B", magic)) is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("magic", [3, 255])
def test_unknown_message_format_is_corrupt_message(magic: int) -> None:
    assert refused(changed(16, "B", magic)) is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("length", [-1, 13, 48])
def test_invalid_batch_length_is_corrupt_message(length: int) -> None:
    assert refused(changed(8, ">i", length)) is ErrorCode.CORRUPT_MESSAGE


def test_wrong_checksum_is_corrupt_message() -> None:
    assert refused(changed(17, ">I", 1)) is ErrorCode.CORRUPT_MESSAGE


def test_own_batch_is_trusted_except_for_its_size() -> None:
    assert accepted(changed(17, ">I", 1), origin=Origin.COORDINATOR)
    config = LogConfig(max_message_bytes=len(GOOD) - 1)
    assert refused(GOOD, config, Origin.COORDINATOR) is ErrorCode.MESSAGE_TOO_LARGE


def test_nonzero_base_offset_is_accepted_from_coordinator_only() -> None:
    batch = changed(0, ">q", 5)
    assert refused(batch) is ErrorCode.INVALID_RECORD
    assert accepted(batch, origin=Origin.COORDINATOR)


def test_batch_above_max_message_bytes_is_rejected() -> None:
    size = len(GOOD)
    assert accepted(GOOD, LogConfig(max_message_bytes=size))
    config = LogConfig(max_message_bytes=size - 1)
    assert refused(GOOD, config) is ErrorCode.MESSAGE_TOO_LARGE


def test_batch_above_segment_bytes_is_rejected() -> None:
    size = len(GOOD)
    assert accepted(GOOD, LogConfig(segment_bytes=size))
    config = LogConfig(segment_bytes=size - 1)
    assert refused(GOOD, config) is ErrorCode.RECORD_LIST_TOO_LARGE


@pytest.mark.parametrize("count", [-1, 0, 1, 3])
def test_record_count_unequal_to_offset_range_is_rejected(count: int) -> None:
    assert refused(changed(57, ">i", count)) is ErrorCode.INVALID_RECORD


def test_record_count_impossible_for_batch_size_is_rejected() -> None:
    batch = changed(23, ">i", 2**20 - 1, changed(57, ">i", 2**20))
    assert refused(batch) is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codec_is_rejected(codec: int) -> None:
    assert refused(changed(21, ">h", codec)) is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_control_batch_is_accepted_from_coordinator_only() -> None:
    batch = build_batch(RECORDS, control=True)
    assert refused(batch) is ErrorCode.INVALID_RECORD
    assert accepted(batch, origin=Origin.COORDINATOR)


def test_producer_id_without_sequence_is_rejected() -> None:
    batch = build_batch(RECORDS, producer_id=1, producer_epoch=0, base_sequence=-1)
    assert refused(batch) is ErrorCode.INVALID_RECORD
    assert accepted(batch, origin=Origin.COORDINATOR)


@pytest.mark.parametrize("kind", TimestampType)
def test_log_append_time_set_by_producer_is_rejected(kind: TimestampType) -> None:
    batch = build_batch(RECORDS, timestamp_type=TimestampType.LOG_APPEND_TIME)
    assert refused(batch, LogConfig(timestamp_type=kind)) is ErrorCode.INVALID_TIMESTAMP


def test_timestamp_too_far_in_the_future_is_rejected() -> None:
    config = LogConfig(timestamp_after_max_ms=1000)
    assert accepted(build_batch([Record(timestamp=NOW_MS + 1000)]), config)
    late = build_batch([Record(timestamp=NOW_MS), Record(timestamp=NOW_MS + 1001)])
    assert refused(late, config) is ErrorCode.INVALID_TIMESTAMP
    stamped = LogConfig(timestamp_after_max_ms=0, timestamp_type=TimestampType.LOG_APPEND_TIME)
    assert accepted(late, stamped)


@pytest.mark.parametrize("codec", Compression)
def test_timestamp_too_far_in_the_past_is_rejected(codec: Compression) -> None:
    config = LogConfig(timestamp_before_max_ms=1000)
    early = [Record(timestamp=NOW_MS), Record(timestamp=NOW_MS - 1001)]
    assert refused(build_batch(early, compression=codec), config) is ErrorCode.INVALID_TIMESTAMP
    assert accepted(build_batch([Record(timestamp=NOW_MS - 1000)], compression=codec), config)
    assert accepted(build_batch([Record(timestamp=-1)], compression=codec), config)


def test_record_without_key_for_compacted_topic_is_rejected() -> None:
    config = LogConfig(compact=True)
    assert refused(GOOD, config) is ErrorCode.INVALID_RECORD
    assert accepted(build_batch(RECORDS[:1]), config)


def test_unreadable_records_for_compacted_topic_are_rejected() -> None:
    broken = changed(61, "B", 0x7F)
    assert refused(broken, LogConfig(compact=True)) is ErrorCode.INVALID_RECORD


@given(data=st.binary(max_size=200))
def test_random_bytes_are_accepted_or_rejected(data: bytes) -> None:
    with contextlib.suppress(LogError):
        prepare_batch(data, LogConfig(compact=True), now_ms=NOW_MS)


def with_section(section: bytes, count: int, codec: Compression = Compression.NONE) -> bytes:
    """A batch that claims ``count`` records and has these bytes for them, with a right checksum."""
    return with_data(compress(codec, section), count, codec)


def with_data(body: bytes, count: int, codec: Compression) -> bytes:
    """A batch with data that is compressed already."""
    head = bytearray(build_batch([Record(timestamp=NOW_MS)])[:HEADER_BYTES])
    struct.pack_into(">i", head, 8, HEADER_BYTES - 12 + len(body))
    struct.pack_into(">h", head, 21, codec)
    struct.pack_into(">i", head, 23, count - 1)
    struct.pack_into(">i", head, 57, count)
    data = bytearray(bytes(head) + body)
    struct.pack_into(">I", data, 17, crc32c(memoryview(data)[21:]))
    return bytes(data)


def tiny_records(count: int) -> bytes:
    """Records with neither key nor value, with the offset deltas that they must have."""
    return bytes(memoryview(build_batch([Record()] * count))[HEADER_BYTES:])


def unlike_records(count: int) -> bytes:
    """A batch in which no record has the size of the next one."""
    return build_batch([Record(timestamp=NOW_MS, value=bytes(i % 3)) for i in range(count)])


@pytest.mark.parametrize("codec", Compression)
def test_invalid_records_with_valid_checksum_are_rejected(codec: Compression) -> None:
    assert refused(with_section(b"\x55" * 100, 3, codec)) is ErrorCode.INVALID_RECORD


def test_invalid_compressed_data_is_rejected() -> None:
    batch = bytearray(with_section(b"\x55" * 100, 3))
    struct.pack_into(">h", batch, 21, Compression.ZSTD)
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    assert refused(bytes(batch)) is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", [codec for codec in Compression if codec])
def test_frames_are_accepted_if_kafkas_java_clients_read_their_records(codec: Compression) -> None:
    values = [bytes([n]) * 200 for n in range(4)]
    section = build_batch([Record(timestamp=NOW_MS, value=value) for value in values])[
        HEADER_BYTES:
    ]
    for frame in compressed_frames(section):
        if frame.codec is not codec:
            continue
        batch = with_data(frame.data, 4, codec)
        for target in (None, Compression.NONE):
            config = LogConfig(compression=target)
            if frame.content == section:
                stored = prepare_batch(batch, config, now_ms=NOW_MS).records
                assert [record.value for record in iter_records(stored)] == values, frame.name
            else:
                assert refused(batch, config) is ErrorCode.INVALID_RECORD, frame.name


def test_batch_with_linked_lz4_blocks_is_rejected_with_the_remedy() -> None:
    section = tiny_records(20_000)
    data = lz4.frame.compress(section, lz4.frame.BLOCKSIZE_MAX64KB, block_linked=True)
    batch = with_data(data, 20_000, Compression.LZ4)
    with pytest.raises(LogError, match="must write independent blocks") as error:
        prepare_batch(batch, DEFAULT, now_ms=NOW_MS)
    assert error.value.code is ErrorCode.INVALID_RECORD


def test_count_of_two_billion_in_a_small_compressed_batch_is_rejected() -> None:
    batch = with_section(tiny_records(10), 2**31 - 1, Compression.GZIP)
    assert len(batch) < 150
    assert refused(batch) is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("count", [1, 9, 11])
def test_wrong_record_count_is_rejected(count: int) -> None:
    batch = with_section(tiny_records(10), count, Compression.LZ4)
    assert refused(batch) is ErrorCode.INVALID_RECORD


def test_offset_deltas_that_are_not_consecutive_are_rejected() -> None:
    section = bytearray(tiny_records(3))
    section[7 + 3] = 4  # the offset delta of the second record: 2 instead of 1
    assert refused(with_section(bytes(section), 3)) is ErrorCode.INVALID_RECORD


def test_too_many_records_are_rejected_without_decoding() -> None:
    batch = with_section(b"", RECORDS_MAX + 1, Compression.ZSTD)
    assert refused(batch) is ErrorCode.INVALID_RECORD


def test_batch_that_decompresses_beyond_limit_is_rejected() -> None:
    record = build_batch([Record(timestamp=NOW_MS, value=bytes(DECOMPRESSED_MAX_BYTES))])
    batch = with_section(record[HEADER_BYTES:], 1, Compression.ZSTD)
    assert len(batch) < 10_000
    assert refused(batch) is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize(
    "batch",
    [
        with_section(tiny_records(STEP_RECORDS_MAX + 1), STEP_RECORDS_MAX + 1),
        unlike_records(STEP_READS_MAX + 1),
        build_batch(
            [Record(timestamp=NOW_MS, value=bytes(STEP_BYTES_MAX))], compression=Compression.ZSTD
        ),
    ],
    ids=["records", "reads", "bytes"],
)
def test_batch_too_large_for_a_step_is_accepted_without_budget(batch: bytes) -> None:
    with pytest.raises(BatchExceedsStepError):
        prepare_batch(batch, DEFAULT, now_ms=NOW_MS, budget=StepBudget())
    assert accepted(batch)


def fits(batch: bytes, config: LogConfig, budget: StepBudget) -> bool:
    try:
        prepare_batch(batch, config, now_ms=NOW_MS, budget=budget)
    except BatchExceedsStepError:
        return False
    return True


@pytest.mark.parametrize(
    ("batch", "config"),
    [
        (with_section(tiny_records(STEP_RECORDS_MAX // 3), STEP_RECORDS_MAX // 3), DEFAULT),
        (unlike_records(STEP_READS_MAX // 3), DEFAULT),
        (
            build_batch(
                [Record(timestamp=NOW_MS, value=bytes(STEP_BYTES_MAX // 4))],
                compression=Compression.ZSTD,
            ),
            DEFAULT,
        ),
        (
            build_batch([Record(timestamp=NOW_MS, value=bytes(STEP_BYTES_MAX // 4))] * 2),
            LogConfig(compression=Compression.GZIP),
        ),
    ],
    ids=["records", "reads", "decompressed", "compressed"],
)
def test_batches_of_a_request_share_the_budget_of_a_step(batch: bytes, config: LogConfig) -> None:
    budget = StepBudget()
    outcomes = [fits(batch, config, budget) for _ in range(5)]
    assert outcomes[0]
    assert not any(outcomes[3:])


def test_damaged_compression_uses_up_the_budget() -> None:
    budget = StepBudget()
    damaged = changed(21, ">h", int(Compression.ZSTD))
    for _ in range(2):
        assert not fits(damaged, DEFAULT, budget)
    assert budget.converted_bytes == 0


def test_max_timestamp_is_taken_from_records_instead_of_header() -> None:
    lying = changed(35, ">q", NOW_MS + 999_999)
    assert prepare_batch(lying, DEFAULT, now_ms=NOW_MS).max_timestamp == NOW_MS


def test_every_record_without_key_is_listed_in_error() -> None:
    records = [Record(timestamp=NOW_MS, key=None if i in (3, 7) else b"k") for i in range(10)]
    with pytest.raises(LogError) as caught:
        prepare_batch(build_batch(records), LogConfig(compact=True), now_ms=NOW_MS)
    text = "the record has no key, and the topic is compacted"
    assert caught.value.records == (RecordError(3, text), RecordError(7, text))


def test_every_record_with_invalid_timestamp_is_listed_in_error() -> None:
    times = [0, 5000, -5000, 1, 5000]
    records = [Record(timestamp=NOW_MS + each) for each in times]
    config = LogConfig(timestamp_before_max_ms=1000, timestamp_after_max_ms=1000)
    with pytest.raises(LogError) as caught:
        prepare_batch(build_batch(records), config, now_ms=NOW_MS)
    assert caught.value.code is ErrorCode.INVALID_TIMESTAMP
    assert [each.position for each in caught.value.records] == [1, 2, 4]


def test_batch_error_lists_no_records() -> None:
    with pytest.raises(LogError) as caught:
        prepare_batch(GOOD, LogConfig(max_message_bytes=10), now_ms=NOW_MS)
    assert caught.value.records == ()
