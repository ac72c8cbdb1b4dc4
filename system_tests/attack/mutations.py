"""Damage to a frame: flipped bits, wrong lengths, huge counts, cuts and splices.

Owns the kinds of damage; it knows no schemas and no sockets. A frame is four bytes of length and a
request. The invariant: the same dice damage the same frame in the same way, the result is never
longer than `MUTATED_MAX_BYTES`, and an empty frame has no damage to take.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from typing import Final

LENGTH_BYTES: Final = 4
HEADER_BYTES: Final = 10
"""API key, version, correlation id and the client id's length."""

MUTATED_MAX_BYTES: Final = 256 * 1024

_HUGE: Final = (
    struct.pack(">i", 2**31 - 1),
    struct.pack(">i", -(2**31)),
    struct.pack(">i", -2),
    struct.pack(">i", 10_000_000),
    struct.pack(">h", 2**15 - 1),
    struct.pack(">h", -2),
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\x07",
    b"\x80\x80\x80\x80\x80\x01",
    b"\xff" * 10,
)
"""Lengths and counts at the edges of int32, int16 and varints."""


def frame(body: bytes) -> bytes:
    """A request with its length before it."""
    return struct.pack(">i", len(body)) + body


def mutated(good: bytes, others: Sequence[bytes], dice: random.Random) -> bytes:
    """A frame with one to three kinds of damage; the length is right unless that is the damage."""
    body = good[LENGTH_BYTES : MUTATED_MAX_BYTES // 2]
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        body = dice.choice(DAMAGE)(body, dice)
    if others and dice.random() < 0.05:
        other = dice.choice(others)[LENGTH_BYTES : MUTATED_MAX_BYTES // 2]
        body = body[: _position(body, dice)] + other[_position(other, dice) :]
    if dice.random() < 0.1:
        return wrong_length(body, dice)
    return frame(body)


def wrong_length(body: bytes, dice: random.Random) -> bytes:
    """A frame whose length is not that of what follows."""
    claims = (-1, -(2**31), 2**31 - 1, 0, 1, len(body) - 1, len(body) + 1, len(body) + 1000)
    return struct.pack(">i", dice.choice(claims)) + body


def _position(body: bytes, dice: random.Random) -> int:
    return dice.randrange(len(body) + 1)


def _flip_bits(body: bytes, dice: random.Random) -> bytes:
    data = bytearray(body)
    for _ in range(dice.choice((1, 1, 2, 8)) if data else 0):
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    return bytes(data)


def _replace_bytes(body: bytes, dice: random.Random) -> bytes:
    data = bytearray(body)
    for _ in range(dice.choice((1, 2, 8)) if data else 0):
        data[dice.randrange(len(data))] = dice.choice((0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)))
    return bytes(data)


def _truncate(body: bytes, dice: random.Random) -> bytes:
    return body[: _position(body, dice)]


def _insert(body: bytes, dice: random.Random) -> bytes:
    at = _position(body, dice)
    return body[:at] + dice.randbytes(dice.choice((1, 2, 4, 100))) + body[at:]


def _delete(body: bytes, dice: random.Random) -> bytes:
    at = _position(body, dice)
    return body[:at] + body[at + dice.choice((1, 2, 4, 20)) :]


def _repeat(body: bytes, dice: random.Random) -> bytes:
    start, end = sorted((_position(body, dice), _position(body, dice)))
    times = min(dice.choice((2, 3, 50)), MUTATED_MAX_BYTES // 8 // max(end - start, 1))
    return body[:start] + body[start:end] * times + body[end:]


def _huge_number(body: bytes, dice: random.Random) -> bytes:
    """Write an extreme length or count somewhere behind the header."""
    at = dice.randrange(min(HEADER_BYTES, len(body)), len(body) + 1)
    number = dice.choice(_HUGE)
    return body[:at] + number + body[at + len(number) :]


def _tagged_fields(body: bytes, dice: random.Random) -> bytes:
    """Put a section of tagged fields at the end: many, twice the same, or too long."""
    sections = (
        b"\x01\x00\x00",
        b"\x02\x05\x00\x05\x00",
        b"\x01\x00\xff\xff\xff\xff\x07",
        b"\xff\xff\xff\xff\x0f",
        b"\x01\xff\xff\xff\xff\x0f\x01a",
        b"\x64" + b"".join(bytes((tag, 0)) for tag in range(100)),
    )
    cut = dice.choice((0, 1))
    return body[: len(body) - cut] + dice.choice(sections)


def _other_header(body: bytes, dice: random.Random) -> bytes:
    """Keep the body, change API key or version."""
    key, version = dice.randrange(-1, 95), dice.randrange(-1, 20)
    if dice.random() < 0.5:
        return struct.pack(">h", key) + body[2:]
    return body[:2] + struct.pack(">h", version) + body[4:]


DAMAGE: Final[tuple[Callable[[bytes, random.Random], bytes], ...]] = (
    _flip_bits,
    _flip_bits,
    _replace_bytes,
    _truncate,
    _insert,
    _delete,
    _repeat,
    _huge_number,
    _tagged_fields,
    _other_header,
)
