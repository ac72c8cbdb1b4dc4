"""The helpers of generated codecs, compared with construct's nodes of the same types."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import construct as cs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker_protocol import wire
from minibroker_protocol.errors import DecodeError
from minibroker_protocol.types import UNSIGNED_VARINT, VARINT, VARLONG

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
