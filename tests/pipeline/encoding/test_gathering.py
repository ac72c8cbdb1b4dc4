from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from minibroker.pipeline.encoding.gathering import TOGETHER, gather

MASKS = st.sampled_from([0, 1, 2, 3, -1])
FIELDS = np.array([[1, 0, 0], [0, 0, 1], [1, 1, 0], [0, 1, 63]])


@given(st.lists(st.tuples(MASKS, MASKS, st.integers(1, 90)), min_size=1), st.randoms())
def test_values_that_there_are_and_which(runs, chance) -> None:  # type: ignore[no-untyped-def]
    masks = [(one, other) for one, other, times in runs for _ in range(times)]
    values = np.array([[7 * at, 7 * at + 1, *both] for at, both in enumerate(masks)], np.int64)
    rows = np.array(chance.sample(range(len(masks)), chance.randint(1, len(masks))), np.int64)
    blocks = -(-len(rows) // TOGETHER)
    room = np.zeros((len(FIELDS), len(rows) + 1), np.int64)
    bits = np.full((len(FIELDS), blocks), 99, np.uint64)
    counts = np.full(len(FIELDS), 99, np.int64)
    gather(values, rows, 2, FIELDS, np.empty(TOGETHER, np.uint64), room, bits, counts)
    for number, (column, mask, bit) in enumerate(FIELDS.tolist()):
        there = [int(values[row, 2 + mask]) >> bit & 1 == 1 for row in rows]
        wanted = [int(values[row, column]) for row, real in zip(rows, there, strict=True) if real]
        assert room[number, : counts[number]].tolist() == wanted
        told = np.unpackbits(bits[number].view(np.uint8), bitorder="little").astype(bool).tolist()
        assert told == there + [False] * (blocks * TOGETHER - len(rows))
