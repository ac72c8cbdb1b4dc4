"""Collects raw events in columns, and reports malformed ones.

Owns the conversion of bytes to integer columns, with strings replaced by their numbers: compiled
code for the usual spelling, ``parse_event`` for the rest. It must never know where events come from
or where they are written. Invariant: every event becomes either a row or a fault with a reason, as
``events.parse_event`` decides; memory is that of ``ROWS_MAX`` rows, which are reused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from minibroker.activity.schema import (
    CHECK_FIELDS,
    FIELDS,
    VERSION,
    ActivityField,
    ActivityKind,
    ActivityType,
)
from minibroker.pipeline import parsing
from minibroker.pipeline.events import (
    INT_MAX,
    LONG_MAX,
    SIGNED,
    MalformedEvent,
    needed,
    parse_event,
)
from minibroker.pipeline.ordering import split
from minibroker.pipeline.simd_words import SLACK
from minibroker.pipeline.string_table import (
    BYTES_MAX,
    STRINGS_MAX,
    StringTable,
    hash_of,
    new_string_table,
    string_number,
)

ROWS_MAX: Final = 500_000
"""Events collected before they are written to files."""
TOGETHER: Final = 4_096
"""Largest number of events in one call of `EventRun.read`."""

_KINDS: Final = {
    ActivityType.INT: parsing.INTEGER,
    ActivityType.LONG: parsing.INTEGER,
    ActivityType.DOUBLE: parsing.DECIMAL,
    ActivityType.TEXT: parsing.TEXT,
    ActivityType.FLAG: parsing.FLAG,
    ActivityType.CHECK: parsing.CHECK,
}


class Leaf(NamedTuple):
    """Location of a field's value and of its presence bit."""

    field: ActivityField
    column: int
    """The value's column; a check has one without meaning."""
    mask: int
    bit: int


class Raw(NamedTuple):
    """Consecutive events, followed by ``SLACK`` readable bytes; a size below 0 means null."""

    data: Any
    starts: Any
    sizes: Any


class _Schema:
    """The compiled reader's description of the schema and of the output columns."""

    def __init__(self) -> None:
        self.leaves: dict[tuple[str, ...], Leaf] = {}
        keys, words = [], []
        checks = [field for field in FIELDS if field.type is ActivityType.CHECK]
        for bit, field in enumerate(FIELDS):
            words.append(field.name)
            keys.append(self._key((field.name,), field, 0, bit))
        for number, check in enumerate(checks):
            first, bits = len(words), number * len(CHECK_FIELDS)
            keys[FIELDS.index(check)][2:] = [bits, first, first + len(CHECK_FIELDS)]
            for bit, field in enumerate(CHECK_FIELDS):
                words.append(field.name)
                keys.append(self._key((check.name, field.name), field, 1, bits + bit))
        spelled = [f'"{word}":'.encode() for word in words]
        for key, text in zip(keys, spelled, strict=True):
            key[0] = len(text)
        masks = [b"\xff" * len(text) for text in spelled]
        needs = [_mask([needed(f, kind) for f in FIELDS]) for kind in ActivityKind]
        needs.append(_mask([not field.may_lack for field in CHECK_FIELDS]))
        version, kind = (self.leaves[name,] for name in ("version", "kind"))
        self.masks = len(self.leaves)
        known = [
            len(FIELDS),
            version.bit,
            version.column,
            kind.bit,
            kind.column,
            VERSION,
            self.masks,
        ]
        self.plan = parsing.Plan(
            np.hstack([_as_words(spelled), _as_words(masks)]),
            np.array(keys, np.int64),
            np.array(needs, np.uint64),
            np.array(known, np.int64),
        )

    def first_guesses(self) -> Any:
        """Initial guesses of the key behind each key, the event's brace and each check's brace."""
        keys = self.plan.keys
        guesses = np.zeros(len(keys) + 1 + len(FIELDS), np.int64)
        for at in np.flatnonzero(keys[: len(FIELDS), 1] == parsing.CHECK):
            first, last = keys[at, 3:]
            guesses[first:last] = guesses[len(keys) + 1 + at] = first
        return guesses

    def _key(self, name: tuple[str, ...], field: ActivityField, mask: int, bit: int) -> list[int]:
        leaf = self.leaves[name] = Leaf(field, len(self.leaves), mask, bit)
        most = INT_MAX if field.type is ActivityType.INT else LONG_MAX
        least = -most - 1 if field.name in SIGNED else 0
        if (
            field.type is ActivityType.TEXT
        ):  # A check's user and client-id usually equal the event's.
            least = next((at for at, own in enumerate(FIELDS) if own.name == field.name), 0)
        return [0, _KINDS[field.type], leaf.column, least, most]


def _mask(bits: list[bool]) -> int:
    return sum(1 << at for at, bit in enumerate(bits) if bit)


def _as_words(spelled: list[bytes]) -> Any:
    size = 8 * parsing.WORDS_MAX
    padded = b"".join(word.ljust(size, b"\0") for word in spelled)
    assert len(padded) == size * len(spelled), "a name is longer than its words"
    return np.frombuffer(padded, np.uint64).reshape(-1, parsing.WORDS_MAX)


_SCHEMA: Final = _Schema()
LEAVES: Final[Mapping[tuple[str, ...], Leaf]] = _SCHEMA.leaves
_TEXTS_PER_EVENT: Final = 2 * sum(leaf.field.type is ActivityType.TEXT for leaf in LEAVES.values())
"""Strings that one event may add: an event in another spelling is read a second time, by
``parse_event``. An empty run has room for ``TOGETHER`` events.
"""
"""By the path of field names."""
MASKS: Final = _SCHEMA.masks
"""The first of two columns of presence masks: of the event's fields, and of its checks' fields."""
KINDS: Final = tuple(str(kind).encode() for kind in ActivityKind)
"""The first strings of each run's string table, in this order."""


