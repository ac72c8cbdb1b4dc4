"""One pass over the records of a batch: checks that each can be read, and finds the latest.

Owns the checks that Kafka makes of every record that a producer sends. It must never know topics,
configs or error codes. Invariant: a records section that passes is read completely and without
error by ``records.iter_records``, which returns the same timestamps. Kafka's
``DefaultRecord.readFrom`` and the loops of ``LogValidator``.

Reading a record takes Python about a microsecond, more than storing it. But producers send
sequences of records of one size and layout. So after one record is read, the bytes that decide the
layout of the following records are compared, column by column, which the interpreter does in C.
A large section is not copied, which would take longer than all comparisons.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from minibroker_protocol.errors import DecodeError
from minibroker_protocol.records import Buffer, read_varint

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
