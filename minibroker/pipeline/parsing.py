"""The compiled reader of events: JSON bytes in, columns of numbers out.

Owns one loop over the bytes of many events. It reads the usual spelling (ASCII, no escapes, no key
twice) and leaves everything else to ``events``; it must never know Arrow, or why an event is
rejected. It first tries the key that followed in the previous event, comparing eight bytes at a
time. Invariant: an event is accepted only if ``events.parse_event`` accepts it with the same
values.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from minibroker.pipeline.decimals import DIGITS_MAX as SURE_DIGITS
from minibroker.pipeline.decimals import to_double
from minibroker.pipeline.simd_words import cell, compiled, count_plain, digits, inlined, item, load
from minibroker.pipeline.string_table import (
    extend_hash,
    first_bytes_mask,
    same_bytes,
    string_number,
)

_QUOTE, _COLON, _COMMA, _OPEN, _CLOSE = 34, 58, 44, 123, 125
_ZERO, _MINUS, _PLUS, _POINT = 48, 45, 43, 46
DIGITS_MAX: Final = 18
POWER_DIGITS_MAX: Final = 3
WORDS_MAX: Final = 3
"""Words of eight bytes in a key with its quotes and colon."""

INTEGER, DECIMAL, TEXT, FLAG, CHECK = 0, 1, 2, 3, 4
"""Types of a key's value."""

_TENS: Final = np.array([10**power for power in range(9)], np.uint64)
_NULL: Final = np.uint64(int.from_bytes(b"null", "little"))
_TRUE: Final = np.uint64(int.from_bytes(b"true", "little"))
_FALSE: Final = np.uint64(int.from_bytes(b"false", "little"))


class Plan(NamedTuple):
    """The schema for compiled code. Keys are an event's own, then those of each check."""

    words: Any
    """A row for each key: its spelling as words, then the masks of their valid bits."""
    keys: Any
    """A row for each key: its size, the type and column of its value, the minimum and maximum.

    A string has, instead of the minimum, the key whose last string it probably repeats. A check
    has, instead of the minimum and maximum, its first key and the one behind its last, and instead
    of a column the bit of its first key.
    """
    needed: Any
    """Masks of the required fields of each kind of event, and last those of a check. Kinds have the
    first numbers in the string table.
    """
    known: Any
    """Number of an event's own keys; key and column of the version and of the kind; the supported
    version; the first of two mask columns: of an event's fields and of its checks' fields.
    """


@inlined
def _whole(data: Any, pos: Any) -> Any:
    """(value of the digits at ``pos``, their end); the value overflows if there are too many."""
    value, count = np.uint64(0), np.uint64(8)
    begin = pos
    while count == 8 and pos - begin <= DIGITS_MAX:
        count, part = digits(load(data, pos))
        value = value * _TENS[count] + part
        pos += np.int64(count)
    return value, pos


@inlined
def _integer(data: Any, pos: Any) -> Any:
    """(a JSON integer, its end or -1)."""
    negative = item(data, pos) == _MINUS
    begin = pos + 1 if negative else pos
    value, stop = _whole(data, begin)
    size = stop - begin
    if size == 0 or size > DIGITS_MAX or (size > 1 and item(data, begin) == _ZERO):
        return np.int64(0), np.int64(-1)
    return (-np.int64(value) if negative else np.int64(value)), stop


@inlined
def _decimal(data: Any, pos: Any) -> Any:
    """(a JSON number as a double, its end or -1)."""
    negative = item(data, pos) == _MINUS
    begin = pos + 1 if negative else pos
    value, stop = _whole(data, begin)
    size, power = stop - begin, np.int64(0)
    if size == 0 or size > DIGITS_MAX or (size > 1 and item(data, begin) == _ZERO):
        return 0.0, np.int64(-1)
    if item(data, stop) == _POINT:
        first = stop + 1
        stop = first
        while value == 0 and item(data, stop) == _ZERO and stop - first < SURE_DIGITS:
            stop += 1
        nothing = stop
        count = np.uint64(8)
        while count == 8 and stop - nothing <= SURE_DIGITS:
            count, part = digits(load(data, stop))
            value = value * _TENS[count] + part
            stop += np.int64(count)
        size = stop - nothing + (size if item(data, begin) != _ZERO else 0)
        if stop == first or size > SURE_DIGITS:
            return 0.0, np.int64(-1)
        power = first - stop
    if item(data, stop) == 101 or item(data, stop) == 69:  # e, E
        down = item(data, stop + 1) == _MINUS
        first = stop + 2 if down or item(data, stop + 1) == _PLUS else stop + 1
        more, stop = _whole(data, first)
        if stop == first or stop - first > POWER_DIGITS_MAX:
            return 0.0, np.int64(-1)
        power += -np.int64(more) if down else np.int64(more)
    found, sure = to_double(value, power)
    return (-found if negative else found), (stop if sure else np.int64(-1))


