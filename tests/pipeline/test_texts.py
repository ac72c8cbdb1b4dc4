from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from minibroker.pipeline.texts import Texts, hash_of, new_texts, number_of, texts_of
from minibroker.pipeline.words import SLACK


def add(texts: Texts, text: bytes) -> int:
    data = np.frombuffer(b"ab" + text + b"c" * SLACK, np.uint8)
    return int(number_of(*texts, data, 2, len(text), np.uint64(hash_of(data, 2, len(text)))))


@given(st.lists(st.binary(max_size=20) | st.sampled_from([b"", b"a", b"a\0", b"12345678"])))
def test_equal_texts_have_one_number_and_others_another(found: list[bytes]) -> None:
    texts = new_texts(1000)
    numbers = [add(texts, text) for text in found]
    kept = list(dict.fromkeys(found))
    assert numbers == [kept.index(text) for text in found]
    assert texts_of(texts) == kept


def test_many_are_found_again() -> None:
    texts, chance = new_texts(1 << 20), random.Random(1)
    found = list({chance.randbytes(chance.randrange(12)) for _ in range(20_000)})
    slots = int(texts.count[1])
    assert [add(texts, text) for text in found] == list(range(len(found)))
    assert texts.count[1] > slots
    assert texts.count[1] >= 2 * len(found)
    assert [add(texts, text) for text in found] == list(range(len(found)))


def test_texts_with_equal_hash_get_different_numbers() -> None:
    texts = new_texts(100)
    data = np.frombuffer(b"onetwo" + bytes(SLACK), np.uint8)
    numbers = [int(number_of(*texts, data, at, 3, np.uint64(7))) for at in (0, 3, 0, 3)]
    assert numbers == [0, 1, 0, 1]


def test_many_that_all_lead_to_the_last_place_go_on_at_the_first() -> None:
    texts = new_texts(1 << 14)
    slots = int(texts.count[1])
    last = np.uint64((slots - 1) << 20)
    found = np.arange(2_000, dtype=np.int32)
    data = np.frombuffer(found.tobytes() + bytes(SLACK), np.uint8)
    for _ in range(2):
        numbers = [int(number_of(*texts, data, 4 * at, 4, last)) for at in range(len(found))]
        assert numbers == found.tolist()
    assert texts.count[1] == slots
    assert texts.slots[slots - 1] == 0
    assert texts.slots[: len(found) - 1].tolist() == found[1:].tolist()
