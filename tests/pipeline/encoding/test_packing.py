from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from minibroker.pipeline.encoding.packing import pack, put_signed, put_varint, width_of
from tests.pipeline.encoding.plainly import number_at

LONG = st.integers(-(2**63), 2**63 - 1)


@given(st.integers(0, 2**64 - 1))
def test_numbers_have_any_length(value: int) -> None:
    out = np.zeros(20, np.uint8)
    end = put_varint(np.uint64(value), out, 3)
    assert number_at(out[3:].tobytes()) == (value, end - 3)
    assert width_of(np.uint64(value)) == value.bit_length()


@given(LONG)
def test_small_ones_of_both_signs_are_short(value: int) -> None:
    out = np.zeros(20, np.uint8)
    end = put_signed(np.int64(value), out, 0)
    found, size = number_at(out.tobytes())
    assert (found >> 1 if found % 2 == 0 else -(found >> 1) - 1) == value
    assert size == end
    assert (size == 1) == (-64 <= value < 64)


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=12), st.integers(1, 64), LONG)
def test_bits_follow_one_another(values: list[int], width: int, least: int) -> None:
    small = [value % 2**width for value in values * 8]
    moved = np.array([(value + least) % 2**64 for value in small], np.uint64).view(np.int64)
    out = np.full(8 * len(small) + 10, 77, np.uint8)
    end = pack(np.append(np.int64(1), moved), 1, len(small), np.int64(least), width, out, 2)
    assert (end - 2) * 8 == width * len(small)
    packed = int.from_bytes(out[2:end].tobytes(), "little")
    assert [packed >> width * at & (2**width - 1) for at in range(len(small))] == small
    assert (out[end + 8 :] == 77).all()