@inlined
def _text(data: Any, pos: Any, end: Any, guess: Any, slots: Any, hashes: Any, ends: Any,
          content: Any, count: Any) -> Any:  # fmt: skip
    """(number of the string from ``pos`` to its closing quote, the position after it or -1).

    ``guess`` is the number of a string without escapes, which is compared first.
    """
    begin = item(ends, guess)
    size = item(ends, guess + 1) - begin
    stop = pos + size
    if stop < end and item(data, stop) == _QUOTE and same_bytes(content, begin, data, pos, size):
        return guess, stop + 1
    state, at = np.uint64(0), pos
    while at < end:
        word = load(data, at)
        size = np.int64(count_plain(word))
        if size == 8:
            state = extend_hash(state, word)
            at += 8
            continue
        if size:
            state = extend_hash(state, word & first_bytes_mask(size))
            at += size
        if at >= end or item(data, at) != _QUOTE:
            break
        size = at - pos
        hashed = extend_hash(state, np.uint64(size))
        found = string_number(slots, hashes, ends, content, count, data, pos, size, hashed)
        return np.int64(found), at + 1
    return np.int64(0), np.int64(-1)


@inlined
def _value(data: Any, pos: Any, end: Any, key: Any, row: Any, keys: Any, recent: Any, values: Any,
           slots: Any, hashes: Any, ends: Any, content: Any, count: Any) -> Any:  # fmt: skip
    """Read a value other than an object: (its end or -1, whether it is not null)."""
    word = load(data, pos)
    if word & first_bytes_mask(4) == _NULL:
        return pos + 4, False
    kind = cell(keys, key, 1)
    number: Any = np.int64(0)
    if kind == INTEGER:
        number, pos = _integer(data, pos)
        if not cell(keys, key, 3) <= number <= cell(keys, key, 4):
            pos = -1
    elif kind == TEXT and item(data, pos) == _QUOTE:
        near = cell(keys, key, 3)
        number, pos = _text(
            data, pos + 1, end, item(recent, near), slots, hashes, ends, content, count
        )
        recent[np.uint64(near)] = number
    elif kind == DECIMAL and (item(data, pos) != _MINUS or cell(keys, key, 3) < 0):
        found, pos = _decimal(data, pos)
        number = np.float64(found).view(np.int64)
    elif kind == FLAG and word & first_bytes_mask(4) == _TRUE:
        number, pos = 1, pos + 4
    elif kind == FLAG and word & first_bytes_mask(5) == _FALSE:
        pos += 5
    else:
        pos = -1
    values[np.uint64(row), np.uint64(cell(keys, key, 2))] = number
    return pos, True


@inlined
def _is_key(data: Any, pos: Any, key: Any, words: Any) -> bool:
    """Whether a key with its quotes and colon is at ``pos``."""
    if (load(data, pos) ^ cell(words, key, 0)) & cell(words, key, WORDS_MAX) != 0:
        return False
    for at in range(1, WORDS_MAX):
        mask = cell(words, key, WORDS_MAX + at)
        if mask == 0:
            return True
        if (load(data, pos + 8 * at) ^ cell(words, key, at)) & mask != 0:
            return False
    return True


@inlined
def _key(data: Any, pos: Any, first: Any, last: Any, state: Any, words: Any, follow: Any) -> Any:
    """Find which of the keys from first to last is at ``pos``, or -1.

    The key that followed this state last time is tried first, because writers keep an order.
    """
    guess = item(follow, state)
    if _is_key(data, pos, guess, words):
        return guess
    key = state if first <= state < last else first - 1
    for _ in range(last - first):
        key += 1
        if key >= last:
            key = first
        if _is_key(data, pos, key, words):
            follow[state] = key
            return key
    return np.int64(-1)


