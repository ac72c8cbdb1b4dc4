"""Checks of the record batch of one Produce partition before it is appended.

Owns the rules and their error codes. It must never know files, assigned offsets or producer
states. Invariant: every record of a batch that passes can be read by Kafka's Java clients, and what
is stored has the size, checksum, count and largest timestamp that its header claims; the
request's bytes are not changed. Echoes ``ProduceRequest.validateRecords``, then
``UnifiedLog.analyzeAndValidateRecords``, then ``LogValidator``, in that order.

Kafka decompresses batches of any size. Here a batch has limits, so that a small request cannot cost
minutes or gigabytes, and a caller can limit the work of one step of an event loop.
"""

from __future__ import annotations

from enum import Enum
from functools import lru_cache
from struct import Struct
from typing import Final, NamedTuple

from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.errors import LogError, NotOneBatchError, RecordError
from minibroker_protocol.compression import Compression
from minibroker_protocol.control_records import EndTransactionMarker, build_marker
from minibroker_protocol.errors import DecodeError, ErrorCode
from minibroker_protocol.records import (
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    MAGIC,
    MAGIC_POSITION,
    NO_TIMESTAMP,
    PREFIX_BYTES,
    BatchHeader,
    Buffer,
    RecordScan,
    TimestampType,
    TooManyReadsError,
    parse_batch_header,
    read_plain_batch,
    recompressed,
    records_section,
    scan_records,
    verify_crc,
)

RECORDS_MAX: Final = 1_000_000
"""Records of one batch: the largest ``batch.num.messages`` of librdkafka."""

DECOMPRESSED_MAX_BYTES: Final = 64 * 1024 * 1024
"""Bytes of one batch's records once they are decompressed."""

STEP_RECORDS_MAX: Final = 10_000
"""Records that are checked in one step of a worker's loop: a millisecond if they are alike."""

STEP_READS_MAX: Final = 1000
"""Records that are read one by one in a step, because they are not alike: two milliseconds."""

STEP_BYTES_MAX: Final = 1024 * 1024
"""Bytes that are decompressed or compressed in one step of a worker's loop."""

RECORD_ERRORS_MAX: Final = 1000
"""Records of one batch that are named in a response."""

_LENGTH: Final = Struct(">8xi")
_OLD_RECORD_MIN_BYTES: Final = 14
"""A message of format 0, the smallest valid one of all formats."""
_RECORD_MIN_BYTES: Final = 7
"""A record of format 2 with neither key, value nor headers."""
_CODECS: Final = frozenset(Compression)
_INT64_MAX: Final = 2**63 - 1


class Origin(Enum):
    """The writer of a batch. Only clients' records are checked; the broker trusts its own."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    RECORDER = "recorder"


class StepBudget:
    """The work that checks may still do in one step, for all batches of a request together."""

    __slots__ = ("converted_bytes", "reads", "records")

    def __init__(self) -> None:
        self.records = STEP_RECORDS_MAX
        self.reads = STEP_READS_MAX
        self.converted_bytes = STEP_BYTES_MAX


class PreparedBatch(NamedTuple):
    """A valid batch, as it is stored; ``max_timestamp`` replaces the header's."""

    records: Buffer
    header: BatchHeader
    max_timestamp: int


class BatchExceedsStepError(Exception):
    """The batch exceeds the budget of the step; its records are not checked yet."""


def prepare_batch(
    records: Buffer,
    config: LogConfig,
    *,
    now_ms: int,
    origin: Origin = Origin.CLIENT,
    budget: StepBudget | None = None,
) -> PreparedBatch:
    """Check the one batch in ``records`` and convert it to the topic's codec.

    ``now_ms`` is wall time. Raises LogError as Kafka answers, and BatchExceedsStepError if the
    work exceeds the ``budget`` of a step, which is reduced by the work done.
    """
    if origin is Origin.CLIENT:
        plain = _prepare_plain(records, config, now_ms)
        if plain is not None:
            return plain
    if origin is Origin.COORDINATOR:  # It was built by this process just now.
        header = parse_batch_header(records)
        check_size(header, config)
    else:
        header = check_header(records, config, origin)
    max_timestamp = header.max_timestamp
    if origin is Origin.CLIENT:
        _check_count(header, budget)
        max_timestamp = _check_records(records, header, config, now_ms, budget)
    if config.compression is not None and header.codec != config.compression:
        if budget is not None:
            _take_bytes(budget, header.size)
        records, header = _recompress(records, header, config)
    return PreparedBatch(records, header, max_timestamp)


