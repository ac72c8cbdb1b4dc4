"""Compiled operations on 64-bit words: loads of eight bytes at once, and bit scans.

Owns the few CPU instructions that NumPy has no name for, used by the loops that read events; it
must never know what the bytes mean. Invariant: `load` reads eight bytes from a position on, so
callers keep ``SLACK`` readable bytes behind their data. Kafka has no counterpart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import numba
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import types
from numba.core.cgutils import get_item_pointer
from numba.extending import intrinsic
from numba.np.arrayobj import load_item

SLACK: Final = 128
"""Readable bytes that must follow an array's data, because words are read ahead."""

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile a function that allocates no arrays, and cache it on disk.

    Without reference counting of its arguments, which would take several times as long as
    processing a few bytes of them.
    """
    options: Any = {"cache": True, "_nrt": False}
    made: Function = numba.njit(**options)(function)
    return made


def inlined(function: Function) -> Function:
    """Compile for inlining into a loop: passing arrays would take several times as long as the
    work.
    """
    options: Any = {"cache": True, "_nrt": False, "forceinline": True}
    made: Function = numba.njit(**options)(function)
    return made


_PAIRS: Final = np.uint64(0x0000_00FF_0000_00FF)
_ZEROS: Final = np.uint64(0x3030_3030_3030_3030)
_NINES: Final = np.uint64(0x7676_7676_7676_7676)
_TOPS: Final = np.uint64(0x8080_8080_8080_8080)
_ONES: Final = np.uint64(0x0101_0101_0101_0101)
_QUOTES: Final = np.uint64(0x2222_2222_2222_2222)
_BACKSLASHES: Final = np.uint64(0x5C5C_5C5C_5C5C_5C5C)
_BLANKS: Final = np.uint64(0x2020_2020_2020_2020)
_HUNDRED: Final = np.uint64(0x000F_4240_0000_0064)
_TEN_THOUSAND: Final = np.uint64(0x0000_2710_0000_0001)


def _load(typing: Any, data: Any, at: Any) -> Any:  # noqa: ARG001
    """The eight bytes of ``data`` at ``at``, in little-endian order."""

    def generate(context: Any, builder: Any, signature: Any, words: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, words[0])
        place = get_item_pointer(  # type: ignore[no-untyped-call]
            context, builder, signature.args[0], array, [words[1]], wraparound=False
        )
        pointer = builder.bitcast(place, ir.IntType(64).as_pointer())
        loaded = builder.load(pointer)
        loaded.align = 1
        return loaded

    return types.uint64(data, types.intp), generate


def _store(typing: Any, data: Any, at: Any, word: Any) -> Any:  # noqa: ARG001
    """Write a word to the eight bytes of ``data`` at ``at``, in little-endian order."""

    def generate(context: Any, builder: Any, signature: Any, words: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, words[0])
        place = get_item_pointer(  # type: ignore[no-untyped-call]
            context, builder, signature.args[0], array, [words[1]], wraparound=False
        )
        pointer = builder.bitcast(place, ir.IntType(64).as_pointer())
        builder.store(words[2], pointer).align = 1
        return context.get_dummy_value()

    return types.void(data, types.intp, types.uint64), generate


def _item(typing: Any, array: Any, at: Any) -> Any:  # noqa: ARG001
    """An element at a non-negative index, without the index check of plain indexing."""
    return array.dtype(array, types.intp), _element


def _cell(typing: Any, array: Any, row: Any, column: Any) -> Any:  # noqa: ARG001
    """The same for a two-dimensional array."""
    return array.dtype(array, types.intp, types.intp), _element


def _element(context: Any, builder: Any, signature: Any, words: Any) -> Any:
    kind, array, at = signature.args[0], words[0], list(words[1:])
    made = context.make_array(kind)(context, builder, array)
    place = get_item_pointer(  # type: ignore[no-untyped-call]
        context, builder, kind, made, at, wraparound=False
    )
    return load_item(context, builder, kind, place)  # type: ignore[no-untyped-call]


def _trailing(typing: Any, word: Any) -> Any:  # noqa: ARG001
    """The number of zero bits below the lowest set bit; 64 if none is set."""

    def generate(context: Any, builder: Any, signature: Any, words: Any) -> Any:  # noqa: ARG001
        return builder.cttz(words[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), generate


def _leading(typing: Any, word: Any) -> Any:  # noqa: ARG001
    """The number of zero bits above the highest set bit; 64 if none is set."""

    def generate(context: Any, builder: Any, signature: Any, words: Any) -> Any:  # noqa: ARG001
        return builder.ctlz(words[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), generate


def _high(typing: Any, one: Any, other: Any) -> Any:  # noqa: ARG001
    """The upper 64 bits of the product of two words."""

    def generate(context: Any, builder: Any, signature: Any, words: Any) -> Any:  # noqa: ARG001
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(words[0], wide), builder.zext(words[1], wide))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), generate


load: Final[Any] = intrinsic(_load)
store: Final[Any] = intrinsic(_store)
item: Final[Any] = intrinsic(_item)
cell: Final[Any] = intrinsic(_cell)
trailing: Final[Any] = intrinsic(_trailing)
leading: Final[Any] = intrinsic(_leading)
high: Final[Any] = intrinsic(_high)


@inlined
def digits(word: Any) -> Any:
    """(the number of decimal digits at the start of a word, their value)."""
    values = word ^ _ZEROS
    count = trailing(((values + _NINES) | values) & _TOPS) >> np.uint64(3)
    if count == 0:
        return count, count
    # Pad with leading zeros, so that there are always eight digits.
    values <<= np.uint64(64) - (count << np.uint64(3))
    values = values * np.uint64(10) + (values >> np.uint64(8))
    lower = (values & _PAIRS) * _HUNDRED
    upper = ((values >> np.uint64(16)) & _PAIRS) * _TEN_THOUSAND
    return count, (lower + upper) >> np.uint64(32)


@inlined
def count_plain(word: Any) -> Any:
    """Count the bytes at the start of a word that are printable ASCII, without quote and backslash.

    A mark can only be wrong above a correct one.
    """
    quotes, slashes = word ^ _QUOTES, word ^ _BACKSLASHES
    marks = ((word - _BLANKS) & ~word) | word
    marks |= ((quotes - _ONES) & ~quotes) | ((slashes - _ONES) & ~slashes)
    return trailing(marks & _TOPS) >> np.uint64(3)
