"""The helpers of generated codecs, compared with construct's nodes of the same types."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Any

import construct as cs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from minibroker_protocol import wire
from minibroker_protocol.dissect import RequestHeaderSchema, ResponseHeaderSchema
from minibroker_protocol.errors import DecodeError, EncodeError, UnsupportedVersion
from minibroker_protocol.registry import ApiKey, schema
from minibroker_protocol.schema import construct_for
from minibroker_protocol.types import UNSIGNED_VARINT, VARINT, VARLONG
from minibroker_protocol.wire import RequestHeader

UNSIGNED, SIGNED, LONG = (
    kind.node(flexible=True, nullable=False) for kind in (UNSIGNED_VARINT, VARINT, VARLONG)
)


@given(st.integers(0, 2**32 - 1))
def test_unsigned_varints_match_construct(value: int) -> None:
    data = wire.uvarint(value)
    assert data == UNSIGNED.build(value)
    assert wire.read_uvarint(b"x" + data + b"y", 1) == (value, 1 + len(data))


@given(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1))
def test_signed_varints_match_construct(small: int, large: int) -> None:
    assert wire.varint(small) == SIGNED.build(small)
    assert wire.varint(large, 64) == LONG.build(large)
    assert wire.read_varint(wire.varint(small), 0)[0] == small
    assert wire.read_varint(wire.varint(large, 64), 0, 64)[0] == large


@given(st.binary(max_size=12))
def test_varint_readers_match_construct_on_random_bytes(data: bytes) -> None:
    readers: list[tuple[Any, Callable[[bytes, int], tuple[int, int]]]] = [
        (UNSIGNED, wire.read_uvarint),
        (SIGNED, wire.read_varint),
        (LONG, partial(wire.read_varint, bits=64)),
    ]
    for node, read in readers:
        try:
            expected = node.parse(data)
        except cs.ConstructError:
            with pytest.raises((IndexError, wire.Malformed)):
                read(data, 0)
        else:
            assert read(data, 0)[0] == expected


@pytest.mark.parametrize("value", [-1, 2**32])
def test_number_outside_of_uint32_is_rejected(value: int) -> None:
    with pytest.raises(ValueError, match="unsigned bits"):
        wire.uvarint(value)


def test_number_outside_of_int32_is_rejected() -> None:
    with pytest.raises(ValueError, match="32 signed bits"):
        wire.varint(2**31)


def test_tagged_section_is_sorted_by_tag() -> None:
    section = wire.tagged_section({9: b"z", 3: b"yy"}, {5: b""})
    assert section.hex() == "03" + "03027979" + "0500" + "09017a"
    assert wire.read_unknown_tagged(section, 0) == ({3: b"yy", 5: b"", 9: b"z"}, len(section))


def test_empty_tagged_section_is_read_as_none() -> None:
    assert wire.read_unknown_tagged(b"\0", 0) == (None, 1)
    assert wire.skip_tagged_fields(b"x\0", 1) == 2


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "cut short"),
        (b"\x01", "1 tagged fields do not fit the 0 bytes left"),
        (b"\x01\x07\x05ab", "tagged field 7 of 5 bytes overruns"),
    ],
)
def test_malformed_tagged_section_is_rejected(data: bytes, what: str) -> None:
    with pytest.raises(DecodeError, match=what):
        wire.skip_tagged_fields(data, 0)


def test_tagged_section_with_too_many_fields_is_rejected() -> None:
    count = wire.uvarint(wire.ELEMENTS_MAX + 1)
    with pytest.raises(wire.Malformed, match="more than 1000000"):
        wire.read_unknown_tagged(count + bytes(2 * wire.ELEMENTS_MAX + 2), 0)


def test_structs_of_long_arrays_are_not_cached() -> None:
    numbers = wire.Numbers("i", "pack")
    for count in (1, numbers.KEPT_MAX, numbers.KEPT_MAX + 1, 1000):
        assert numbers[count](*range(count)) == b"".join(i.to_bytes(4, "big") for i in range(count))
    assert sorted(numbers) == [1, numbers.KEPT_MAX]


# ------------------------- Headers, read by hand, against construct's reading of their declarations


TEXT = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(key=st.sampled_from(ApiKey), correlation=st.integers(-(2**31), 2**31 - 1), client=TEXT)
@example(key=ApiKey.CONTROLLED_SHUTDOWN, correlation=1, client="c")
def test_request_headers_match_construct(key: ApiKey, correlation: int, client: str | None) -> None:
    api = schema(key)
    for version in range(api.valid_versions.low, api.valid_versions.high + 1):
        number = api.request_header_version(version)
        header = RequestHeader(key, version, correlation, client if number else None)
        data = wire.encode_request_header(header)
        tree = construct_for(RequestHeaderSchema, number)
        parsed = tree.parse(data)
        assert tree.build(parsed) == data
        fields = (parsed.request_api_key, parsed.request_api_version, parsed.correlation_id)
        assert (*fields, parsed.client_id if number else None) == header
        assert wire.decode_request_header(data) == (header, len(data))
        assert wire.decode_request_header(memoryview(b"xx" + data + b"body"), 2) == (
            header,
            2 + len(data),
        )


@given(key=st.sampled_from(ApiKey), correlation=st.integers(-(2**31), 2**31 - 1), client=TEXT)
def test_ordinary_request_header_is_read_quickly_and_others_are_not(
    key: ApiKey, correlation: int, client: str | None
) -> None:
    api = schema(key)
    for version in range(api.valid_versions.low, api.valid_versions.high + 1):
        data = wire.encode_request_header(RequestHeader(key, version, correlation, client))
        expected = wire.decode_request_header(data + b"body")
        is_ordinary = client is not None and api.request_header_version(version) > 0
        found = wire.quick_request_header(data + b"body", api.request_header_version(version))
        assert found == (expected if is_ordinary else None)


@given(st.sampled_from(ApiKey), st.integers(0, 20), st.binary(max_size=40))
def test_quick_header_of_any_bytes_is_none_or_the_header(
    key: ApiKey, version: int, rest: bytes
) -> None:
    data = struct.pack(">hh", key, version) + rest
    found = wire.quick_request_header(data, schema(key).request_header_version(version))
    assert found is None or found == wire.decode_request_header(data)


def test_header_with_tagged_fields_is_not_read_quickly() -> None:
    data = struct.pack(">hhih", 3, 9, 1, 1) + b"c" + b"\x01\x05\x02xy" + b"body"
    assert wire.quick_request_header(data, 2) is None
    assert wire.quick_request_header(data[:10], 2) is None


@pytest.mark.parametrize("key", list(ApiKey), ids=lambda key: key.name)
def test_response_headers_match_construct(key: ApiKey) -> None:
    api = schema(key)
    for version in range(api.valid_versions.low, api.valid_versions.high + 1):
        data = wire.encode_response_header(key, version, 7)
        number = api.response_header_version(version)
        assert construct_for(ResponseHeaderSchema, number).parse(data).correlation_id == 7
        assert wire.decode_response_header(data + b"body", key, version) == (7, len(data))


def test_api_versions_response_has_header_version_0() -> None:
    assert wire.encode_response_header(ApiKey.API_VERSIONS, 4, 1) == b"\0\0\0\1"
    assert wire.encode_response_header(ApiKey.METADATA, 12, 1) == b"\0\0\0\1\0"


def test_tagged_fields_of_request_header_are_ignored() -> None:
    data = struct.pack(">hhih", 3, 9, 1, -1) + b"\x01\x05\x02xy" + b"body"
    assert wire.decode_request_header(data) == (RequestHeader(3, 9, 1, None), len(data) - 4)


def test_future_api_version_is_read_with_newest_header() -> None:
    data = struct.pack(">hhih", ApiKey.API_VERSIONS, 99, 1, -1) + b"\0"
    header, pos = wire.decode_request_header(data)
    assert (header.api_version, pos) == (99, 11)


def test_unknown_api_key_is_unsupported_version() -> None:
    with pytest.raises(UnsupportedVersion, match="no API has the key 999"):
        wire.decode_request_header(struct.pack(">hhih", 999, 0, 1, -1))


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
        wire.decode_request_header(data)
    assert caught.value.offset == offset


def test_truncated_response_header_is_rejected() -> None:
    with pytest.raises(DecodeError, match="response header is cut short"):
        wire.decode_response_header(b"\0\0\0", ApiKey.METADATA, 1)


def test_client_id_longer_than_int16_is_rejected() -> None:
    with pytest.raises(EncodeError, match="32768 bytes, more than 32767"):
        wire.encode_request_header(RequestHeader(3, 1, 1, "x" * 32_768))


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
