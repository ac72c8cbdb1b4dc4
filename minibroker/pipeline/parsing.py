"""The compiled reader of events: JSON bytes in, places and numbers of its fields out.

Owns one loop over the bytes of many events, which takes the plain spelling (ASCII, no escapes,
every key of the schema once) and leaves everything else to ``events``; it must never know Arrow or
why an event is refused. Invariant: an event is marked as taken only if ``events.parse_event``
accepts it with the same values.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

_QUOTE, _BACKSLASH, _COLON, _COMMA, _OPEN, _CLOSE = 34, 92, 58, 44, 123, 125
_ZERO, _NINE, _MINUS, _PLUS, _POINT = 48, 57, 45, 43, 46
DIGITS_MAX = 18

INTEGER, DECIMAL, TEXT, FLAG, CHECK = 0, 1, 2, 3, 4
"""What a key's value is."""


@numba.njit(cache=True)
def _text_end(data: Any, pos: int, end: int) -> int:
    """Where the plain text from ``pos`` on has its closing quote, or -1."""
    while pos < end:
        byte = data[pos]
        if byte == _QUOTE:
            return pos
        if byte == _BACKSLASH or np.uint8(byte - 32) > 94:
            return -1
        pos += 1
    return -1


@numba.njit(cache=True)
def _digits_end(data: Any, pos: int, end: int) -> int:
    while pos < end and _ZERO <= data[pos] <= _NINE:
        pos += 1
    return pos


@numba.njit(cache=True)
def _whole_end(data: Any, pos: int, end: int) -> int:
    """The end of a number's digits before the point, sign included, or -1."""
    if pos < end and data[pos] == _MINUS:
        pos += 1
    stop = _digits_end(data, pos, end)
    if stop == pos or (data[pos] == _ZERO and stop > pos + 1):
        return -1
    return stop


@numba.njit(cache=True)
def _number_end(data: Any, pos: int, end: int) -> int:
    """The end of a JSON number that a double holds for certain, or -1."""
    pos = _whole_end(data, pos, end)
    if pos > 0 and pos < end and data[pos] == _POINT:
        stop = _digits_end(data, pos + 1, end)
        pos = -1 if stop == pos + 1 else stop
    if pos > 0 and pos < end and (data[pos] == 101 or data[pos] == 69):  # e, E
        pos += 1
        if pos < end and (data[pos] == _MINUS or data[pos] == _PLUS):
            pos += 1
        stop = _digits_end(data, pos, end)
        return -1 if stop == pos or stop > pos + 2 else stop
    return pos


@numba.njit(cache=True)
def _is_word(data: Any, pos: int, end: int, words: Any, first: int, last: int) -> bool:
    """Whether the bytes from ``pos`` on begin with those of ``words`` from first to last."""
    if end - pos < last - first:
        return False
    for at in range(last - first):
        if data[pos + at] != words[first + at]:
            return False
    return True


@numba.njit(cache=True)
def _value(data: Any, pos: int, end: int, kind: int, leaf: int, least: int, most: int, row: int,
           places: Any, sizes: Any) -> int:  # fmt: skip
    """Read a value that is no object; returns where it ends, or -1. A null leaves nothing."""
    if pos >= end:
        return -1
    byte = data[pos]
    if byte == 110:  # null
        whole = end - pos >= 4 and data[pos + 1] == 117 and data[pos + 2] == 108
        return pos + 4 if whole and data[pos + 3] == 108 else -1
    if kind == TEXT:
        if byte != _QUOTE:
            return -1
        stop = _text_end(data, pos + 1, end)
        places[leaf, row] = pos + 1
        sizes[leaf, row] = stop - pos - 1
        return stop + 1 if stop >= 0 else -1
    if kind == FLAG:
        if end - pos >= 4 and byte == 116 and data[pos + 1] == 114 and data[pos + 2] == 117:
            places[leaf, row], sizes[leaf, row] = 1, 1
            return pos + 4 if data[pos + 3] == 101 else -1
        if end - pos >= 5 and byte == 102 and data[pos + 1] == 97 and data[pos + 2] == 108:
            places[leaf, row], sizes[leaf, row] = 0, 1
            return pos + 5 if data[pos + 3] == 115 and data[pos + 4] == 101 else -1
        return -1
    if kind == DECIMAL:
        stop = _number_end(data, pos, end)
        places[leaf, row] = pos
        sizes[leaf, row] = stop - pos
        return -1 if byte == _MINUS and least >= 0 else stop
    negative = byte == _MINUS
    begin = pos + 1 if negative else pos
    value, stop = np.int64(0), begin
    while stop < end:
        digit = np.uint8(data[stop] - _ZERO)
        if digit > 9:
            break
        value = value * 10 + digit
        stop += 1
    if stop == begin or stop - begin > DIGITS_MAX or (data[begin] == _ZERO and stop > begin + 1):
        return -1
    if negative:
        value = -value
    places[leaf, row], sizes[leaf, row] = value, 1
    return stop if least <= value <= most else -1


