"""Frames of a replay: a recorded request for another broker, and what its response teaches.

Owns decoding and encoding around `IdMapping`. It must never know connections or time. Invariant: a
request that this version of the schemas cannot read is sent as it was recorded.
"""

from __future__ import annotations

from typing import Any, Final

from minibroker.lab.replay.capture import Captured
from minibroker.lab.replay.id_mapping import IdMapping
from minibroker_protocol import registry
from minibroker_protocol.compiler import decode, encode
from minibroker_protocol.entities import values
from minibroker_protocol.errors import DecodeError, EncodeError, UnsupportedVersion
from minibroker_protocol.headers import (
    decode_request_header,
    decode_response_header,
    encode_request_header,
)
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.schema import Message

TEACHING: Final = frozenset(
    {
        ApiKey.PRODUCE,
        ApiKey.METADATA,
        ApiKey.FIND_COORDINATOR,
        ApiKey.JOIN_GROUP,
        ApiKey.CREATE_TOPICS,
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.END_TXN,
    }
)
"""APIs whose responses teach ids, or change what requests of other connections meet."""


def mapped_request(captured: Captured, mapping: IdMapping) -> bytes:
    """Return the frame of a recorded request with the ids of the other broker."""
    request = _request(captured)
    if request is None:
        return captured.frame
    mapping.apply(request)
    if captured.header.api_key == ApiKey.API_VERSIONS and captured.header.api_version >= 5:
        fields: Any = request
        fields.cluster_id, fields.node_id = None, -1
    header = encode_request_header(captured.header)
    try:
        return header + encode(request, captured.header.api_version)
    except EncodeError:
        return captured.frame


def learn_response(captured: Captured, live: bytes, mapping: IdMapping) -> tuple[int, int]:
    """Learn from the response of the other broker; return the recorded and the new error code."""
    request = _request(captured)
    recorded = None if captured.response is None else _response(captured, captured.response)
    other = _response(captured, live)
    if request is None or recorded is None or other is None:
        return 0, 0
    mapping.learn(request, recorded, other)
    version = captured.header.api_version
    return first_error(recorded, version), first_error(other, version)


def first_error(response: Message, version: int) -> int:
    """Return the first error code in a response that is not 0."""
    return next(filter(None, values(response, version, {Meaning.ERROR})), 0)


def _request(captured: Captured) -> Message | None:
    key, version = captured.header.api_key, captured.header.api_version
    try:
        _, at = decode_request_header(captured.frame)
        return decode(registry.schema(key).request, version, captured.frame, at)
    except (DecodeError, UnsupportedVersion):
        return None


def _response(captured: Captured, frame: bytes) -> Message | None:
    key, version = captured.header.api_key, captured.header.api_version
    try:
        _, at = decode_response_header(frame, key, version)
        return decode(registry.schema(key).response, version, frame, at)
    except (DecodeError, UnsupportedVersion):
        return None
