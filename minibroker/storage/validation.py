"""What a log checks in the records of one request before it takes them.

Owns the rules and their error codes. It must never know files, offsets assigned or producers'
history. Its invariant: a batch that passes has the size, checksum and count its header claims; the
request's bytes are not changed. Echoes ``ProduceRequest.validateRecords``, then
``UnifiedLog.analyzeAndValidateRecords``, then ``LogValidator``, in that order.

One deliberate difference: Kafka walks every record of every batch. Here the checksum stands for
them, since a walk in Python costs a hundred times the append itself; records are walked only where
the topic's config asks something of each (keys of compacted topics, a lower bound on timestamps).
So the header's largest timestamp is believed, which Kafka computes anew.
"""

from __future__ import annotations

from enum import Enum
from struct import Struct
from typing import Final

from minibroker.storage.config import UNBOUNDED, LogConfig
from minibroker.storage.errors import LogError
from protocol.compression import Compression
from protocol.errors import DecodeError, ErrorCode
from protocol.records import (
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    MAGIC,
    MAGIC_POSITION,
    NO_TIMESTAMP,
    PREFIX_BYTES,
    BatchHeader,
    Buffer,
    TimestampType,
    iter_records,
    parse_batch_header,
    verify_crc,
)

_LENGTH: Final = Struct(">8xi")
_OLD_RECORD_MIN_BYTES: Final = 14
"""A message of format 0, the smallest thing that was ever valid."""
_RECORD_MIN_BYTES: Final = 7
"""A record of format 2 with neither key, value nor headers."""
_CODECS: Final = frozenset(Compression)


class Origin(Enum):
    """Who wrote the records: clients are checked in full, the group coordinator is trusted."""

    CLIENT = "client"
    COORDINATOR = "coordinator"


def check_batch(records: Buffer, config: LogConfig, *, now_ms: int, origin: Origin) -> BatchHeader:
    """Return the header of the one batch in ``records``, or raise LogError as Kafka answers."""
    header = _sole_header(records)
    if origin is Origin.CLIENT and header.base_offset != 0:
        raise _invalid(f"the batch's base offset is {header.base_offset}; producers send 0")
    check_size(header, config)
    if not verify_crc(records):
        raise LogError(
            ErrorCode.CORRUPT_MESSAGE,
            f"the batch's checksum {header.crc:#010x} is not that of its {header.size} bytes",
        )
    _check_header(header, origin)
    _check_timestamps(records, header, config, now_ms)
    return header


def check_size(header: BatchHeader, config: LogConfig) -> None:
    """Raise LogError when the batch is larger than the topic or a segment takes."""
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


def _sole_header(records: Buffer) -> BatchHeader:
    size = _batch_size(records, 0)
    if size is None:
        raise _invalid("there is no whole record batch in the request")
    magic = records[MAGIC_POSITION]
    if magic != MAGIC:
        raise _invalid(
            f"the batch has format {magic}, only format {MAGIC} is taken; use a newer client"
        )
    if size < HEADER_BYTES:
        raise LogError(
            ErrorCode.CORRUPT_MESSAGE,
            f"the batch has {size} bytes, its header alone needs {HEADER_BYTES}",
        )
    if _batch_size(records, size) is not None:
        raise _invalid("there is more than one record batch in the request")
    return parse_batch_header(records)


def _batch_size(records: Buffer, pos: int) -> int | None:
    """Bytes of the batch at ``pos`` if all of them are there; its format may be an old one."""
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


def _check_header(header: BatchHeader, origin: Origin) -> None:
    count = header.record_count
    if count <= 0 or header.last_offset_delta != count - 1:
        raise _invalid(
            f"the batch counts {count} records and its offsets go to {header.last_offset_delta}"
        )
    if header.codec not in _CODECS:
        raise LogError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"the batch names codec {header.codec}; known are 0 to {max(_CODECS)}",
        )
    if header.codec == Compression.NONE and count * _RECORD_MIN_BYTES > header.size - HEADER_BYTES:
        raise _invalid(f"{count} records can't lie in {header.size - HEADER_BYTES} bytes")
    if origin is not Origin.CLIENT:
        return
    if header.is_control:
        raise _invalid("clients may not write control batches")
    if header.has_producer_id and header.base_sequence < 0:
        raise _invalid(
            f"producer {header.producer_id} sent the sequence number {header.base_sequence}"
        )
    if header.is_transactional:
        raise LogError(
            ErrorCode.INVALID_TXN_STATE, "the batch belongs to no transaction that is under way"
        )


def _check_timestamps(records: Buffer, header: BatchHeader, config: LogConfig, now_ms: int) -> None:
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        raise LogError(
            ErrorCode.INVALID_TIMESTAMP, "producers may not set the timestamp type LogAppendTime"
        )
    latest, earliest = UNBOUNDED, -UNBOUNDED
    if config.timestamp_type is TimestampType.CREATE_TIME:
        latest = now_ms + config.timestamp_after_max_ms
        earliest = now_ms - config.timestamp_before_max_ms
        if header.max_timestamp > latest:
            raise _bad_timestamp(header.max_timestamp, earliest, latest)
    if not config.compact and earliest < 0:
        return
    try:
        for record in iter_records(records):
            if config.compact and record.key is None:
                raise _invalid(f"record {record.offset} has no key, and the topic is compacted")
            if record.timestamp != NO_TIMESTAMP and not earliest <= record.timestamp <= latest:
                raise _bad_timestamp(record.timestamp, earliest, latest)
    except DecodeError as error:
        raise _invalid(f"the batch's records can't be read: {error}") from error


def _bad_timestamp(timestamp: int, earliest: int, latest: int) -> LogError:
    return LogError(
        ErrorCode.INVALID_TIMESTAMP,
        f"timestamp {timestamp} is outside [{earliest}, {latest}], which"
        " message.timestamp.before.max.ms and message.timestamp.after.max.ms allow",
    )


def _invalid(text: str) -> LogError:
    return LogError(ErrorCode.INVALID_RECORD, text)
