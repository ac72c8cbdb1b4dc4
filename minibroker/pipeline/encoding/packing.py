"""Numbers in as few bits as they need, compiled: what Parquet's encodings have in common.

Owns bits packed one after the other, the lowest first, and numbers of any length; it must never
know what numbers mean. Invariant: every function returns where it stopped writing, and may have
touched up to eight bytes behind that, so whoever calls it has room for them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from minibroker.pipeline.words import inlined, leading, store

_BYTE = np.uint64(7)
_MORE = np.uint64(0x80)
_WORD = np.uint64(64)


@inlined
def put_varint(value: Any, out: Any, at: Any) -> Any:
    """An unsigned number, seven bits a byte."""
    while value >= _MORE:
        out[at] = value & np.uint64(0x7F) | _MORE
        value >>= _BYTE
        at += 1
    out[at] = value
    return at + 1


@inlined
def put_signed(value: Any, out: Any, at: Any) -> Any:
    """A signed number, so that small ones of both signs are short."""
    return put_varint(np.uint64((value << 1) ^ (value >> 63)), out, at)


@inlined
def pack(values: Any, first: Any, count: Any, least: Any, width: Any, out: Any, at: Any) -> Any:
    """``count`` values from ``first`` on, less ``least`` each, in ``width`` bits each.

    The count is a multiple of eight, and the width 64 at most.
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
    """How many bits an unsigned number has."""
    return np.int64(_WORD - leading(np.uint64(value)))
