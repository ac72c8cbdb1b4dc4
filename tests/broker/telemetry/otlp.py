"""Metrics of OTLP as bytes, written field by field."""

from __future__ import annotations

import struct


def varint(number: int) -> bytes:
    data = bytearray()
    while True:
        byte, number = number & 0x7F, number >> 7
        data.append(byte | (0x80 if number else 0))
        if not number:
            return bytes(data)


def message(number: int, content: bytes | str) -> bytes:
    """A field with bytes or text."""
    data = content.encode() if isinstance(content, str) else content
    return varint(number << 3 | 2) + varint(len(data)) + data


def double(number: int, value: float) -> bytes:
    return varint(number << 3 | 1) + struct.pack("<d", value)


def fixed(number: int, value: int) -> bytes:
    return varint(number << 3 | 1) + struct.pack("<q", value)


def attribute(key: str, value: bytes | str) -> bytes:
    """An attribute of a point; ``value`` is a text or the bytes of an AnyValue."""
    any_value = message(1, value) if isinstance(value, str) else value
    return message(7, message(1, key) + message(2, any_value))


def gauge(name: str, *points: bytes) -> bytes:
    return message(1, name) + message(5, b"".join(message(1, point) for point in points))


def total(name: str, *points: bytes) -> bytes:
    """A monotonic sum."""
    content = b"".join(message(1, point) for point in points)
    return message(1, name) + message(7, content + varint(2 << 3) + varint(1))


def metrics(*each: bytes) -> bytes:
    """MetricsData with these metrics, of one resource and scope."""
    scope = message(1, message(1, "scope")) + b"".join(message(2, one) for one in each)
    resource = message(1, attribute("client_rack", "r"))
    return message(1, resource + message(2, scope))
