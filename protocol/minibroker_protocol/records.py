"""Record batches of message format 2: the bytes inside Produce, Fetch and log files.

Owns the layout of a batch's header and records, and the checksum over them. It must never know
offsets' meaning, files or brokers: it reads and writes bytes. Its invariant: nothing past the
buffer is read, no count or length is believed before it is checked, and damage is a DecodeError.
Echoes Kafka's ``DefaultRecordBatch``, ``DefaultRecord`` and KIP-98; formats 0 and 1, which
clients of Kafka 4 no longer send, are recognised by their magic byte and refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

from minibroker_protocol.checksum import crc32c
from minibroker_protocol.compression import (
    DECOMPRESSED_MAX_BYTES,
    Compression,
    compress,
    decompress,
)
from minibroker_protocol.errors import DecodeError

Buffer = bytes | bytearray | memoryview
Headers = tuple[tuple[str, bytes | None], ...]
Pieces = tuple[bytes, bytes, bytes, bytes]

MAGIC: Final = 2
NO_TIMESTAMP: Final = -1
NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
NO_LEADER_EPOCH: Final = -1

HEADER_BYTES: Final = 61
"""A batch's bytes before its first record."""
LENGTH_OVERHEAD_BYTES: Final = 12
"""Base offset and length, which the length field doesn't count."""
MAGIC_POSITION: Final = 16
PREFIX_BYTES: Final = MAGIC_POSITION + 1
"""Bytes required to read a batch's length and format."""

HEADER: Final = Struct(">qiibIhiqqqhii")
_CHECKED: Final = Struct(">hiqqqhii")
_PREFIX: Final = Struct(">qiibI")
_LENGTH_POSITION: Final = 8
_CRC_POSITION: Final = 17
CHECKED_POSITION: Final = 21
_INT32: Final = Struct(">i")
_UINT32: Final = Struct(">I")
_INT32_MAX: Final = 2**31 - 1

_CODEC_MASK: Final = 0x07
_LOG_APPEND_TIME_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
_CONTROL_BIT: Final = 0x20
_DELETE_HORIZON_BIT: Final = 0x40

_VARINT_MAX_SHIFT: Final = 63


class TimestampType(IntEnum):
    """Clock of a batch's timestamps."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class BatchHeader(NamedTuple):
    """Header of one batch in the buffer; offsets and times have Kafka's names."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """The whole batch, header and records, in bytes."""
        return self.batch_length + LENGTH_OVERHEAD_BYTES

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        """The codec's number, which may be one that no ``Compression`` has."""
        return self.attributes & _CODEC_MASK

    @property
    def timestamp_type(self) -> TimestampType:
        return TimestampType(1 if self.attributes & _LOG_APPEND_TIME_BIT else 0)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & _CONTROL_BIT)

    @property
    def has_delete_horizon(self) -> bool:
        """KIP-534: the base timestamp is when tombstones may go, not a record's."""
        return bool(self.attributes & _DELETE_HORIZON_BIT)

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id > NO_PRODUCER_ID

    @property
    def last_sequence(self) -> int:
        """The last record's sequence; sequences wrap from 2**31 - 1 to 0."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & _INT32_MAX


class Record(NamedTuple):
    """One record. ``timestamp`` is ms since the epoch; ``build_batch`` ignores ``offset``."""

    offset: int = 0
    timestamp: int = NO_TIMESTAMP
    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()


def parse_batch_header(buf: Buffer, pos: int = 0) -> BatchHeader:
    """Read the header at ``pos``; the records need not be there.

    Raises DecodeError when it is cut short, of another format, or its length is impossible.
    """
    if len(buf) - pos < HEADER_BYTES:
        raise DecodeError(
            f"a batch header needs {HEADER_BYTES} bytes, there are {len(buf) - pos}", pos
        )
    header = BatchHeader._make(HEADER.unpack_from(buf, pos))
    if header.magic != MAGIC:
        raise DecodeError(f"batch of format {header.magic}, only {MAGIC} is read", pos + 16)
    if header.batch_length < HEADER_BYTES - LENGTH_OVERHEAD_BYTES:
        raise DecodeError(f"batch length {header.batch_length} is too small", pos + 8)
    return header


def verify_crc(buf: Buffer, pos: int = 0) -> bool:
    """Whether the checksum of the whole batch at ``pos`` is right (False also when cut short)."""
    (length,) = _INT32.unpack_from(buf, pos + _LENGTH_POSITION)
    (stored,) = _UINT32.unpack_from(buf, pos + _CRC_POSITION)
    end = pos + LENGTH_OVERHEAD_BYTES + length
    if length < HEADER_BYTES - LENGTH_OVERHEAD_BYTES or end > len(buf):
        return False
    return bool(crc32c(memoryview(buf)[pos + CHECKED_POSITION : end]) == stored)


def iter_batches(buf: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of every whole batch; a cut-off last one ends the iteration."""
    pos, end = 0, len(buf)
    while end - pos >= HEADER_BYTES:
        header = parse_batch_header(buf, pos)
        if header.size > end - pos:
            return
        yield pos, header
        pos += header.size


