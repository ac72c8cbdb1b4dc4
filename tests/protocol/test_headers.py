"""Headers, read by hand, against construct's reading of their declarations."""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from minibroker_protocol import headers
from minibroker_protocol.dissect import RequestHeaderSchema, ResponseHeaderSchema
from minibroker_protocol.errors import DecodeError, EncodeError, UnsupportedVersion
from minibroker_protocol.headers import RequestHeader
from minibroker_protocol.registry import ApiKey, schema
from minibroker_protocol.schema import construct_for

TEXT = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(key=st.sampled_from(ApiKey), correlation=st.integers(-(2**31), 2**31 - 1), client=TEXT)
@example(key=ApiKey.CONTROLLED_SHUTDOWN, correlation=1, client="c")
def test_request_headers_match_construct(key: ApiKey, correlation: int, client: str | None) -> None:
    api = schema(key)
    for version in range(api.valid_versions.low, api.valid_versions.high + 1):
        number = api.request_header_version(version)
        header = RequestHeader(key, version, correlation, client if number else None)
        data = headers.encode_request_header(header)
        tree = construct_for(RequestHeaderSchema, number)
        parsed = tree.parse(data)
        assert tree.build(parsed) == data
        fields = (parsed.request_api_key, parsed.request_api_version, parsed.correlation_id)
        assert (*fields, parsed.client_id if number else None) == header
        assert headers.decode_request_header(data) == (header, len(data))
        assert headers.decode_request_header(memoryview(b"xx" + data + b"body"), 2) == (
            header,
            2 + len(data),
        )


@given(key=st.sampled_from(ApiKey), correlation=st.integers(-(2**31), 2**31 - 1), client=TEXT)
def test_ordinary_request_header_is_read_quickly_and_others_are_not(
    key: ApiKey, correlation: int, client: str | None
) -> None:
    api = schema(key)
    for version in range(api.valid_versions.low, api.valid_versions.high + 1):
        data = headers.encode_request_header(RequestHeader(key, version, correlation, client))
        expected = headers.decode_request_header(data + b"body")
        is_ordinary = client is not None and api.request_header_version(version) > 0
        found = headers.quick_request_header(data + b"body", api.request_header_version(version))
        assert found == (expected if is_ordinary else None)


@given(st.sampled_from(ApiKey), st.integers(0, 20), st.binary(max_size=40))
def test_quick_header_of_any_bytes_is_none_or_the_header(
    key: ApiKey, version: int, rest: bytes
) -> None:
    data = struct.pack(">hh", key, version) + rest
    found = headers.quick_request_header(data, schema(key).request_header_version(version))
    assert found is None or found == headers.decode_request_header(data)


def test_header_with_tagged_fields_is_not_read_quickly() -> None:
    data = struct.pack(">hhih", 3, 9, 1, 1) + b"c" + b"\x01\x05\x02xy" + b"body"
    assert headers.quick_request_header(data, 2) is None
    assert headers.quick_request_header(data[:10], 2) is None


@pytest.mark.parametrize("key", list(ApiKey), ids=lambda key: key.name)
def test_response_headers_match_construct(key: ApiKey) -> None:
    api = schema(key)
    for version in range(api.valid_versions.low, api.valid_versions.high + 1):
        data = headers.encode_response_header(key, version, 7)
        number = api.response_header_version(version)
        assert construct_for(ResponseHeaderSchema, number).parse(data).correlation_id == 7
        assert headers.decode_response_header(data + b"body", key, version) == (7, len(data))


def test_api_versions_response_has_header_version_0() -> None:
    assert headers.encode_response_header(ApiKey.API_VERSIONS, 4, 1) == b"\0\0\0\1"
    assert headers.encode_response_header(ApiKey.METADATA, 12, 1) == b"\0\0\0\1\0"


def test_tagged_fields_of_request_header_are_ignored() -> None:
    data = struct.pack(">hhih", 3, 9, 1, -1) + b"\x01\x05\x02xy" + b"body"
    assert headers.decode_request_header(data) == (RequestHeader(3, 9, 1, None), len(data) - 4)


def test_future_api_version_is_read_with_newest_header() -> None:
    data = struct.pack(">hhih", ApiKey.API_VERSIONS, 99, 1, -1) + b"\0"
    header, pos = headers.decode_request_header(data)
    assert (header.api_version, pos) == (99, 11)


def test_unknown_api_key_is_unsupported_version() -> None:
    with pytest.raises(UnsupportedVersion, match="no API has the key 999"):
        headers.decode_request_header(struct.pack(">hhih", 999, 0, 1, -1))


@pytest.mark.parametrize(
    ("data", "what", "offset"),
    [
        (b"", "cut short", 0),
        (struct.pack(">hhi", 3, 1, 1), "cut short", 0),
        (struct.pack(">hhih", 3, 1, 1, 5) + b"abc", "client id of 5 bytes overruns", 10),
        (struct.pack(">hhih", 3, 1, 1, -2), "client id length -2", 8),
        (struct.pack(">hhih", 3, 1, 1, 1) + b"\xff", "not UTF-8", 10),
        (struct.pack(">hhih", 3, 9, 1, -1), "tagged fields are cut short", 10),
        (struct.pack(">hhih", 3, 9, 1, -1) + b"\x7f", "do not fit", 10),
        (struct.pack(">hhih", 3, 9, 1, -1) + b"\x01\x00\x09a", "overruns", 10),
        (struct.pack(">hhih", 3, 9, 1, -1) + b"\xff" * 6, "varint is longer", 10),
    ],
)
def test_malformed_request_header_is_rejected_with_offset(
    data: bytes, what: str, offset: int
) -> None:
    with pytest.raises(DecodeError, match=what) as caught:
        headers.decode_request_header(data)
    assert caught.value.offset == offset


def test_truncated_response_header_is_rejected() -> None:
    with pytest.raises(DecodeError, match="response header is cut short"):
        headers.decode_response_header(b"\0\0\0", ApiKey.METADATA, 1)


def test_client_id_longer_than_int16_is_rejected() -> None:
    with pytest.raises(EncodeError, match="32768 bytes, more than 32767"):
        headers.encode_request_header(RequestHeader(3, 1, 1, "x" * 32_768))


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
