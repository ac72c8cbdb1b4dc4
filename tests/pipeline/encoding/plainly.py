"""Decodes Parquet's numbers bit by bit, as its specification describes them."""

from __future__ import annotations


def number_at(data: bytes) -> tuple[int, int]:
    """(the leading unsigned number, its size in bytes)."""
    value = 0
    for at, byte in enumerate(data):
        value |= (byte & 0x7F) << 7 * at
        if byte < 0x80:
            return value, at + 1
    raise AssertionError("it has no end")


def read(data: bytes, width: int, count: int) -> list[int]:
    """``count`` levels or places in runs."""
    found: list[int] = []
    while data:
        head, size = number_at(data)
        data = data[size:]
        if head & 1:
            size = (head >> 1) * width
            packed = int.from_bytes(data[:size], "little")
            found += [packed >> width * at & (2**width - 1) for at in range((head >> 1) * 8)]
        else:
            size = 1
            found += [data[0]] * (head >> 1)
        data = data[size:]
    assert all(level == 0 for level in found[count:])
    assert len(found) < count + 8
    return found[:count]
