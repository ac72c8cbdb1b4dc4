"""Helpers that generated codecs call for values that are not the common, short ones.

Owns reading and writing of varints, arrays of fixed-width numbers, and undeclared tagged fields. It
knows positions in buffers and nothing of messages. Invariant: bytes that end too early raise
IndexError or `Malformed`, which the caller turns into a `DecodeError` with the field. Kafka's
``org.apache.kafka.common.utils.ByteUtils``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

from minibroker_protocol import registry
from minibroker_protocol.errors import DecodeError, EncodeError
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.types import STRING_LENGTH_MAX, VARINT_BYTES_MAX

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


# --------------------------------------------------------------------- Request and response headers
# Owns the bytes between a frame's length and its body: API, version and correlation id. It must
# never read bodies. Every request passes through here, so decoding is hand-written; `dissect`
# declares the same headers as schemas. Tagged fields in headers are read and dropped. Kafka's
# ``org.apache.kafka.common.requests.{RequestHeader,ResponseHeader}``.


class RequestHeader(NamedTuple):
    """API, version and client of a request. `client_id` is None if it was null or missing."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


API_BYTES: Final = 4
"""Size of the API key and version with which a request starts."""

_FIXED: Final = struct.Struct(">hhih")
_BARE: Final = struct.Struct(">hhi")
_CORRELATION: Final = struct.Struct(">i")


def decode_request_header(buf: Buffer, pos: int = 0) -> tuple[RequestHeader, int]:
    """Return the header and the position of the body.

    Raises `DecodeError` for invalid bytes, `UnsupportedVersion` for an undeclared API: without its
    schema the end of its header is unknown. An undeclared version is read with the newest known
    header, so that ApiVersions can be answered.
    """
    try:
        key, version, correlation_id, length = _FIXED.unpack_from(buf, pos)
    except struct.error:
        return _decode_bare(buf, pos)
    if version == 0 and key == ApiKey.CONTROLLED_SHUTDOWN:
        return _decode_bare(buf, pos)
    pos += 10
    client_id = None
    if length >= 0:
        end = pos + length
        if end > len(buf):
            raise DecodeError(f"client id of {length} bytes overruns the frame", pos)
        try:
            client_id = str(buf[pos:end], "utf-8")
        except UnicodeDecodeError:
            raise DecodeError("client id is not UTF-8", pos) from None
        pos = end
    elif length < -1:
        raise DecodeError(f"client id length {length} is negative", pos - 2)
    if registry.schema(key).flexible(version):
        pos = skip_tagged_fields(buf, pos)
    return RequestHeader(key, version, correlation_id, client_id), pos


def quick_request_header(buf: bytes, header_version: int) -> tuple[RequestHeader, int] | None:
    """Return the header and the position of the body, or None if the header is not an ordinary one.

    An ordinary header has a client id and no tagged fields; `decode_request_header` reads them all.
    `header_version` is that of the API and version (`ApiSchema.request_header_version`).
    """
    try:
        key, version, correlation_id, length = _FIXED.unpack_from(buf)
        pos = _FIXED.size + length
        if length < 0 or pos > len(buf) or header_version == 0:
            return None
        client_id = buf[_FIXED.size : pos].decode("utf-8")
        if header_version > 1:
            if buf[pos]:
                return None
            pos += 1
    except (struct.error, UnicodeDecodeError, IndexError):
        return None
    return RequestHeader(key, version, correlation_id, client_id), pos


def _decode_bare(buf: Buffer, pos: int) -> tuple[RequestHeader, int]:
    """One without a client id, which only the oldest ControlledShutdown has."""
    if len(buf) - pos >= _BARE.size:
        key, version, correlation_id = _BARE.unpack_from(buf, pos)
        if version == 0 and key == ApiKey.CONTROLLED_SHUTDOWN:
            return RequestHeader(key, version, correlation_id, None), pos + _BARE.size
    raise DecodeError("request header is cut short", pos)


def encode_request_header(header: RequestHeader) -> bytes:
    """The header in the version that its API and version call for."""
    if registry.schema(header.api_key).request_header_version(header.api_version) == 0:
        return _BARE.pack(header.api_key, header.api_version, header.correlation_id)
    data = b"" if header.client_id is None else header.client_id.encode("utf-8")
    if len(data) > STRING_LENGTH_MAX:
        raise EncodeError(f"client id has {len(data)} bytes, more than {STRING_LENGTH_MAX}")
    length = -1 if header.client_id is None else len(data)
    fixed = _FIXED.pack(header.api_key, header.api_version, header.correlation_id, length)
    flexible = registry.schema(header.api_key).flexible(header.api_version)
    return fixed + data + (b"\0" if flexible else b"")


def decode_response_header(
    buf: Buffer, api_key: int, api_version: int, pos: int = 0
) -> tuple[int, int]:
    """Return the correlation id and the position of the body."""
    try:
        (correlation_id,) = _CORRELATION.unpack_from(buf, pos)
    except struct.error:
        raise DecodeError("response header is cut short", pos) from None
    pos += 4
    if registry.schema(api_key).response_header_version(api_version):
        pos = skip_tagged_fields(buf, pos)
    return correlation_id, pos


def encode_response_header(api_key: int, api_version: int, correlation_id: int) -> bytes:
    """The header in the version that a response of this API and version has before it."""
    tags = registry.schema(api_key).response_header_version(api_version)
    return _CORRELATION.pack(correlation_id) + (b"\0" if tags else b"")
