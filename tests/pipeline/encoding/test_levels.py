from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from minibroker.pipeline.encoding.levels import put_levels
from tests.pipeline.encoding.plainly import number_at, read

RUNS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from([1, 1, 2, 7, 8, 9, 16, 100])), min_size=1
)


def bits(flags: list[bool]) -> np.ndarray:
    return np.packbits([*flags, *[False] * 8], bitorder="little")


@given(RUNS, st.booleans())
def test_definition_levels_are_read_back(runs: list[tuple[int, int]], nested: bool) -> None:
    levels = [level if nested else level // 2 for level, size in runs for _ in range(size)]
    outer, inner = bits([each > 0 for each in levels]), bits([each > nested for each in levels])
    out = np.full(len(levels) + 40, 77, np.uint8)
    end = put_levels(outer, inner, len(levels), nested, out, 5)
    assert read(out[5:end].tobytes(), 2 if nested else 1, len(levels)) == levels
    assert end - 5 <= len(levels) // 2 + 8


def test_a_level_of_all_is_one_run() -> None:
    for count in (1, 7, 8, 1001):
        for level in range(3):
            out = np.zeros(9, np.uint8)
            outer, inner = bits([level > 0] * count), bits([level > 1] * count)
            end = put_levels(outer, inner, count, True, out, 0)
            assert number_at(out.tobytes()) == (count << 1, end - 1)
            assert out[end - 1] == level
