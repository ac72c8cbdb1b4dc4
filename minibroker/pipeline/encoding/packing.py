"""Compiled bit packing and varints, shared by Parquet's encodings.

Owns bit packing, lowest bits first, and variable-length integers; it must never know what the
numbers mean. Invariant: every function returns the end of its output. It may overwrite up to eight
bytes after the end, for which callers leave room.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from minibroker.pipeline.simd_words import inlined, leading, store

_BYTE = np.uint64(7)
_MORE = np.uint64(0x80)
_WORD = np.uint64(64)


@inlined
def put_varint(value: Any, out: Any, at: Any) -> Any:
    """Write an unsigned varint, seven bits per byte."""
    while value >= _MORE:
        out[at] = value & np.uint64(0x7F) | _MORE
        value >>= _BYTE
        at += 1
    out[at] = value
    return at + 1


@inlined
def put_signed(value: Any, out: Any, at: Any) -> Any:
    """Write a signed number as a zigzag varint."""
    return put_varint(np.uint64((value << 1) ^ (value >> 63)), out, at)


@inlined
def pack(values: Any, first: Any, count: Any, least: Any, width: Any, out: Any, at: Any) -> Any:
    """Pack ``count`` values starting at ``first``, each minus ``least``, in ``width`` bits.

    The count is a multiple of eight, and the width at most 64.
    """
    word, filled, size = np.uint64(0), np.uint64(0), np.uint64(width)
    for place in range(first, first + count):
        value = np.uint64(values[place] - least)
        word |= value << filled
        filled += size
        if filled >= _WORD:
            store(out, at, word)
            at += 8
            filled -= _WORD
            word = value >> (size - filled) if filled else np.uint64(0)
    store(out, at, word)
    return at + np.int64(filled >> np.uint64(3))


@inlined
def width_of(value: Any) -> Any:
    """The number of significant bits of an unsigned number."""
    return np.int64(_WORD - leading(np.uint64(value)))
