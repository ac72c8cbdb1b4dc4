"""One record found by its time inside a batch, in a step or outside the loop."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.log.batch_search import (
    SEARCH_STEP_RECORDS_MAX,
    LargeBatchError,
    TimeQuery,
    TimestampOffset,
    search_in_step,
)
from minibroker.broker.log.validation import STEP_BYTES_MAX
from minibroker_protocol.compression import Compression
from minibroker_protocol.records import (
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    Record,
    TimestampType,
    build_batch,
    parse_batch_header,
)


@dataclass
class Searched:
    """A batch and the answer to a query about it, however it was found."""

    answer: TimestampOffset | None
    was_large: bool


def search(records: list[Record], query: TimeQuery, **options: Any) -> Searched:
    data = build_batch(records, base_offset=100, partition_leader_epoch=4, **options)
    header = parse_batch_header(data)
    try:
        return Searched(search_in_step(data, header, query), was_large=False)
    except LargeBatchError as large:
        return Searched(large.search(), was_large=True)


@given(
    times=st.lists(st.integers(0, 20), min_size=1, max_size=20),
    timestamp=st.integers(0, 21),
    first_offset=st.integers(95, 125),
    codec=st.sampled_from(Compression),
)
def test_search_finds_first_record_at_or_after_timestamp(
    times: list[int], timestamp: int, first_offset: int, codec: Compression
) -> None:
    expected = next(
        (
            TimestampOffset(time, offset, 4)
            for offset, time in enumerate(times, 100)
            if time >= timestamp and offset >= first_offset
        ),
        None,
    )
    records = [Record(timestamp=time) for time in times]
    result = search(records, TimeQuery(timestamp, first_offset), compression=codec)
    assert result == Searched(expected, was_large=False)


@given(timestamp=st.integers(8, 10), first_offset=st.integers(95, 105))
def test_search_in_log_append_time_batch_uses_batch_timestamp(
    timestamp: int, first_offset: int
) -> None:
    kind = TimestampType.LOG_APPEND_TIME
    result = search(
        [Record(timestamp=9)] * 3, TimeQuery(timestamp, first_offset), timestamp_type=kind
    )
    late = timestamp > 9 or first_offset > 102
    assert result.answer == (None if late else TimestampOffset(9, max(100, first_offset), 4))


@pytest.mark.parametrize(
    ("records", "codec"),
    [
        ([Record(timestamp=5)] * (SEARCH_STEP_RECORDS_MAX + 1), Compression.NONE),
        ([Record(timestamp=5, value=bytes(STEP_BYTES_MAX))], Compression.ZSTD),
    ],
    ids=["records", "bytes"],
)
def test_large_batch_is_searched_outside_of_event_loop(
    records: list[Record], codec: Compression
) -> None:
    result = search(records, TimeQuery(5), compression=codec)
    assert result == Searched(TimestampOffset(5, 100, 4), was_large=True)
    assert search(records, TimeQuery(6), compression=codec).answer is None


def test_records_of_all_sizes_are_found() -> None:
    """Varints of more than one byte: of lengths, and of deltas of times and offsets."""
    records = [
        Record(timestamp=time * 1000, key=bytes(time), value=bytes(time), headers=(("h", b"v"),))
        for time in range(200)
    ]
    for time in range(200):
        expected = TimestampOffset(time * 1000, 100 + time, 4)
        assert search(records, TimeQuery(time * 1000)).answer == expected


@pytest.mark.parametrize("section", [b"", b"\xff" * 40, b"\x01\0\0\0\0\0\0" * 2])
def test_damaged_batch_is_found_as_a_whole(section: bytes) -> None:
    """Earlier versions stored batches without checking their records."""
    batch = bytearray(build_batch([Record(timestamp=5)] * 2, base_offset=100))
    batch[HEADER_BYTES:] = section
    struct.pack_into(">i", batch, 8, len(batch) - LENGTH_OVERHEAD_BYTES)
    header = parse_batch_header(batch)
    found = search_in_step(bytes(batch), header, TimeQuery(5))
    assert found == TimestampOffset(5, 101, header.partition_leader_epoch)