def iter_records(batch: Buffer, limit: int = DECOMPRESSED_MAX_BYTES) -> Iterator[Record]:
    """Yield the records of the one batch at the start of ``batch``, decompressing it.

    Does not check the checksum. Raises DecodeError at the first damage it meets, and when the
    records and the header's count don't match or they grow past ``limit`` bytes.
    """
    header = parse_batch_header(batch)
    if header.size > len(batch):
        raise DecodeError(f"batch of {header.size} bytes cut off at {len(batch)}", len(batch))
    data = records_section(batch, header, limit)
    pos = 0
    try:
        for _ in range(header.record_count):
            record, pos = _read_record(data, pos, header)
            yield record
    except IndexError:
        raise DecodeError("a record is cut off", pos) from None
    if pos != len(data):
        raise DecodeError(f"{len(data) - pos} bytes follow the last record", pos)


def records_section(batch: Buffer, header: BatchHeader, limit: int) -> Buffer:
    """Return the uncompressed records of the one whole batch at the start of ``batch``.

    Raises DecodeError if they are damaged or have more than ``limit`` bytes.
    """
    if header.codec not in _CODECS:
        raise DecodeError(f"unknown compression codec {header.codec}", CHECKED_POSITION)
    section = memoryview(batch)[HEADER_BYTES : header.size]
    return decompress(Compression(header.codec), section, limit)


_CODECS: Final = frozenset(Compression)


def _read_record(data: Buffer, pos: int, header: BatchHeader) -> tuple[Record, int]:
    length, pos = read_varint(data, pos)
    end = pos + length
    if length < 0 or end > len(data):
        raise DecodeError(f"a record claims {length} bytes", pos)
    timestamp_delta, pos = read_varint(data, pos + 1)
    offset_delta, pos = read_varint(data, pos)
    key, pos = _read_bytes(data, pos, end)
    value, pos = _read_bytes(data, pos, end)
    count, pos = read_varint(data, pos)
    if not 0 <= count <= end - pos:
        raise DecodeError(f"a record claims {count} headers", pos)
    headers: Headers = ()
    if count:
        pairs = []
        for _ in range(count):
            name, pos = _read_bytes(data, pos, end)
            if name is None:
                raise DecodeError("a record header has no key", pos)
            content, pos = _read_bytes(data, pos, end)
            pairs.append((name.decode("utf-8", "surrogateescape"), content))
        headers = tuple(pairs)
    if pos != end:
        raise DecodeError(f"a record's fields end {end - pos} bytes off its length", pos)
    if header.attributes & _LOG_APPEND_TIME_BIT:
        timestamp = header.max_timestamp
    else:
        timestamp = header.base_timestamp + timestamp_delta
    return Record(header.base_offset + offset_delta, timestamp, key, value, headers), pos


