"""Record batches of message format 2: the bytes inside Produce, Fetch and log files.

Owns the layout of a batch's header and records, the checksum over them, and the checks that Kafka
makes of every record that a producer sends. It must never know offsets' meaning, topics, files or
brokers: it reads and writes bytes. Its invariant: nothing past the buffer is read, no count or
length is believed before it is checked, and damage is a DecodeError. A records section that
``scan`` passes is read completely and without error by ``iter_records``, which returns the same
timestamps; a batch that ``read_plain_batch`` reads is one that both accept, with the same header
and timestamp, and any other is left to them. Echoes Kafka's ``DefaultRecordBatch``,
``DefaultRecord``, the loops of ``LogValidator`` and KIP-98; formats 0 and 1, which clients of Kafka
4 no longer send, are recognised by their magic byte and refused.

Reading a record takes Python about a microsecond, more than storing it. But producers send
sequences of records of one size and layout. So after one record is read, the bytes that decide the
layout of the following records are compared, column by column, which the interpreter does in C. A
large section is not copied, which would take longer than all comparisons. A producer that does not
batch sends batches of one plain record, which are checked in one step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
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

RUN_MAX: Final = 512
"""Records that are compared at once: their columns fit into the processor's cache."""

_FIRST_RUN_MAX: Final = 64
"""Records that are compared at once before a run of that length was found."""

_RUN_MIN: Final = 4
"""Fewer records are read one by one in less time than their columns are compared."""

_COPIED_MAX_BYTES: Final = 64 * 1024
"""Smaller sections are copied, because bytes are indexed faster than a memory view."""

_SHORT_OFFSETS: Final = 64
"""Offset deltas whose varint has one byte."""

_LONG_OFFSETS: Final = 64 * 128
"""Consecutive offset deltas whose varints differ in the lowest two bytes alone."""

_ONLY_BYTES: Final = bytes(range(0, 128, 2))
"""Varints of the offset deltas 0 to 63, which are zigzag-encoded."""

