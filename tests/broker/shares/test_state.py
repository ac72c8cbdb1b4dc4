"""The stored state of share partitions, and its records."""

from __future__ import annotations

from random import Random

import pytest

from minibroker.broker.shares.state import (
    RecordState,
    ShareEntry,
    ShareKey,
    ShareState,
    StateBatch,
    StateUpdate,
    decode_share_entry,
    is_share_key,
    merged,
)
from minibroker_protocol.errors import DecodeError, UnsupportedVersion

KEY = ShareKey("g", bytes(range(16)), 3)
AVAILABLE, ACKNOWLEDGED, ARCHIVED = (
    RecordState.AVAILABLE,
    RecordState.ACKNOWLEDGED,
    RecordState.ARCHIVED,
)


def batch(first: int, last: int, state: int = 0, deliveries: int = 1) -> StateBatch:
    return StateBatch(first, last, state, deliveries)


@pytest.mark.parametrize(
    ("old", "new", "start", "expected"),
    [
        ([], [batch(0, 9)], 0, [batch(0, 9)]),
        ([batch(0, 9)], [batch(10, 19)], 0, [batch(0, 19)]),
        ([batch(0, 9)], [batch(12, 19)], 0, [batch(0, 9), batch(12, 19)]),
        ([batch(0, 9)], [], 5, [batch(5, 9)]),
        ([batch(0, 9)], [], 10, []),
        ([batch(0, 9)], [batch(3, 4, 2)], 0, [batch(0, 2), batch(3, 4, 2), batch(5, 9)]),
        ([batch(0, 9, 0, 2)], [batch(3, 4, 0, 1)], 0, [batch(0, 9, 0, 2)]),
        ([batch(3, 4, 2)], [batch(0, 9, 0, 2)], 0, [batch(0, 9, 0, 2)]),
        ([batch(3, 4, 2), batch(7, 7, 4)], [batch(0, 9)], 0,
         [batch(0, 2), batch(3, 4, 2), batch(5, 6), batch(7, 7, 4), batch(8, 9)]),
    ],
)  # fmt: skip
def test_batches_are_merged(
    old: list[StateBatch], new: list[StateBatch], start: int, expected: list[StateBatch]
) -> None:
    assert list(merged(old, new, start)) == expected


@pytest.mark.parametrize("seed", range(30))
def test_merged_batches_say_of_each_offset_what_is_in_force(seed: int) -> None:
    random = Random(seed)
    batches: tuple[StateBatch, ...] = ()
    expected: dict[int, tuple[int, int]] = {}
    for _ in range(40):
        first = random.randrange(60)
        last = first + random.randrange(8)
        change = batch(first, last, random.choice((0, 2, 4)), random.randint(1, 5))
        batches = merged(batches, [change], 0)
        for offset in range(first, last + 1):
            order = change.deliveries, change.state
            expected[offset] = max(expected.get(offset, (-1, -1)), order)
        found = {
            offset: (each.deliveries, each.state)
            for each in batches
            for offset in range(each.first, each.last + 1)
        }
        assert found == expected
        assert list(batches) == sorted(batches)


@pytest.mark.parametrize(
    "value",
    [
        None,
        ShareState(1, 2, 3, 4, 5, 6, 7, (batch(4, 5, 2), batch(6, 7, 0, 3))),
        StateUpdate(1, 2, 3, 4, (batch(3, 5, 4, 5),)),
    ],
)
def test_record_can_be_read_again(value: ShareState | StateUpdate | None) -> None:
    entry = ShareEntry(KEY, value)
    assert decode_share_entry(*entry.encode()) == entry


def test_records_have_kafka_s_bytes() -> None:
    key, value = ShareEntry(KEY, StateUpdate(1, 2, 3, 4, (batch(3, 5, 4, 5),))).encode()
    assert key == b"\0\1" + b"\0\1g" + bytes(range(16)) + b"\0\0\0\3"
    assert value == bytes.fromhex(
        "0000 00000001 00000002 0000000000000003"
        "02 0000000000000003 0000000000000005 04 0005 00 01 00 04 00000004"
    )


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        (b"\0\0\0\1g", None, DecodeError),
        (ShareEntry(KEY, None).encode()[0], b"\0", DecodeError),
        (ShareEntry(KEY, None).encode()[0], b"\0\7", UnsupportedVersion),
    ],
)
def test_malformed_record_raises(key: bytes, value: bytes | None, error: type[Exception]) -> None:
    with pytest.raises(error):
        decode_share_entry(key, value)


def test_record_of_another_kind_is_none() -> None:
    assert decode_share_entry(b"\0\7anything", b"") is None


@pytest.mark.parametrize(
    ("text", "is_valid"),
    [
        (KEY.text, True),
        ("a:b:" + KEY.text, True),
        (KEY.text.removeprefix("g"), False),
        ("g:" + "A" * 22, False),
        ("g:" + "A" * 22 + ":x", False),
        ("g:short:1", False),
        ("", False),
    ],
)
def test_keys_of_share_partitions(text: str, is_valid: bool) -> None:
    assert is_share_key(text) is is_valid
