from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from minibroker.pipeline.walking import walk_records
from protocol.errors import DecodeError
from protocol.records import HEADER_BYTES, Record, build_batch, iter_records

RECORDS = st.lists(
    st.builds(
        Record,
        offset=st.just(0),
        timestamp=st.integers(0, 2**40),
        key=st.none() | st.binary(max_size=9),
        value=st.none() | st.binary(max_size=200),
        headers=st.sampled_from([(), (("trace", b"7"), ("empty", None))]),
    ),
    min_size=1,
    max_size=5,
)


def walked(section: bytes, count: int) -> list[tuple[int, int, bytes | None]] | None:
    data, out = np.frombuffer(section, np.uint8), np.zeros((4, count), np.int64)
    if not walk_records(data, out):
        return None
    return [
        (int(delta), int(time), None if size < 0 else section[start : start + size])
        for delta, time, start, size in out.T
    ]


@given(RECORDS)
def test_records_are_those_of_the_protocols_reader(records: list[Record]) -> None:
    batch = build_batch(records)
    base = records[0].timestamp
    wanted = [(at, one.timestamp - base, one.value) for at, one in enumerate(iter_records(batch))]
    assert walked(batch[HEADER_BYTES:], len(records)) == wanted


@given(RECORDS, st.data())
def test_damaged_batch_is_rejected_or_read_like_decoder(
    records: list[Record], data: st.DataObject
) -> None:
    batch = bytearray(build_batch(records))
    at = data.draw(st.integers(HEADER_BYTES, len(batch) - 1))
    batch[at] = data.draw(st.integers(0, 255))
    found = walked(bytes(batch[HEADER_BYTES:]), len(records))
    try:
        wanted = [(one.offset, one.value) for one in iter_records(batch)]
    except DecodeError:
        return  # Headers are not looked into, so it may have been read.
    assert found is not None
    assert [(delta, value) for delta, _, value in found] == wanted
