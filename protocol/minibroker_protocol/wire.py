"""Helpers that generated codecs call for values that are not the common, short ones.

Owns reading and writing of varints, arrays of fixed-width numbers, and undeclared tagged fields. It
knows positions in buffers and nothing of messages. Invariant: bytes that end too early raise
IndexError or `Malformed`, which the caller turns into a `DecodeError` with the field. Kafka's
``org.apache.kafka.common.utils.ByteUtils``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from minibroker_protocol.errors import DecodeError
from minibroker_protocol.types import VARINT_BYTES_MAX

Buffer: TypeAlias = "bytes | bytearray | memoryview"

ELEMENTS_MAX: Final = 1_000_000
"""Elements of all arrays of one message, and its unknown tagged fields.

An element of two bytes becomes an object of a hundred, so without this a frame of the largest size
allowed would fill gigabytes. A response with all partitions of a large cluster has a tenth of it.
"""

REQUEST_ELEMENTS_MAX: Final = 100_000
"""The same of a request, whose elements a broker not only decodes.

OffsetFetch of 2,000,000 partitions, in 8 MB, stopped all other clients of a process for 13 s.
"""


class Malformed(Exception):
    """An invalid value; the caller knows which value it is."""


def read_uvarint(buf: Buffer, pos: int) -> tuple[int, int]:
    """An unsigned varint of at most 32 bits, and the position after it."""
    value = 0
    shift = 0
    for _ in range(VARINT_BYTES_MAX):
        byte = buf[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFFFFFF:
                raise Malformed("varint does not fit 32 bits")
            return value, pos
        shift += 7
    raise Malformed(f"varint is longer than {VARINT_BYTES_MAX} bytes")


def read_varint(buf: Buffer, pos: int, bits: int = 32) -> tuple[int, int]:
    """A zigzag varint of `bits` bits, and the position after it."""
    value = 0
    for shift in range(0, bits + 6, 7):
        byte = buf[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> bits:
                raise Malformed(f"varint does not fit {bits} bits")
            return (value >> 1) ^ -(value & 1), pos
    raise Malformed(f"varint of {bits} bits has no end")


def uvarint(value: int) -> bytes:
    """`value` as an unsigned varint; ValueError if it isn't one of 32 bits."""
    if value < 0 or value > 0xFFFFFFFF:
        raise ValueError(f"{value} does not fit 32 unsigned bits")
    out = bytearray()
    while value > 0x7F:
        out.append(0x80 | value & 0x7F)
        value >>= 7
    out.append(value)
    return bytes(out)


def varint(value: int, bits: int = 32) -> bytes:
    """`value` as a zigzag varint; ValueError if it has more than `bits` bits."""
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise ValueError(f"{value} does not fit {bits} signed bits")
    zigzag = (value << 1) ^ (value >> bits - 1)
    out = bytearray()
    while zigzag > 0x7F:
        out.append(0x80 | zigzag & 0x7F)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


def read_unknown_tagged(buf: Buffer, pos: int) -> tuple[dict[int, bytes] | None, int]:
    """Return an undeclared section of tagged fields: bytes by tag, and the position after it."""
    count, pos = read_uvarint(buf, pos)
    if count * 2 > len(buf) - pos:
        raise Malformed(f"{count} tagged fields do not fit the {len(buf) - pos} bytes left")
    if count > ELEMENTS_MAX:
        raise Malformed(f"{count} tagged fields are more than {ELEMENTS_MAX}")
    fields: dict[int, bytes] = {}
    for _ in range(count):
        tag, pos = read_uvarint(buf, pos)
        size, pos = read_uvarint(buf, pos)
        if size > len(buf) - pos:
            raise Malformed(f"tagged field {tag} of {size} bytes overruns")
        fields[tag] = bytes(buf[pos : pos + size])
        pos += size
    return fields or None, pos


def skip_tagged_fields(buf: Buffer, pos: int) -> int:
    """The position after a section of tagged fields, all of which are dropped."""
    try:
        return read_unknown_tagged(buf, pos)[1]
    except IndexError:
        raise DecodeError("tagged fields are cut short", pos) from None
    except Malformed as error:
        raise DecodeError(str(error), pos) from None


def tagged_section(unknown: dict[int, bytes] | None, known: dict[int, bytes]) -> bytes:
    """A section of tagged fields: both kinds together, in the order of their tags."""
    entries = {**unknown, **known} if unknown else known
    parts = [uvarint(len(entries))]
    for tag, data in sorted(entries.items()):
        parts += (uvarint(tag), uvarint(len(data)), data)
    return b"".join(parts)


class Numbers(dict[int, Callable[..., Any]]):
    """Struct methods for arrays of `code`, made when an array of that count is first met.

    Short arrays are the common ones and are remembered; the longest remembered is `KEPT_MAX`, so
    that a client that sends every length there is doesn't fill the memory.
    """

    KEPT_MAX: Final = 64

    def __init__(self, code: str, method: str) -> None:
        super().__init__()
        self._code = code
        self._method = method

    def __missing__(self, count: int) -> Callable[..., Any]:
        bound: Callable[..., Any] = getattr(struct.Struct(f">{count}{self._code}"), self._method)
        if count <= self.KEPT_MAX:
            self[count] = bound
        return bound
