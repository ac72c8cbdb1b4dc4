"""Thrift's compact protocol, as far as Parquet's footers need it.

Owns the encoding of structs, lists and numbers; it must never know what they mean. Invariant: the
fields of a struct are given in the order of their numbers, which differ by at most 15.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

_LONG_LIST: Final = 15


class Value(NamedTuple):
    """An encoded value, and Thrift's number of its type."""

    kind: int
    content: bytes


def varint(number: int) -> bytes:
    """An unsigned varint, seven bits per byte."""
    if number <= 0x7F:
        return bytes((number,))
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _signed(number: int) -> bytes:
    return varint(number << 1 if number >= 0 else -number * 2 - 1)


def int16(number: int) -> Value:
    """A 16-bit integer."""
    return Value(4, _signed(number))


def int32(number: int) -> Value:
    """A 32-bit integer."""
    return Value(5, _signed(number))


def int64(number: int) -> Value:
    """A 64-bit integer."""
    return Value(6, _signed(number))


def binary(content: bytes) -> Value:
    """Bytes or a string."""
    return Value(8, varint(len(content)) + content)


def struct(fields: dict[int, Value]) -> Value:
    """A struct of fields by number."""
    out, before = [], 0
    for number, value in fields.items():
        out += [bytes(((number - before) << 4 | value.kind,)), value.content]
        before = number
    return Value(12, b"".join(out) + b"\0")


def array(values: Iterable[Value]) -> Value:
    """A list of one or more values of the same type."""
    each = list(values)
    kind = each[0].kind
    if len(each) < _LONG_LIST:
        head = bytes((len(each) << 4 | kind,))
    else:
        head = bytes((0xF0 | kind,)) + varint(len(each))
    return Value(9, head + b"".join(value.content for value in each))
