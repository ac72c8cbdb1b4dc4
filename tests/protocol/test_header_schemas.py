"""The schemas of headers read what the broker writes and clients send."""

from __future__ import annotations

import pytest

from minibroker_protocol.header_schemas import RequestHeaderSchema, ResponseHeaderSchema
from minibroker_protocol.schema import construct_for


@pytest.mark.parametrize(
    ("version", "data", "client_id"),
    [
        (0, b"\0\7\0\0\0\0\0\5", ""),
        (1, b"\0\3\0\1\0\0\0\5\0\2me", "me"),
        (2, b"\0\3\0\x0c\0\0\0\5\0\2me\0", "me"),
        (2, b"\0\3\0\x0c\0\0\0\5\xff\xff\0", None),
    ],
)
def test_request_header_is_parsed(version: int, data: bytes, client_id: str | None) -> None:
    parsed = construct_for(RequestHeaderSchema, version).parse(data)
    assert (parsed.correlation_id, parsed.client_id) == (5, client_id)


@pytest.mark.parametrize(("version", "data"), [(0, b"\0\0\0\7"), (1, b"\0\0\0\7\0")])
def test_response_header_is_parsed(version: int, data: bytes) -> None:
    assert construct_for(ResponseHeaderSchema, version).parse(data).correlation_id == 7