def _read_bytes(data: Buffer, pos: int, end: int) -> tuple[bytes | None, int]:
    length, pos = read_varint(data, pos)
    if length < 0:
        if length != -1:
            raise DecodeError(f"a field of a record claims {length} bytes", pos)
        return None, pos
    if pos + length > end:
        raise DecodeError(f"a field of a record claims {length} bytes", pos)
    return bytes(data[pos : pos + length]), pos + length


def read_varint(data: Buffer, pos: int) -> tuple[int, int]:
    """Read a zigzag varint; returns it and the position after it. IndexError when cut off."""
    byte = data[pos]
    pos += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), pos
    value, shift = byte & 0x7F, 7
    while True:
        byte = data[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), pos
        shift += 7
        if shift > _VARINT_MAX_SHIFT:
            raise DecodeError("a varint is longer than 10 bytes", pos)


def varint(value: int) -> bytes:
    """Write a zigzag varint of at most 64 bits."""
    if 0 <= value < len(_VARINTS):
        return _VARINTS[value]
    return _varint(value)


def _varint(value: int) -> bytes:
    rest = (value << 1) ^ (value >> 63)
    if rest < 0x80:
        return bytes((rest,))
    out = bytearray()
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


_NULL: Final = _varint(-1)
_ZERO: Final = _varint(0)
_START: Final = bytes(2)
"""Attributes and timestamp delta of a record with the timestamp of its batch."""
_NO_PRODUCER: Final = NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE
_VARINTS: Final = tuple(map(_varint, range(1024)))
"""The most frequent varints, looked up in a fifth of the time."""


def build_batch(
    records: Iterable[Record],
    *,
    base_offset: int = 0,
    compression: Compression = Compression.NONE,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
    partition_leader_epoch: int = NO_LEADER_EPOCH,
) -> bytes:
    """Build one batch of at least one record, with consecutive offsets from ``base_offset``.

    Raises ValueError when there is no record.
    """
    items = list(records)
    if not items:
        raise ValueError("a batch needs at least one record")
    base_timestamp = items[0].timestamp
    pieces: list[bytes] = []
    for delta, record in enumerate(items):
        pieces += _encode_record(record, delta, base_timestamp)
    section = b"".join(pieces)
    attributes = (
        compression
        | (_LOG_APPEND_TIME_BIT if timestamp_type is TimestampType.LOG_APPEND_TIME else 0)
        | (TRANSACTIONAL_BIT if transactional else 0)
        | (_CONTROL_BIT if control else 0)
    )
    checked = (
        attributes,
        len(items) - 1,
        base_timestamp,
        max(record.timestamp for record in items),
        producer_id,
        producer_epoch,
        base_sequence,
        len(items),
    )
    body = _CHECKED.pack(*checked) + compress(compression, section)
    return _seal(base_offset, partition_leader_epoch, body)


def build_keyed_batch(pairs: Iterable[tuple[bytes, bytes | None]], timestamp: int) -> bytes:
    """Build a batch of keys and values as ``build_batch`` does, faster.

    The records have one timestamp and no headers. Raises ValueError when there is no record.
    """
    pieces: list[bytes] = []
    count = 0
    for key, value in pairs:
        start = _START + varint(count) + varint(len(key)) + key
        content = value or b""
        start += _NULL if value is None else varint(len(content))
        pieces += varint(len(start) + len(content) + 1), start, content, _ZERO
        count += 1
    if not count:
        raise ValueError("a batch needs at least one record")
    head = _CHECKED.pack(0, count - 1, timestamp, timestamp, *_NO_PRODUCER, count)
    return _seal(0, NO_LEADER_EPOCH, head + b"".join(pieces))


def _seal(base_offset: int, leader_epoch: int, body: bytes) -> bytes:
    length = len(body) + CHECKED_POSITION - LENGTH_OVERHEAD_BYTES
    return _PREFIX.pack(base_offset, length, leader_epoch, MAGIC, crc32c(body)) + body


