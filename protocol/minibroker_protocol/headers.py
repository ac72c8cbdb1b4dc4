"""Request and response headers.

Owns the bytes between a frame's length and its body: API, version and correlation id. It must never
read bodies. Every request passes through here, so decoding is hand-written; `dissect`
declares the same headers as schemas. Tagged fields in headers are read and dropped.
Kafka's ``org.apache.kafka.common.requests.{RequestHeader,ResponseHeader}``.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from minibroker_protocol import registry
from minibroker_protocol.errors import DecodeError, EncodeError
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.types import STRING_LENGTH_MAX
from minibroker_protocol.wire import Buffer, skip_tagged_fields


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
