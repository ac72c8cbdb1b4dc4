from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.log.segment import (
    OFFSET_ENTRY,
    TIME_ENTRY,
    OffsetIndex,
    TimeIndex,
    last_in_file,
    search_file,
)
from minibroker_protocol.errors import DecodeError

GROWING = st.lists(st.integers(0, 2**31 - 1), unique=True, max_size=60).map(sorted)


@given(offsets=GROWING, base=st.integers(0, 2**50), asked=st.integers(-5, 2**31))
def test_index_in_memory_and_in_file_find_same_position(
    tmp_path_factory: pytest.TempPathFactory, offsets: list[int], base: int, asked: int
) -> None:
    index = OffsetIndex(base)
    for slot, offset in enumerate(offsets):
        index.append(base + offset, slot * 7)
    below = [slot for slot, offset in enumerate(offsets) if offset <= asked]
    path = tmp_path_factory.mktemp("index") / "file"
    path.write_bytes(index.encode())
    assert index.position(base + asked) == (below[-1] * 7 if below else 0)
    assert search_file(str(path), OFFSET_ENTRY, asked) == (below[-1] * 7 if below else None)
    decoded = OffsetIndex.decode(path.read_bytes(), base)
    assert (decoded.encode(), len(decoded)) == (index.encode(), len(offsets))
    assert decoded.last_position == index.last_position
    last = (offsets[-1], (len(offsets) - 1) * 7) if offsets else None
    assert last_in_file(str(path), OFFSET_ENTRY) == last


def test_offset_index_has_kafka_encoding() -> None:
    index = OffsetIndex(1000)
    index.append(1007, 4200)
    index.append(1019, 9000)
    assert index.encode() == bytes.fromhex("00000007 00001068 00000013 00002328")
    assert index.encode(1) == index.encode()[8:]


def test_time_index_has_kafka_encoding_and_only_increasing_times() -> None:
    index = TimeIndex(1000)
    assert index.last == (-1, 1000)
    index.append(-1, 1000)
    index.append(77, 1004)
    index.append(77, 1006)
    index.append(50, 1007)
    index.append(78, 1009)
    assert index.encode() == bytes.fromhex("000000000000004d 00000004 000000000000004e 00000009")
    assert (index.last, len(index)) == ((78, 1009), 2)
    assert [index.offset(time) for time in (76, 77, 78, 99)] == [1000, 1004, 1009, 1009]
    assert TimeIndex.decode(index.encode(), 1000).last == (78, 1009)


def test_time_index_is_searched_in_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(TIME_ENTRY.pack(5, 1) + TIME_ENTRY.pack(9, 3))
    result = [search_file(str(path), TIME_ENTRY, time) for time in (4, 5, 8, 9)]
    assert result == [None, 1, 1, 3]


@pytest.mark.parametrize("data", [b"\x00" * 7, bytes(16), OFFSET_ENTRY.pack(5, 0) * 2])
def test_index_with_nonincreasing_entries_is_rejected(data: bytes) -> None:
    with pytest.raises(DecodeError):
        OffsetIndex.decode(data, 0)
