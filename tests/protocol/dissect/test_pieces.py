"""Files of several frames, and log segments."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker_protocol.dissect.pieces import dissect_segment, frames, is_segment
from minibroker_protocol.records import Record, build_batch

SEGMENT = build_batch([Record(timestamp=1, value=b"a")] * 2) + build_batch(
    [Record(timestamp=2, value=b"b")], base_offset=2
)
BODIES = st.lists(st.binary(min_size=1, max_size=20), min_size=1, max_size=5)


@given(bodies=BODIES)
def test_consecutive_frames_are_split(bodies: list[bytes]) -> None:
    wanted = [len(body).to_bytes(4, "big") + body for body in bodies]
    assert frames(b"".join(wanted)) == wanted


@given(data=st.binary(max_size=40))
def test_split_frames_contain_all_bytes(data: bytes) -> None:
    assert b"".join(frames(data)) == data


def test_frame_without_size_prefix_is_one_frame() -> None:
    data = bytes.fromhex("00120003000000070003666f6f000261023100")
    assert frames(data) == [data]


def test_segment_is_recognized_by_its_first_batch() -> None:
    assert is_segment(SEGMENT)
    assert is_segment(SEGMENT[:70])
    assert not is_segment(SEGMENT[:60])
    assert not is_segment(b"\x00" + SEGMENT)
    assert not is_segment(SEGMENT[:17] + b"\x00\x00\x00\x00" + SEGMENT[21:])


def test_segment_shows_every_batch_and_record() -> None:
    result = dissect_segment(SEGMENT)
    assert result.problem is None
    names = [node.name for node in result.root.walk()]
    assert names.count("batch") == 2
    assert [name for name in names if name.startswith("record ")] == [
        "record 0",
        "record 1",
        "record 2",
    ]


@pytest.mark.parametrize("cut", [1, 30])
def test_truncated_segment_has_problem_with_offset(cut: int) -> None:
    result = dissect_segment(SEGMENT[:-cut])
    assert result.problem is not None
    assert "at byte" in result.problem