@numba.njit(cache=True)
def _key(data: Any, pos: int, end: int, words: Any, bounds: Any, first: int, last: int,
         before: int) -> int:  # fmt: skip
    """Which of the keys from first to last stands at ``pos`` with its quotes and colon, or -1.

    They are tried in the schema's order from the one after ``before``, which writers keep.
    """
    key = before
    for _ in range(last - first):
        key += 1
        if key >= last:
            key = first
        start, size = bounds[key], bounds[key + 1] - bounds[key]
        # The quote is everybody's first byte, so the second tells most of them apart.
        if size <= end - pos and data[pos + 1] == words[start + 1]:
            at = 0
            while at < size and data[pos + at] == words[start + at]:
                at += 1
            if at == size:
                return key
    return -1


@numba.njit(cache=True)
def _object(data: Any, pos: int, end: int, row: int, words: Any, bounds: Any, keys: Any,
            first: int, last: int, places: Any, sizes: Any) -> Any:  # fmt: skip
    """Read an object of keys first to last and plain values; (its end or -1, keys that it has)."""
    seen: Any = np.uint64(0)
    before = first - 1
    if pos >= end or data[pos] != _OPEN:
        return -1, seen
    pos += 1
    while True:
        key = _key(data, pos, end, words, bounds, first, last, before)
        if key < 0:
            return -1, seen
        before = key
        bit = np.uint64(1) << np.uint64(key - first)
        if seen & bit:
            return -1, seen
        pos = _value(data, pos + bounds[key + 1] - bounds[key], end, keys[key, 0], keys[key, 1],
                     keys[key, 2], keys[key, 3], row, places, sizes)  # fmt: skip
        if pos < 0 or pos >= end:
            return -1, seen
        if sizes[keys[key, 1], row] >= 0:
            seen |= bit
        if data[pos] == _CLOSE:
            return pos + 1, seen
        if data[pos] != _COMMA:
            return -1, seen
        pos += 1


@numba.njit(cache=True)
def read_events(data: Any, starts: Any, ends: Any, plan: Any, places: Any, sizes: Any,
                taken: Any) -> None:  # fmt: skip
    """Read the events that lie at starts and ends of ``data``; ``taken`` tells which were plain.

    ``plan`` is (words, bounds, keys, fields, needed by checks, needed by kinds, kinds, version's
    leaf, kind's leaf, version), as ``columns`` makes it. ``sizes`` is -1 where there is nothing;
    of an event that isn't taken, places and sizes hold nothing of use.
    """
    words, bounds, keys, fields = plan[0], plan[1], plan[2], plan[3]
    for row in range(len(starts)):
        pos, end = starts[row], ends[row]
        seen: Any = np.uint64(0)
        before = -1
        whole = pos < end and data[pos] == _OPEN
        while whole:
            pos += 1
            key = _key(data, pos, end, words, bounds, 0, fields, before)
            if key < 0:
                break
            before = key
            bit = np.uint64(1) << np.uint64(key)
            if seen & bit:
                break
            pos += bounds[key + 1] - bounds[key]
            if keys[key, 0] == CHECK and pos < end and data[pos] == _OPEN:
                first, last = keys[key, 2], keys[key, 3]
                pos, has = _object(data, pos, end, row, words, bounds, keys, first, last,
                                   places, sizes)  # fmt: skip
                if pos < 0 or has & plan[4] != plan[4]:
                    break
                seen |= bit
                sizes[keys[key, 1], row] = 1
            else:
                pos = _value(data, pos, end, keys[key, 0], keys[key, 1], keys[key, 2],
                             keys[key, 3], row, places, sizes)  # fmt: skip
                if pos < 0:
                    break
                if sizes[keys[key, 1], row] >= 0:
                    seen |= bit
            if pos >= end:
                break
            if data[pos] == _CLOSE:
                taken[row] = pos + 1 == end and _known(data, row, seen, plan, places, sizes)
                break
            if data[pos] != _COMMA:
                break


@numba.njit(cache=True)
def _known(data: Any, row: int, seen: Any, plan: Any, places: Any, sizes: Any) -> bool:
    """Whether an event is of the known version and has what its kind needs."""
    if sizes[plan[7], row] < 0 or places[plan[7], row] != plan[9]:
        return False
    leaf = plan[8]
    for kind in range(len(plan[5])):
        first, last = plan[6][kind, 0], plan[6][kind, 1]
        if sizes[leaf, row] == last - first and _is_word(
            data, places[leaf, row], places[leaf, row] + last - first, plan[0], first, last
        ):
            return bool(seen & plan[5][kind] == plan[5][kind])
    return False
