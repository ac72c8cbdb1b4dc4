from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from minibroker.pipeline.encoding.values import (
    put_bits,
    put_places,
    put_texts,
    put_words,
    renumber,
    texts_bytes,
)
from tests.pipeline.encoding.plainly import read


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 20))))
def test_renumber_assigns_numbers_by_first_occurrence(runs: list[tuple[int, int]]) -> None:
    numbers = [number for number, times in runs for _ in range(times)]
    places = np.array([*numbers, 8, 8, 8], np.int64)
    codes, which = np.full(10, -1, np.int32), np.empty(len(numbers), np.int32)
    count = renumber(places, len(numbers), codes, which)
    kept = list(dict.fromkeys(numbers))
    assert which[:count].tolist() == kept
    assert places.tolist() == [*map(kept.index, numbers), 8, 8, 8]
    assert (codes == -1).all()


@given(st.lists(st.tuples(st.integers(0, 127), st.sampled_from([1, 1, 1, 5, 8, 9, 33]))))
def test_places_are_in_runs(runs: list[tuple[int, int]]) -> None:
    numbers = [number for number, times in runs for _ in range(times)]
    places = np.array([*numbers, *[5] * 8], np.int64)
    out = np.zeros(2 * len(numbers) + 40, np.uint8)
    end = put_places(places, len(numbers), 7, out, 0)
    assert out[0] == 7
    assert read(out[1:end].tobytes(), 7, len(numbers)) == numbers


@given(st.lists(st.text(max_size=30)), st.randoms())
def test_texts_come_with_their_lengths(texts: list[str], chance) -> None:  # type: ignore[no-untyped-def]
    encoded = [text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, encoded)])
    content = np.frombuffer(b"".join(encoded) + bytes(8), np.uint8)
    chosen = chance.sample(range(len(texts)), len(texts) // 2)
    which = np.array(chosen, np.int32)
    size = texts_bytes(which, ends)
    out = np.full(size + 9, 77, np.uint8)
    assert put_texts(which, len(which), content, ends, out) == size
    wanted = b"".join(len(encoded[at]).to_bytes(4, "little") + encoded[at] for at in chosen)
    assert out[:size].tobytes() == wanted
    assert out[-1] == 77


@given(st.lists(st.booleans()))
def test_flags_are_bits(flags: list[bool]) -> None:
    out = np.zeros(len(flags) + 20, np.uint8)
    end = put_bits(np.array([*flags, *[1] * 7], np.int64), len(flags), out, 2)
    assert (
        out[2:end].tobytes() == np.packbits(np.array(flags, np.bool_), bitorder="little").tobytes()
    )


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_words_are_as_they_are(values: list[int]) -> None:
    out = np.zeros(8 * len(values) + 3, np.uint8)
    words = np.array([*values, 9], np.int64)
    assert put_words(words, len(values), out, 3) == 3 + 8 * len(values)
    assert out[3:].view().tobytes() == words[:-1].tobytes()