@lru_cache(1)  # A transaction gets the same marker on each of its partitions.
def prepare_marker(
    producer_id: int, producer_epoch: int, marker: EndTransactionMarker, now_ms: int
) -> PreparedBatch:
    """The batch of a transaction marker, which needs no checks."""
    batch = build_marker(producer_id, producer_epoch, marker, now_ms)
    return PreparedBatch(batch, parse_batch_header(batch), now_ms)


def _prepare_plain(records: Buffer, config: LogConfig, now_ms: int) -> PreparedBatch | None:
    """Return a batch of one ordinary record that passes; None if the other checks must decide."""
    batch = read_plain_batch(memoryview(records))
    if batch is None:
        return None
    header, timestamp, has_key = batch
    latest_ms = now_ms + config.timestamp_after_max_ms
    if (
        config.compression is not None
        or config.timestamp_type is not TimestampType.CREATE_TIME
        or not now_ms - config.timestamp_before_max_ms <= timestamp <= latest_ms
        or not 0 <= timestamp <= _INT64_MAX
        or (config.compact and not has_key)
        or not len(records) <= min(config.max_message_bytes, config.segment_bytes)
        or (header.producer_id >= 0 and header.base_sequence < 0)
    ):
        return None
    return PreparedBatch(records, header, timestamp)


def check_header(records: Buffer, config: LogConfig, origin: Origin) -> BatchHeader:
    """Return the header of the one batch in ``records``. Checks size, checksum and fields."""
    header = _single_batch_header(records)
    if origin is Origin.CLIENT and header.base_offset != 0:
        raise _invalid_record(f"the batch's base offset is {header.base_offset}; producers send 0")
    check_size(header, config)
    if not verify_crc(records):
        raise LogError(
            ErrorCode.CORRUPT_MESSAGE,
            f"the batch's checksum {header.crc:#010x} is not that of its {header.size} bytes",
        )
    _check_fields(header, origin)
    return header


def check_size(header: BatchHeader, config: LogConfig) -> None:
    """Raise LogError if the batch exceeds max.message.bytes or segment.bytes."""
    if header.size > config.max_message_bytes:
        raise LogError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the batch has {header.size} bytes, max.message.bytes is {config.max_message_bytes}",
        )
    if header.size > config.segment_bytes:
        raise LogError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"the batch has {header.size} bytes, segment.bytes is {config.segment_bytes}",
        )


def _single_batch_header(records: Buffer) -> BatchHeader:
    size = _batch_size(records, 0)
    if size is None:
        raise _not_one_batch("there is no complete record batch in the request")
    magic = records[MAGIC_POSITION]
    if magic != MAGIC:
        raise _not_one_batch(
            f"the batch has format {magic}, only format {MAGIC} is accepted; use a newer client"
        )
    if size < HEADER_BYTES:
        raise LogError(
            ErrorCode.CORRUPT_MESSAGE,
            f"the batch has {size} bytes, its header alone needs {HEADER_BYTES}",
        )
    if _batch_size(records, size) is not None:
        raise _not_one_batch("there is more than one record batch in the request")
    return parse_batch_header(records)


def _not_one_batch(text: str) -> NotOneBatchError:
    return NotOneBatchError(ErrorCode.INVALID_RECORD, text)


def _batch_size(records: Buffer, pos: int) -> int | None:
    """Bytes of the batch at ``pos``, of any format; None if it is incomplete."""
    if len(records) - pos < PREFIX_BYTES:
        return None
    (length,) = _LENGTH.unpack_from(records, pos)
    if length < _OLD_RECORD_MIN_BYTES:
        raise LogError(ErrorCode.CORRUPT_MESSAGE, f"the batch's length field says {length}")
    magic = records[pos + MAGIC_POSITION]
    if magic > MAGIC:
        raise LogError(ErrorCode.CORRUPT_MESSAGE, f"the batch has the unknown format {magic}")
    size: int = length + LENGTH_OVERHEAD_BYTES
    return size if size <= len(records) - pos else None


