"""Extreme values for any request that the protocol declares.

Owns the choice of values for each primitive type and the walk over a message's declared fields. It
knows no sockets and no clock. The invariant: the same dice and words give the same message, and
every message encodes, so that what is malformed is the mutations' choice alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from minibroker_protocol.schema import Array, Field, Message, Struct
from minibroker_protocol.types import Type
from system_tests.attack.batches import hostile_batch

STRINGS: Final = (
    "",
    "a",
    ".",
    "..",
    "a/b",
    "__consumer_offsets",
    "__transaction_state",
    "no such name",
    "line\nbreak",
    "nul\0byte",
    "\N{PILE OF POO}" * 20,
    "x" * 249,
    "x" * 250,
    "x" * 32767,
    "range",
    "consumer",
    "-1",
)
"""Strings that differ in length, characters and meaning."""

DEEP: Final = 3
"""Structs nested deeper than this get empty arrays."""

ELEMENTS_MAX: Final = 400
"""Elements of a long array of primitives."""


class Words(NamedTuple):
    """What the broker under attack knows: names, ids and members that real clients use."""

    strings: Sequence[str] = ()
    uuids: Sequence[bytes] = ()


def message(cls: type[Message], version: int, dice: random.Random, words: Words) -> Message:
    """A message of one version, with a value for each field that the version has."""
    made = _Builder(version, cls.__flexible__.has(version), dice, words).struct(cls, 0)
    assert isinstance(made, Message)
    return made


def unknown_tags(dice: random.Random) -> dict[int, bytes]:
    """Tagged fields that no schema has, up to the highest tag that a varint can hold."""
    tags = (100, 2**14, 2**31 - 1, dice.randrange(50, 2**31))
    return {dice.choice(tags): dice.randbytes(dice.choice((0, 1, 300)))}


class _Builder(NamedTuple):
    """Builds the structs of one message."""

    version: int
    is_flexible: bool
    dice: random.Random
    words: Words

    def struct(self, cls: type[Struct], depth: int) -> Struct:
        made = cls()
        for item in cls.__fields__:
            if item.versions.has(self.version):
                setattr(made, item.name, self._value(item, depth))
        if self.is_flexible and self.dice.random() < 0.15:
            made.unknown_tagged_fields = unknown_tags(self.dice)
        return made

    def _value(self, item: Field, depth: int) -> Any:
        if item.nullable.has(self.version) and self.dice.random() < 0.2:
            return None
        if self.dice.random() < 0.1:
            return item.make_default()
        kind = item.kind
        if isinstance(kind, Array):
            return [self._element(kind, depth) for _ in range(self._count(kind, depth))]
        if isinstance(kind, Type):
            return primitive(kind, self.dice, self.words)
        return self.struct(kind, depth + 1)

    def _element(self, kind: Array, depth: int) -> Any:
        if isinstance(kind.element, Type):
            return primitive(kind.element, self.dice, self.words)
        assert isinstance(kind.element, type)
        return self.struct(kind.element, depth + 1)

    def _count(self, kind: Array, depth: int) -> int:
        if depth >= DEEP:
            return 0
        if isinstance(kind.element, Type) and self.dice.random() < 0.03:
            return ELEMENTS_MAX
        return self.dice.choice((0, 1, 1, 1, 2, 3))


def primitive(kind: Type, dice: random.Random, words: Words) -> Any:
    """An extreme value of a primitive type, or a word of the broker's."""
    return _PRIMITIVES[kind.name.removeprefix("plain ").removeprefix("nullable ")](dice, words)


def _integer(bits: int, *, signed: bool = True) -> Callable[[random.Random, Words], int]:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    usual = [value for value in (-2, -1, 0, 0, 1, 1, 2, 100, low, high) if low <= value <= high]

    def integer(dice: random.Random, words: Words) -> int:
        del words
        return dice.choice(usual) if dice.random() < 0.85 else dice.randint(low, high)

    return integer


def _text(dice: random.Random, words: Words) -> str:
    if words.strings and dice.random() < 0.6:
        return dice.choice(words.strings)
    return dice.choice(STRINGS)


def _uuid(dice: random.Random, words: Words) -> bytes:
    if words.uuids and dice.random() < 0.6:
        return dice.choice(words.uuids)
    return dice.choice((bytes(16), b"\xff" * 16, dice.randbytes(16)))


def _content(dice: random.Random, words: Words) -> bytes:
    del words
    return dice.randbytes(dice.choice((0, 1, 4, 50, 3000)))


_PRIMITIVES: Final[dict[str, Callable[[random.Random, Words], Any]]] = {
    "bool": lambda dice, _: dice.random() < 0.5,
    "int8": _integer(8),
    "int16": _integer(16),
    "int32": _integer(32),
    "int64": _integer(64),
    "uint16": _integer(16, signed=False),
    "uint32": _integer(32, signed=False),
    "float64": lambda dice, _: dice.choice((0.0, -1.0, 1e308, float("inf"), float("nan"), 5e-324)),
    "uuid": _uuid,
    "uvarint": _integer(31, signed=False),
    "varint": _integer(32),
    "varlong": _integer(64),
    "string": _text,
    "bytes": _content,
    "records": lambda dice, _: hostile_batch(dice),
}
