from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.log.cleaner.offset_map import (
    BYTES_MIN,
    ENTRY_BYTES,
    KEY_BYTES_MAX,
    OffsetMap,
    entries_max,
    short_key,
)


@given(st.sets(st.binary(max_size=80)))
def test_short_keys_are_as_different_as_keys(keys: set[bytes]) -> None:
    assert len({short_key(key) for key in keys}) == len(keys)
    assert all(len(short_key(key)) <= KEY_BYTES_MAX + 1 for key in keys)


def test_size_of_a_map_is_never_below_the_minimum() -> None:
    assert entries_max(0) == BYTES_MIN // ENTRY_BYTES
    assert entries_max(100 * BYTES_MIN) == 100 * BYTES_MIN // ENTRY_BYTES


def test_full_map_accepts_nothing_more() -> None:
    offset_map = OffsetMap(2)
    assert offset_map.put_all([(b"a", 1), (b"b", 2)], 2)
    assert offset_map.utilization == 1
    assert not offset_map.put_all([(b"a", 3)], 1)
    assert offset_map.offsets == {b"a": 1, b"b": 2}
    assert len(offset_map) == 2