@inlined
def _check(data: Any, pos: Any, end: Any, check: Any, row: Any, words: Any, keys: Any, needed: Any,
           follow: Any, recent: Any, values: Any, slots: Any, hashes: Any, ends: Any, content: Any,
           count: Any) -> Any:  # fmt: skip
    """Read a check, an object with plain values: (its end or -1, the mask of its fields)."""
    first, last = cell(keys, check, 3), cell(keys, check, 4)
    seen: Any = np.uint64(0)
    refused = np.int64(-1)
    state = len(keys) + 1 + check  # The state behind the opening brace of this check.
    while True:
        pos += 1
        key = _key(data, pos, first, last, state, words, follow)
        if key < 0:
            return refused, seen
        state = key
        bit = np.uint64(1) << np.uint64(key - first)
        if seen & bit:
            return refused, seen
        pos += cell(keys, key, 0)
        pos, there = _value(data, pos, end, key, row, keys, recent, values, slots, hashes, ends,
                            content, count)  # fmt: skip
        if pos < 0 or pos >= end:
            return refused, seen
        if there:
            seen |= bit
        if item(data, pos) == _CLOSE:
            whole = seen & needed[-1] == needed[-1]
            return (pos + 1 if whole else refused), seen
        if item(data, pos) != _COMMA:
            return refused, seen


@inlined
def _event(data: Any, pos: Any, end: Any, row: Any, words: Any, keys: Any, needed: Any, known: Any,
           follow: Any, recent: Any, values: Any, slots: Any, hashes: Any, ends: Any, content: Any,
           count: Any) -> bool:  # fmt: skip
    """Read an event into a row; return False if it is malformed or not in the usual spelling."""
    seen: Any = np.uint64(0)
    seen_of_checks: Any = np.uint64(0)
    fields = known[0]
    state = np.int64(len(keys))  # The state behind the opening brace of an event.
    if pos >= end or item(data, pos) != _OPEN:
        return False
    while True:
        pos += 1
        key = _key(data, pos, 0, fields, state, words, follow)
        if key < 0:
            return False
        state = key
        bit = np.uint64(1) << np.uint64(key)
        if seen & bit:
            return False
        pos += cell(keys, key, 0)
        there = True
        if cell(keys, key, 1) == CHECK and item(data, pos) == _OPEN:
            pos, bits = _check(data, pos, end, key, row, words, keys, needed, follow, recent,
                               values, slots, hashes, ends, content, count)  # fmt: skip
            seen_of_checks |= bits << np.uint64(cell(keys, key, 2))
        else:
            pos, there = _value(data, pos, end, key, row, keys, recent, values, slots, hashes,
                                ends, content, count)  # fmt: skip
        if pos < 0 or pos >= end:
            return False
        if there:
            seen |= bit
        if item(data, pos) == _CLOSE:
            values[row, known[6]] = np.int64(seen)
            values[row, known[6] + 1] = np.int64(seen_of_checks)
            return pos + 1 == end and _known(row, seen, needed, known, values)
        if item(data, pos) != _COMMA:
            return False


@inlined
def _known(row: Any, seen: Any, needed: Any, known: Any, values: Any) -> bool:
    """Whether an event has the supported version and the required fields of its kind."""
    both = np.uint64(1) << np.uint64(known[1]) | np.uint64(1) << np.uint64(known[3])
    if seen & both != both or values[row, known[2]] != known[5]:
        return False
    kind = values[row, known[4]]
    return bool(kind < len(needed) - 1 and seen & needed[kind] == needed[kind])


@compiled
def read_events(data: Any, starts: Any, stops: Any, row: Any, plan: Any, follow: Any, recent: Any,
                values: Any, texts: Any, left: Any) -> Any:  # fmt: skip
    """Read the events between starts and stops of ``data`` into rows from ``row`` on.

    Returns (the row behind the last one read, the number of skipped events); ``left`` receives the
    skipped events' numbers. ``follow`` keeps the key that followed each key or brace last time, and
    ``recent`` the last string of each key. Values of skipped events are overwritten.
    """
    words, keys, needed, known = plan
    slots, hashes, ends, content, count = texts
    others = 0
    for number in range(len(starts)):
        start, stop = item(starts, number), item(stops, number)
        if _event(data, start, stop, row, words, keys, needed, known, follow, recent, values, slots,
                  hashes, ends, content, count):  # fmt: skip
            row += 1
        else:
            left[others] = number
            others += 1
    return row, others
