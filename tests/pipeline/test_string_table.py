from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from minibroker.pipeline.simd_words import SLACK
from minibroker.pipeline.string_table import (
    StringTable,
    hash_of,
    new_string_table,
    string_number,
    strings_of,
)


def add(texts: StringTable, text: bytes) -> int:
    data = np.frombuffer(b"ab" + text + b"c" * SLACK, np.uint8)
    return int(string_number(*texts, data, 2, len(text), np.uint64(hash_of(data, 2, len(text)))))


@given(st.lists(st.binary(max_size=20) | st.sampled_from([b"", b"a", b"a\0", b"12345678"])))
def test_only_equal_strings_share_a_number(found: list[bytes]) -> None:
    texts = new_string_table(1000)
    numbers = [add(texts, text) for text in found]
    kept = list(dict.fromkeys(found))
    assert numbers == [kept.index(text) for text in found]
    assert strings_of(texts) == kept


def test_growing_table_keeps_all_strings() -> None:
    texts, chance = new_string_table(1 << 20), random.Random(1)
    found = list({chance.randbytes(chance.randrange(12)) for _ in range(20_000)})
    slots = int(texts.count[1])
    assert [add(texts, text) for text in found] == list(range(len(found)))
    assert texts.count[1] > slots
    assert texts.count[1] >= 2 * len(found)
    assert [add(texts, text) for text in found] == list(range(len(found)))


def test_strings_with_equal_hash_get_different_numbers() -> None:
    texts = new_string_table(100)
    data = np.frombuffer(b"onetwo" + bytes(SLACK), np.uint8)
    numbers = [int(string_number(*texts, data, at, 3, np.uint64(7))) for at in (0, 3, 0, 3)]
    assert numbers == [0, 1, 0, 1]


def test_probing_wraps_around_at_last_slot() -> None:
    texts = new_string_table(1 << 14)
    slots = int(texts.count[1])
    last = np.uint64((slots - 1) << 20)
    found = np.arange(2_000, dtype=np.int32)
    data = np.frombuffer(found.tobytes() + bytes(SLACK), np.uint8)
    for _ in range(2):
        numbers = [int(string_number(*texts, data, 4 * at, 4, last)) for at in range(len(found))]
        assert numbers == found.tolist()
    assert texts.count[1] == slots
    assert texts.slots[slots - 1] == 0
    assert texts.slots[: len(found) - 1].tolist() == found[1:].tolist()
