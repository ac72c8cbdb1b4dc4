"""Values as Parquet's pages have them, compiled: whole numbers, texts, and what is as it is.

Owns the encodings DELTA_BINARY_PACKED, RLE_DICTIONARY and PLAIN; it must never know fields or
files. Invariant: values are written in their order and nothing is lost, whatever they are.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from minibroker.pipeline.encoding.packing import pack, put_signed, put_varint, width_of
from minibroker.pipeline.words import compiled, inlined, store

BLOCK: Final = 128
"""Differences that have one least one."""
_PARTS: Final = 4
_PART: Final = BLOCK // _PARTS
"""Differences that have one width."""
_LENGTH: Final = 4
"""Bytes before each text that say how long it is."""
_RUN: Final = 8
"""As many times the same is worth a run of its own; what isn't comes in groups of so many."""


@inlined
def put_differences(values: Any, count: Any, narrow: Any, work: Any, out: Any, at: Any) -> Any:
    """Whole numbers by what each differs from the one before; returns where they end.

    ``narrow`` ones have 32 bits, and so have their differences. ``work`` has ``BLOCK`` places.
    """
    at = put_varint(np.uint64(BLOCK), out, at)
    at = put_varint(np.uint64(_PARTS), out, at)
    at = put_varint(np.uint64(count), out, at)
    at = put_signed(values[0] if count else np.int64(0), out, at)
    for begin in range(1, count, BLOCK):
        size = min(BLOCK, count - begin)
        for place in range(size):
            difference = values[begin + place] - values[begin + place - 1]
            work[place] = np.int64(np.int32(difference)) if narrow else difference
        least = work[0]
        for place in range(size):
            least = min(least, work[place])
        for place in range(size, BLOCK):
            work[place] = least
        at = put_signed(least, out, at)
        widths = at
        at += _PARTS
        for part in range(_PARTS):
            bits = np.uint64(0)
            for place in range(part * _PART, (part + 1) * _PART):
                bits |= np.uint64(work[place] - least)
            width = width_of(bits)
            out[widths + part] = width
            if width:
                at = pack(work, part * _PART, _PART, least, width, out, at)
    return at


@inlined
def _alike(values: Any, begin: Any, count: Any) -> Any:
    """Where the values that are as the first one end."""
    end = begin + 1
    while end < count and values[end] == values[begin]:
        end += 1
    return end


@inlined
def put_places(values: Any, count: Any, width: Any, out: Any, at: Any) -> Any:
    """Places in a dictionary, after how many bits they have; returns where they end.

    There are ``_RUN`` places more than values.
    """
    out[at] = width
    at += 1
    for place in range(count, count + _RUN):
        values[place] = 0
    begin = np.int64(0)
    while begin < count:
        end = _alike(values, begin, count)
        if end - begin >= _RUN:
            at = put_varint(np.uint64((end - begin) << 1), out, at)
            store(out, at, np.uint64(values[begin]))
            at += (width + 7) >> 3
            begin = end
            continue
        end = begin + _RUN
        while end < count and _alike(values, end, min(end + _RUN, count)) - end < _RUN:
            end += _RUN
        at = put_varint(np.uint64((end - begin) // _RUN << 1 | 1), out, at)
        at = pack(values, begin, end - begin, np.int64(0), width, out, at)
        begin = end
    return at


@inlined
def put_bits(values: Any, count: Any, out: Any, at: Any) -> Any:
    """Zeros and ones, eight a byte. There are seven places more than values."""
    for place in range(count, count + 7):
        values[place] = 0
    return pack(values, np.int64(0), (count + 7) & ~7, np.int64(0), np.int64(1), out, at)


@inlined
def put_words(values: Any, count: Any, out: Any, at: Any) -> Any:
    """Words of eight bytes as they are."""
    for place in range(count):
        store(out, at + 8 * place, np.uint64(values[place]))
    return at + 8 * count


@compiled
def renumber(numbers: Any, count: Any, codes: Any, which: Any) -> Any:
    """Give the first ``count`` numbers new ones from 0 on, in the order in which they come.

    Returns how many different ones there are; ``which`` gets them. ``codes`` has a place for each
    number, and is full of -1, also afterwards.
    """
    found = 0
    before, code = np.int64(-1), np.int32(0)
    for place in range(count):
        number = numbers[place]
        if number != before:
            code = codes[number]
            if code < 0:
                code = np.int32(found)
                codes[number] = code
                which[found] = number
                found += 1
            before = number
        numbers[place] = code
    for place in range(found):
        codes[which[place]] = -1
    return found


@compiled
def put_texts(which: Any, count: Any, content: Any, ends: Any, out: Any) -> Any:
    """Texts by their numbers, with their lengths before them; returns where they end."""
    at = np.int64(0)
    for place in range(count):
        begin = ends[which[place]]
        size = ends[which[place] + 1] - begin
        store(out, at, np.uint64(size))
        at += _LENGTH
        for byte in range(size):
            out[at + byte] = content[begin + byte]
        at += size
    return at


def texts_bytes(which: Any, ends: Any) -> int:
    """How many bytes ``put_texts`` writes."""
    return int((ends[which + 1] - ends[which]).sum()) + _LENGTH * len(which)