_FIRST_BYTES: Final = bytes(0x80 | byte for byte in _ONLY_BYTES) * (RUN_MAX // _SHORT_OFFSETS + 1)
"""First bytes of longer varints; they repeat every 64 offset deltas."""

_LAST_SECOND_BYTES: Final = b"".join(bytes((byte,)) * _SHORT_OFFSETS for byte in range(128))
"""Second bytes of varints of two bytes."""

_SECOND_BYTES: Final = b"".join(bytes((0x80 | byte,)) * _SHORT_OFFSETS for byte in range(128))
"""Second bytes of longer varints; they repeat every 8,192 offset deltas."""

_SAMPLE_READS: Final = 64
"""Records that are read one by one before it is estimated how many will be."""

_LOWEST: Final = -(2**80)
"""Below every varint of ten bytes."""


class RecordScan(NamedTuple):
    """Result of a pass. Timestamps are relative to the batch's base timestamp, in ms.

    ``reads`` is the number of records that were read one by one. ``latest`` is the position of the
    first record with the largest timestamp. ``without_key`` and ``invalid_timestamps`` are the
    first positions of records without a key, and with a timestamp outside the given range.
    """

    reads: int
    max_timestamp_delta: int
    latest: int
    without_key: list[int]
    invalid_timestamps: list[int]


class TooManyReadsError(Exception):
    """More records must be read one by one than the caller allows."""

    def __init__(self, reads: int) -> None:
        super().__init__(f"after {reads} reads")
        self.reads = reads
        """How many were read."""


def scan_records(
    section: Buffer,
    count: int,
    allowed_deltas: range | None = None,
    no_timestamp_delta: int | None = None,
    *,
    positions_max: int = 0,
    reads_max: int | None = None,
) -> RecordScan:
    """Check the ``count`` records in ``section``, the uncompressed records of one batch.

    A record's offset delta must be its position. A timestamp must be in ``allowed_deltas``, or
    say that there is none. At most ``positions_max`` positions of each kind are returned.
    Raises DecodeError if a record is damaged, or if there are more or fewer
    than ``count``, and TooManyReadsError as soon as it is likely that more than ``reads_max``
    records must be read one by one.
    """
    data = bytes(section) if len(section) <= _COPIED_MAX_BYTES else memoryview(section)
    scan = _Scan(data, count, allowed_deltas, no_timestamp_delta, positions_max)
    try:
        end = scan.read_all(count if reads_max is None else reads_max)
    except IndexError:
        raise DecodeError(f"record {scan.index} is cut off", len(section)) from None
    if end != len(section):
        raise DecodeError(f"{len(section) - end} bytes follow the last record", end)
    return RecordScan(
        scan.reads, scan.max_delta, scan.latest, scan.without_key, scan.invalid_timestamps
    )


class _Scan:
    """State of one pass: its position and results."""

    __slots__ = (
        "_allowed",
        "_count",
        "_data",
        "_no_timestamp",
        "_positions_max",
        "_run_max",
        "index",
        "invalid_timestamps",
        "latest",
        "max_delta",
        "reads",
        "without_key",
    )

    def __init__(
        self,
        data: bytes | memoryview,
        count: int,
        allowed: range | None,
        no_timestamp: int | None,
        positions_max: int,
    ) -> None:
        self._data = data
        self._count = count
        self._allowed = allowed
        self._no_timestamp = no_timestamp
        self._positions_max = positions_max
        self._run_max = _FIRST_RUN_MAX
        self.index = 0
        self.reads = 0
        self.max_delta = _LOWEST
        self.latest = 0
        self.without_key: list[int] = []
        self.invalid_timestamps: list[int] = []

    def read_all(self, reads_max: int) -> int:
        """Read every record and every run; returns where the last one ends."""
        end = self._read(0, min(_SAMPLE_READS, reads_max))
        if self.index < self._count:
            if self.reads * self._count > reads_max * self.index:
                raise TooManyReadsError(self.reads)
            end = self._read(end, reads_max)
            if self.index < self._count:
                raise TooManyReadsError(self.reads)
        return end

    def _read(self, start: int, reads_max: int) -> int:
        """Continue until all records are read, or so many one by one."""
        data, size = self._data, len(self._data)
        while self.index < self._count and self.reads < reads_max:
            self.reads += 1
            length = data[start]
            if length < 0x80:
                body = start + 1
                length = (length >> 1) ^ -(length & 1)
            else:
                length, body = read_varint(data, start)
            end = body + length
            if length < 0 or end > size:
                raise DecodeError(f"record {self.index} claims {length} bytes", start)
            fields = self._read_fields(body, end)
            following = 0
            # Worth a check if the next record and the fourth one start with the same length.
            fifth = end + 3 * (end - start)
            if fifth < size and data[end] == data[start] == data[fifth] and fields is not None:
                following = self._run_length(start, body, end, fields)
            self.index += 1 + following
            start = end + following * (end - start)
        return start

    def _read_fields(self, body: int, end: int) -> tuple[int, int, int, int] | None:
        """Check one record's fields.

        Returns where its offset delta, key, value and headers start, or None if it has headers.
        """
        data, index = self._data, self.index
        at = body + 1  # behind the attributes, which mean nothing yet
        delta = data[at]
        if delta < 0x80:
            offset_at = at + 1
            delta = (delta >> 1) ^ -(delta & 1)
        else:
            delta, offset_at = read_varint(data, at)
        low = data[offset_at]
        if low < 0x80:
            key_at = offset_at + 1
            offset = (low >> 1) ^ -(low & 1)
        else:
            offset, key_at = read_varint(data, offset_at)
        if offset != index:
            raise DecodeError(f"record {index} has the offset delta {offset}", offset_at)
        length = data[key_at]
        if length < 0x80 and not length & 1:
            value_at = key_at + 1 + (length >> 1)
        else:
            value_at = self._skip_field(key_at, end)
            if length == 1 and len(self.without_key) < self._positions_max:
                self.without_key.append(index)
        length = data[value_at]
        if length < 0x80 and not length & 1:
            headers_at = value_at + 1 + (length >> 1)
        else:
            headers_at = self._skip_field(value_at, end)
        if delta > self.max_delta:
            self.max_delta, self.latest = delta, index
        if self._allowed is not None and delta not in self._allowed and delta != self._no_timestamp:
            self._note_untimely(index, 1)
        if headers_at == end - 1 and not data[headers_at]:
            return offset_at, key_at, value_at, headers_at
        fields_end = self._skip_headers(headers_at, end)
        if fields_end != end:
            raise DecodeError(f"record {index} is {end - fields_end} bytes off its length", end)
        return None

    def _run_length(self, start: int, body: int, end: int, fields: tuple[int, ...]) -> int:
        """Count the records after the one at ``start`` that have its size, layout and timestamp."""
        data, index, size = self._data, self.index, end - start
        offset_at, key_at, value_at, headers_at = fields
        varying = _offset_columns(index + 1, key_at - offset_at)
        possible = most = min(
            self._run_max,
            len(varying[0]),
            self._count - index - 1,
            (len(data) - end) // size,
        )
        constant = (
            *range(start, body),
            *range(body + 1, offset_at),
            *range(offset_at + len(varying), key_at),
            *_varint_range(data, key_at),
            *_varint_range(data, value_at),
            headers_at,
        )
        for at in constant:
            if most < _RUN_MIN:
                break
            column = data[at + size : at + size * most + 1 : size]
            byte = bytes((data[at],))
            if column != byte * most:
                most -= len(bytes(column).lstrip(byte))
        for at, expected in enumerate(varying, offset_at):
            most = _common(data[at + size : at + size * most + 1 : size], expected[:most])
        # A long run that breaks off early was compared for nothing.
        self._run_max = min(2 * self._run_max, RUN_MAX) if most == possible else _FIRST_RUN_MAX
        if most < _RUN_MIN:
            return 0
        self._note_run(index, most)
        return most

    def _note_run(self, index: int, count: int) -> None:
        if self.without_key and self.without_key[-1] == index:
            room = self._positions_max - len(self.without_key)
            self.without_key += range(index + 1, index + 1 + min(count, room))
        if self.invalid_timestamps and self.invalid_timestamps[-1] == index:
            self._note_untimely(index + 1, count)

    def _note_untimely(self, index: int, count: int) -> None:
        room = self._positions_max - len(self.invalid_timestamps)
        self.invalid_timestamps += range(index, index + min(count, room))

    def _skip_field(self, at: int, end: int) -> int:
        """Return the end of a length-prefixed field. A length of -1 is null and has no bytes."""
        length, after = read_varint(self._data, at)
        if length < -1 or after + length > end:
            raise DecodeError(f"a field of record {self.index} claims {length} bytes", at)
        return after if length < 0 else after + length

    def _skip_headers(self, at: int, end: int) -> int:
        if at > end:
            raise DecodeError(f"the fields of record {self.index} exceed its length", at)
        count, at = read_varint(self._data, at)
        if not 0 <= count <= end - at:
            raise DecodeError(f"record {self.index} claims {count} headers", at)
        for _ in range(count):
            if self._data[at] & 1:
                raise DecodeError(f"a header of record {self.index} has no key", at)
            at = self._skip_field(self._skip_field(at, end), end)
        return at


def _offset_columns(delta: int, length: int) -> tuple[bytes, ...]:
    """The varying bytes of the varints of ``delta`` and those that follow, ``length`` bytes each.

    One text for each byte of the varint that varies, all of one length: at most ``RUN_MAX``.
    """
    if length == 1:
        return (_ONLY_BYTES[delta:],)
    first, second = delta % _SHORT_OFFSETS, delta % _LONG_OFFSETS
    seconds = _LAST_SECOND_BYTES if length == 2 else _SECOND_BYTES
    expected = seconds[second : second + RUN_MAX]
    return _FIRST_BYTES[first : first + len(expected)], expected


def _varint_range(data: bytes | memoryview, at: int) -> range:
    """The positions of a varint's bytes."""
    end = at
    while data[end] >= 0x80:
        end += 1
    return range(at, end + 1)


def _common(found: bytes | memoryview, expected: bytes) -> int:
    """Return the number of equal leading bytes of two texts of one length."""
    if found == expected:
        return len(expected)
    pairs = enumerate(zip(bytes(found), expected, strict=True))
    return next((i for i, (a, b) in pairs if a != b), len(expected))


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


def record_size(record: Record, offset_delta: int, base_timestamp: int) -> int:
    """The bytes of a record in a batch that is not compressed."""
    return sum(map(len, _encode_record(record, offset_delta, base_timestamp)))


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


def with_values(
    batch: Buffer,
    change: Callable[[bytes | None], bytes | None],
    limit: int = DECOMPRESSED_MAX_BYTES,
) -> bytes:
    """Return the batch with the values that ``change`` returns for its own; control batches as is.

    Raises DecodeError if the records are damaged or larger than ``limit``.
    """
    header = parse_batch_header(batch)
    if header.is_control:
        return bytes(batch)
    section: list[bytes] = []
    for record in iter_records(batch, limit):
        changed = record._replace(value=change(record.value))
        offset_delta = record.offset - header.base_offset
        section += _encode_record(changed, offset_delta, header.base_timestamp)
    return replaced_records(
        header,
        b"".join(section),
        header.record_count,
        max_timestamp=header.max_timestamp,
    )


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


_ZIGZAG_NULL: Final = 1
"""The length of a null key or value, as a zigzag varint."""


class PlainBatch(NamedTuple):
    """A batch of one uncompressed record without headers."""

    header: BatchHeader
    timestamp: int
    has_key: bool


def read_plain_batch(batch: memoryview) -> PlainBatch | None:
    """Return the batch if it is valid and all of the bytes, else None.

    It has create time, no transaction and offset 0, as producers send it.
    """
    if len(batch) <= HEADER_BYTES:
        return None
    header = BatchHeader._make(HEADER.unpack_from(batch))
    if (
        header[3] != MAGIC
        or header[0] != 0  # base offset
        or header[5] != 0  # attributes
        or header[12] != 1  # records
        or header[6] != 0  # last offset delta
        or header[1] + LENGTH_OVERHEAD_BYTES != len(batch)
        or crc32c(batch[CHECKED_POSITION:]) != header[4]
    ):
        return None
    try:
        found = _read_plain_record(bytes(batch[HEADER_BYTES:]))
    except IndexError:
        return None
    return None if found is None else PlainBatch(header, header[7] + found[0], found[1])


def _read_plain_record(data: bytes) -> tuple[int, bool] | None:
    """The timestamp delta of the record, and whether it has a key."""
    length, at = data[0], 1
    if length > 127:
        if data[1] > 127:
            return None
        length, at = length & 127 | data[1] << 7, 2
    delta = data[at + 1]
    # Attributes mean nothing; the offset delta is 0.
    if length & 1 or at + (length >> 1) != len(data) or delta > 127 or data[at + 2]:
        return None
    key = data[at + 3]
    at += 4
    if key != _ZIGZAG_NULL:
        if key > 127 or key & 1:
            return None
        at += key >> 1
    value = data[at]
    at += 1
    if value != _ZIGZAG_NULL:
        if value > 127:
            if data[at] > 127:
                return None
            value, at = value & 127 | data[at] << 7, at + 1
        if value & 1:
            return None
        at += value >> 1
    if data[at] or at + 1 != len(data):
        return None  # It has headers, or something follows it.
    return (delta >> 1) ^ -(delta & 1), key != _ZIGZAG_NULL