def _encode_record(record: Record, offset_delta: int, base_timestamp: int) -> Pieces:
    """Return the parts of one record, so that its value is copied once, with all others."""
    _, timestamp, key, value, headers = record
    start = b"\x00" + varint(timestamp - base_timestamp) + varint(offset_delta) + _encode_bytes(key)
    if value is None:
        start, value = start + _NULL, b""
    else:
        start += varint(len(value))
    end = _encode_headers(headers) if headers else _ZERO
    return varint(len(start) + len(value) + len(end)), start, value, end


def _encode_bytes(content: bytes | None) -> bytes:
    return _NULL if content is None else varint(len(content)) + content


def _encode_headers(headers: Headers) -> bytes:
    parts = [varint(len(headers))]
    for name, content in headers:
        parts += _encode_bytes(name.encode("utf-8", "surrogateescape")), _encode_bytes(content)
    return b"".join(parts)


def stamped_header(
    batch: Buffer,
    header: BatchHeader,
    *,
    base_offset: int,
    leader_epoch: int,
    max_timestamp: int,
    is_log_append_time: bool = False,
) -> bytes:
    """The batch's first HEADER_BYTES as the log stores them, without changing ``batch``.

    The checksum does not cover offsets and leader epoch. It is computed again for a log append
    time, and if ``max_timestamp`` differs from the header's.
    """
    if not is_log_append_time and max_timestamp == header.max_timestamp:
        prefix = _PREFIX.pack(base_offset, header.batch_length, leader_epoch, MAGIC, header.crc)
        return prefix + bytes(batch[CHECKED_POSITION:HEADER_BYTES])
    checked = _CHECKED.pack(
        header.attributes | (_LOG_APPEND_TIME_BIT if is_log_append_time else 0),
        header.last_offset_delta,
        header.base_timestamp,
        max_timestamp,
        *header[9:],
    )
    crc = crc32c(memoryview(batch)[HEADER_BYTES : header.size], crc32c(checked))
    return _PREFIX.pack(base_offset, header.batch_length, leader_epoch, MAGIC, crc) + checked


def recompressed(
    batch: Buffer, compression: Compression, limit: int = DECOMPRESSED_MAX_BYTES
) -> bytes:
    """Return the batch with its records section in another codec.

    Raises DecodeError if the section cannot be decompressed within ``limit`` bytes.
    """
    header = parse_batch_header(batch)
    data = bytes(records_section(batch, header, limit))
    attributes = header.attributes & ~_CODEC_MASK | compression
    body = _CHECKED.pack(attributes, *header[6:]) + compress(compression, data)
    return _seal(header.base_offset, header.partition_leader_epoch, body)


def replaced_records(
    header: BatchHeader,
    section: bytes,
    count: int,
    *,
    max_timestamp: int,
    delete_horizon: int | None = None,
) -> bytes:
    """Return a batch whose records are the ``count`` in ``section``, which is not compressed.

    Everything else is as in ``header``: offsets, sequence, codec. The records' timestamps are
    relative to ``delete_horizon`` if it is given, else to the base timestamp of ``header``.
    """
    attributes, base_timestamp = header.attributes, header.base_timestamp
    if delete_horizon is not None:
        attributes, base_timestamp = attributes | _DELETE_HORIZON_BIT, delete_horizon
    producer = header.producer_id, header.producer_epoch, header.base_sequence
    checked = _CHECKED.pack(
        attributes, header.last_offset_delta, base_timestamp, max_timestamp, *producer, count
    )
    body = checked + compress(Compression(header.codec), section)
    return _seal(header.base_offset, header.partition_leader_epoch, body)


def emptied(header: BatchHeader) -> bytes:
    """Return a batch without records that keeps offsets, producer and sequence of ``header``.

    Kafka's ``DefaultRecordBatch.writeEmptyHeader``.
    """
    attributes = header.attributes & ~(_CODEC_MASK | _DELETE_HORIZON_BIT)
    body = _CHECKED.pack(
        attributes,
        header.last_offset_delta,
        NO_TIMESTAMP,
        header.max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        0,
    )
    return _seal(header.base_offset, header.partition_leader_epoch, body)