class Keys(NamedTuple):
    """The columns that decide where an event is filed; -1 where it has no value."""

    brokers: Any
    sequences: Any
    times: Any
    kinds: Any
    users: Any
    clients: Any
    ips: Any


_KEYS: Final = np.array(
    [[LEAVES[name,].column, LEAVES[name,].mask, LEAVES[name,].bit] for name in
     ("broker", "sequence", "time_us", "kind", "user", "client_id", "ip")]
)  # fmt: skip


class EventRun:
    """Collects events until ``has_room`` says that there is no room for more."""

    def __init__(self, rows: int = ROWS_MAX) -> None:
        self._rows = rows
        self.values = np.zeros((rows, _SCHEMA.masks + 2), np.int64)
        self._keys = np.empty((len(_KEYS), rows), np.int64)
        self._follow = _SCHEMA.first_guesses()
        self._recent = np.zeros(len(FIELDS), np.int64)
        self._left = np.zeros(TOGETHER, np.int64)
        self.clear()

    def clear(self, size: int = 0) -> None:
        """Remove all events, and make room for strings of at least ``size`` bytes."""
        self.count = 0
        # The names of the kinds need room in addition.
        self.texts: StringTable = new_string_table(max(size, BYTES_MAX) + sum(map(len, KINDS)))
        for kind in KINDS:
            self._number(kind)
        self._recent[:] = 0

    @property
    def keys(self) -> Keys:
        """The filing keys of the events; valid until the next ``read``."""
        return Keys(*self._keys[:, : self.count])

    def has_room(self, rows: int, size: int) -> bool:
        """Whether ``rows`` more events with ``size`` bytes in total fit."""
        used, known = self.texts, int(self.texts.count[0])
        return (
            self.count + rows <= self._rows
            and known + rows * _TEXTS_PER_EVENT <= STRINGS_MAX
            and int(used.ends[known]) + size <= len(used.content) - SLACK
        )

    def read(self, raw: Raw) -> list[tuple[int, str]]:
        """Read at most ``TOGETHER`` events; return (number, reason) of each malformed one.

        Raises ValueError, and reads none, if there is no room for them or they exceed their buffer:
        the compiled reader checks no bounds.
        """
        self._check(raw)
        ends, before = raw.starts + raw.sizes, self.count
        self.count, others = parsing.read_events(
            raw.data, raw.starts, ends, self.count, _SCHEMA.plan, self._follow, self._recent,
            self.values, self.texts, self._left,
        )  # fmt: skip
        faults = []
        for number in self._left[:others].tolist():
            try:
                self._put(parse_event(bytes_of(raw, number)))
            except MalformedEvent as error:
                faults.append((number, str(error)))
        # Now, while the rows are in the CPU cache.
        split(self.values, before, self.count, MASKS, _KEYS, self._keys)
        return faults

    def _check(self, raw: Raw) -> None:
        count, sizes = len(raw.starts), np.maximum(raw.sizes, 0)
        if count != len(sizes) or count > TOGETHER or not self.has_room(count, int(sizes.sum())):
            raise ValueError(f"no room for {count} events of {sizes.sum()} bytes in all")
        if not count:
            return
        first, last = int(raw.starts.min()), int((raw.starts + sizes).max())
        if first < 0 or last > len(raw.data) - SLACK:
            raise ValueError(
                f"events lie from byte {first} to {last} of data with {len(raw.data)} bytes, of "
                f"which the last {SLACK} must not be used"
            )

    def _put(self, event: Mapping[str, Any]) -> None:
        masks = [0, 0]
        for name, value in event.items():
            parts = value.items() if isinstance(value, dict) else ()
            for path, each in (((name,), value), *(((name, inner), part) for inner, part in parts)):
                if each is not None:
                    leaf = LEAVES[path]
                    masks[leaf.mask] |= 1 << leaf.bit
                    self.values[self.count, leaf.column] = self._as_number(leaf.field.type, each)
        self.values[self.count, MASKS:] = np.array(masks, np.uint64).view(np.int64)
        self.count += 1

    def _as_number(self, kind: ActivityType, value: Any) -> Any:
        if kind is ActivityType.TEXT:
            return self._number(value.encode())
        if kind is ActivityType.DOUBLE:
            return np.float64(value).view(np.int64)
        return 1 if kind is ActivityType.CHECK else value

    def _number(self, text: bytes) -> int:
        data = np.frombuffer(text + bytes(SLACK), np.uint8)
        hashed = np.uint64(hash_of(data, 0, len(text)))
        return int(string_number(*self.texts, data, 0, len(text), hashed))


def bytes_in(raw: Raw) -> int:
    """Bytes from the first event to the last, an upper bound of their total size."""
    if not len(raw.starts):
        return 0
    return int(raw.starts[-1]) + max(int(raw.sizes[-1]), 0) - int(raw.starts[0])


def bytes_of(raw: Raw, number: int) -> bytes | None:
    """The bytes of one event."""
    start, size = int(raw.starts[number]), int(raw.sizes[number])
    return None if size < 0 else raw.data[start : start + size].tobytes()


def pieces(raw: Raw) -> list[tuple[Raw, int]]:
    """Split into parts of at most ``TOGETHER`` events; each with the number of its first event."""
    if 0 < len(raw.starts) <= TOGETHER:
        return [(raw, 0)]
    return [
        (raw._replace(starts=raw.starts[at : at + TOGETHER], sizes=raw.sizes[at : at + TOGETHER]),
         at) for at in range(0, len(raw.starts), TOGETHER)
    ]  # fmt: skip
