"""Compiled value encodings of Parquet pages: integers, dictionary indexes, strings and plain words.

Owns the encodings DELTA_BINARY_PACKED, RLE_DICTIONARY and PLAIN; it must never know fields or
files. Invariant: all values are written in their order and without loss.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from minibroker.pipeline.encoding.packing import pack, put_signed, put_varint, width_of
from minibroker.pipeline.simd_words import compiled, inlined, store

BLOCK: Final = 128
"""Differences with a common minimum."""
_PARTS: Final = 4
_PART: Final = BLOCK // _PARTS
"""Differences with a common bit width."""
_LENGTH: Final = 4
"""Size of the length field before each string."""
_RUN: Final = 8
"""Shortest repetition that gets a run of its own; packed values come in groups of this size."""


@inlined
def put_differences(values: Any, count: Any, narrow: Any, work: Any, out: Any, at: Any) -> Any:
    """Delta-encode integers; return the end.

    ``narrow`` integers and their differences have 32 bits. ``work`` has ``BLOCK`` entries.
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
    """The end of the repetition that starts at ``begin``."""
    end = begin + 1
    while end < count and values[end] == values[begin]:
        end += 1
    return end


@inlined
def put_places(values: Any, count: Any, width: Any, out: Any, at: Any) -> Any:
    """Write the bit width, then dictionary indexes; return the end.

    ``values`` has ``_RUN`` scratch entries behind them.
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
    """Write booleans, eight per byte. ``values`` has seven scratch entries behind them."""
    for place in range(count, count + 7):
        values[place] = 0
    return pack(values, np.int64(0), (count + 7) & ~7, np.int64(0), np.int64(1), out, at)


@inlined
def put_words(values: Any, count: Any, out: Any, at: Any) -> Any:
    """Write 64-bit words unchanged."""
    for place in range(count):
        store(out, at + 8 * place, np.uint64(values[place]))
    return at + 8 * count


@compiled
def renumber(numbers: Any, count: Any, codes: Any, which: Any) -> Any:
    """Replace the first ``count`` numbers by consecutive ones, in the order of first occurrence.

    Returns the number of distinct ones, which ``which`` receives. ``codes`` has an entry for each
    number, all -1 before and after the call.
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
    """Write the strings of the given numbers, each after its length; return the end."""
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
    """The number of bytes that ``put_texts`` writes."""
    return int((ends[which + 1] - ends[which]).sum()) + _LENGTH * len(which)