def _check_fields(header: BatchHeader, origin: Origin) -> None:
    count = header.record_count
    if count <= 0 or header.last_offset_delta != count - 1:
        raise _invalid_record(
            f"the batch counts {count} records and its offsets go to {header.last_offset_delta}"
        )
    if header.codec not in _CODECS:
        raise LogError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"the batch has the unknown codec {header.codec}; codecs are 0 to {max(_CODECS)}",
        )
    if header.codec == Compression.NONE and count * _RECORD_MIN_BYTES > header.size - HEADER_BYTES:
        raise _invalid_record(f"{count} records do not fit into {header.size - HEADER_BYTES} bytes")
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        raise LogError(
            ErrorCode.INVALID_TIMESTAMP, "producers may not set the timestamp type LogAppendTime"
        )
    if origin is not Origin.CLIENT:
        return
    if header.is_control:
        raise _invalid_record("clients may not write control batches")
    if header.has_producer_id and header.base_sequence < 0:
        raise _invalid_record(
            f"producer {header.producer_id} sent the sequence number {header.base_sequence}"
        )


def _check_count(header: BatchHeader, budget: StepBudget | None) -> None:
    if header.record_count > RECORDS_MAX:
        raise _invalid_record(
            f"the batch counts {header.record_count} records; at most {RECORDS_MAX} are accepted"
        )
    if budget is not None:
        if header.record_count > budget.records:
            raise BatchExceedsStepError
        budget.records -= header.record_count


def _take_bytes(budget: StepBudget, size: int) -> None:
    if size > budget.converted_bytes:
        raise BatchExceedsStepError
    budget.converted_bytes -= size


def _check_records(
    records: Buffer,
    header: BatchHeader,
    config: LogConfig,
    now_ms: int,
    budget: StepBudget | None,
) -> int:
    """Check the records; returns the largest timestamp."""
    allowed_deltas, base_timestamp = None, header.base_timestamp
    if config.timestamp_type is TimestampType.CREATE_TIME:
        earliest = now_ms - config.timestamp_before_max_ms
        allowed_deltas = range(
            earliest - base_timestamp, now_ms + config.timestamp_after_max_ms - base_timestamp + 1
        )
    try:
        scan = scan_records(
            _records_section(records, header, budget),
            header.record_count,
            allowed_deltas,
            NO_TIMESTAMP - base_timestamp,
            positions_max=RECORD_ERRORS_MAX,
            reads_max=None if budget is None else budget.reads,
        )
    except TooManyReadsError as exceeded:
        assert budget is not None
        budget.reads -= exceeded.reads
        raise BatchExceedsStepError from None
    except DecodeError as error:
        raise _invalid_record(f"the batch's records cannot be read: {error}") from error
    if budget is not None:
        budget.reads -= scan.reads
    if scan.invalid_timestamps or (config.compact and scan.without_key):
        raise _rejected_records(scan, config, header)
    max_timestamp = max(base_timestamp + scan.max_timestamp_delta, NO_TIMESTAMP)
    if max_timestamp > _INT64_MAX:
        raise _invalid_record(f"the batch's largest timestamp is {max_timestamp}")
    return max_timestamp


def _records_section(records: Buffer, header: BatchHeader, budget: StepBudget | None) -> Buffer:
    if budget is None or header.codec == Compression.NONE:
        return records_section(records, header, DECOMPRESSED_MAX_BYTES)
    if not budget.converted_bytes:
        raise BatchExceedsStepError
    try:
        section = records_section(records, header, budget.converted_bytes)
    except DecodeError:
        budget.converted_bytes = 0
        raise BatchExceedsStepError from None
    budget.converted_bytes -= len(section)
    return section


def _rejected_records(scan: RecordScan, config: LogConfig, header: BatchHeader) -> LogError:
    """The error with all rejected records, as in LogValidator."""
    errors = [
        RecordError(position, "the record has no key, and the topic is compacted")
        for position in (scan.without_key if config.compact else ())
    ]
    errors += [
        RecordError(
            position,
            "the timestamp is out of the range of message.timestamp.before.max.ms and"
            " message.timestamp.after.max.ms",
        )
        for position in scan.invalid_timestamps
    ]
    errors.sort()
    code = ErrorCode.INVALID_TIMESTAMP if scan.invalid_timestamps else ErrorCode.INVALID_RECORD
    text = f"{len(errors)} of {header.record_count} records were rejected, the first at position"
    return LogError(code, f"{text} {errors[0].position}: {errors[0].text}", tuple(errors))


def _recompress(
    records: Buffer, header: BatchHeader, config: LogConfig
) -> tuple[Buffer, BatchHeader]:
    assert config.compression is not None
    try:
        converted = recompressed(records, config.compression, DECOMPRESSED_MAX_BYTES)
    except DecodeError as error:
        raise _invalid_record(f"the batch cannot be read: {error}") from error
    header = parse_batch_header(converted)
    check_size(header, config)
    return converted, header


def _invalid_record(text: str) -> LogError:
    return LogError(ErrorCode.INVALID_RECORD, text)
