"""Primitive types as construct nodes: known bytes, limits, and false lengths."""

from __future__ import annotations

import construct as cs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker_protocol.types import (
    BYTES,
    INT32,
    NULLABLE_STRING,
    PLAIN_NULLABLE_STRING,
    STRING,
    UNSIGNED_VARINT,
    VARINT,
    VARLONG,
    Type,
    array_node,
    uuid_from_text,
    uuid_text,
)


def node(kind: Type, *, flexible: bool = False, nullable: bool = False) -> cs.Construct:
    return kind.node(flexible=flexible, nullable=nullable)


@pytest.mark.parametrize(
    ("kind", "value", "data"),
    [
        (UNSIGNED_VARINT, 0, "00"),
        (UNSIGNED_VARINT, 127, "7f"),
        (UNSIGNED_VARINT, 128, "8001"),
        (UNSIGNED_VARINT, 300, "ac02"),
        (UNSIGNED_VARINT, 2**32 - 1, "ffffffff0f"),
        (VARINT, 0, "00"),
        (VARINT, -1, "01"),
        (VARINT, 1, "02"),
        (VARINT, 63, "7e"),
        (VARINT, -64, "7f"),
        (VARINT, 64, "8001"),
        (VARINT, 2**31 - 1, "feffffff0f"),
        (VARINT, -(2**31), "ffffffff0f"),
        (VARLONG, 2**63 - 1, "feffffffffffffffff01"),
        (VARLONG, -(2**63), "ffffffffffffffffff01"),
    ],
)
def test_varints_have_kafka_encoding(kind: Type, value: int, data: str) -> None:
    assert node(kind).build(value).hex() == data
    assert node(kind).parse(bytes.fromhex(data)) == value


@given(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1))
def test_varints_round_trip(small: int, large: int) -> None:
    assert node(VARINT).parse(node(VARINT).build(small)) == small
    assert node(VARLONG).parse(node(VARLONG).build(large)) == large


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (UNSIGNED_VARINT, b"\x80\x80\x80\x80\x80\x01"),
        (UNSIGNED_VARINT, b"\xff\xff\xff\xff\x1f"),
        (VARLONG, b"\xff" * 9 + b"\x7f"),
    ],
)
def test_encoded_varint_beyond_its_width_is_rejected(kind: Type, data: bytes) -> None:
    with pytest.raises(cs.IntegerError):
        node(kind).parse(data)


@pytest.mark.parametrize(
    ("kind", "value"),
    [(UNSIGNED_VARINT, -1), (UNSIGNED_VARINT, 2**32), (VARINT, 2**31), (VARLONG, -(2**63) - 1)],
)
def test_number_outside_of_varint_range_is_rejected(kind: Type, value: int) -> None:
    with pytest.raises(cs.IntegerError):
        node(kind).build(value)


@pytest.mark.parametrize(
    ("flexible", "value", "data"),
    [
        (False, "ab", "00026162"),
        (True, "ab", "036162"),
        (False, None, "ffff"),
        (True, None, "00"),
        (True, "", "01"),
        (True, "é" * 100, "c901" + "c3a9" * 100),
    ],
)
def test_string_encoding_is_compact_in_flexible_versions(
    flexible: bool, value: str | None, data: str
) -> None:
    string = node(NULLABLE_STRING, flexible=flexible)
    assert string.build(value).hex() == data
    assert string.parse(bytes.fromhex(data)) == value


def test_plain_string_is_not_compact_in_flexible_versions() -> None:
    assert node(PLAIN_NULLABLE_STRING, flexible=True).build("a") == b"\0\1a"


@pytest.mark.parametrize("flexible", [False, True])
def test_null_is_rejected_unless_nullable(flexible: bool) -> None:
    for kind in (STRING, BYTES):
        with pytest.raises(cs.RangeError, match="None"):
            node(kind, flexible=flexible).build(None)
        assert node(kind, flexible=flexible, nullable=True).build(None) in (
            b"\0",
            b"\xff\xff",
            b"\xff\xff\xff\xff",
        )
    with pytest.raises(cs.RangeError, match="null"):
        node(STRING).parse(b"\xff\xff")


def test_length_beyond_remaining_bytes_is_rejected() -> None:
    with pytest.raises(cs.StreamError, match="needs 2147483647 bytes, 1 are left"):
        node(BYTES).parse(b"\x7f\xff\xff\xffx")
    numbers = array_node(INT32.node(flexible=False, nullable=False), flexible=False, nullable=False)
    with pytest.raises(cs.StreamError, match="array length 2 needs 8 bytes, 7 are left"):
        numbers.parse(b"\0\0\0\2" + bytes(7))
    assert numbers.parse(b"\0\0\0\2" + bytes(8)) == [0, 0]


def test_string_longer_than_int16_is_rejected() -> None:
    with pytest.raises(cs.RangeError, match="32768 is above 32767"):
        node(STRING, flexible=True).build("x" * 32_768)


def test_invalid_utf8_and_non_string_are_rejected() -> None:
    with pytest.raises(cs.StringError, match="not UTF-8"):
        node(STRING).parse(b"\0\1\xff")
    with pytest.raises(cs.StringError, match="not text"):
        node(STRING).build(5)


@given(st.binary(min_size=16, max_size=16))
def test_uuid_text_round_trips(uuid: bytes) -> None:
    text = uuid_text(uuid)
    assert len(text) == 22
    assert uuid_from_text(text) == uuid


def test_metadata_topic_uuid_has_kafka_text() -> None:
    assert uuid_text(bytes(15) + b"\1") == "AAAAAAAAAAAAAAAAAAAAAQ"


@pytest.mark.parametrize("text", ["", "AAAA", "A" * 21 + "!", "A" * 30])
def test_invalid_uuid_text_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"UUID|base64|padding|[Oo]nly"):
        uuid_from_text(text)
