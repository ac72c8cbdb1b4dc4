"""The fast pass over a batch's records, held to the plain one that decodes them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from minibroker_protocol.errors import DecodeError
from minibroker_protocol.records import (
    HEADER_BYTES,
    RUN_MAX,
    Record,
    TooManyReadsError,
    build_batch,
    iter_records,
    parse_batch_header,
    scan_records,
)

BASE = 1_700_000_000_000

VALUES = st.one_of(st.none(), st.binary(max_size=5), st.sampled_from([b"x" * 63, b"x" * 300]))
SINGLE = st.builds(
    Record,
    timestamp=st.integers(BASE - 3, BASE + 200),
    key=VALUES,
    value=VALUES,
    headers=st.lists(st.tuples(st.text(max_size=2), VALUES), max_size=2).map(tuple),
)
RUNS = st.lists(st.tuples(SINGLE, st.sampled_from([1, 2, 5, 64, 130])), min_size=1, max_size=6).map(
    lambda runs: [record for record, count in runs for _ in range(count)]
)

LARGE = [Record(timestamp=BASE, key=b"k", value=b"x" * 70)] * 9000
"""Not copied for the scan."""


def section_of(batch: bytes) -> bytes:
    return batch[HEADER_BYTES:]


def plain(section: bytes, count: int) -> tuple[int, int, list[int]] | None:
    """Return the same three figures by decoding every record, or None if one is invalid."""
    head = bytearray(build_batch([Record(timestamp=0)])[:HEADER_BYTES])
    head[8:12] = (HEADER_BYTES - 12 + len(section)).to_bytes(4, "big")
    head[57:61] = count.to_bytes(4, "big")
    try:
        records = list(iter_records(bytes(head) + section))
    except DecodeError:
        return None
    if [record.offset for record in records] != list(range(count)):
        return None
    times = [record.timestamp for record in records]
    without_key = [i for i, record in enumerate(records) if record.key is None]
    return max(times), times.index(max(times)), without_key


def scanned(section: bytes, count: int) -> tuple[int, int, list[int]] | None:
    try:
        found = scan_records(section, count, positions_max=10_000)
    except DecodeError:
        return None
    return found.max_timestamp_delta, found.latest, found.without_key


@given(records=RUNS)
@example(records=[Record(timestamp=BASE)] * (3 * RUN_MAX))
@example(records=LARGE)
def test_scan_of_valid_batch_matches_decoding(records: list[Record]) -> None:
    section = section_of(build_batch(records))
    expected = plain(section, len(records))
    assert expected is not None
    assert scanned(section, len(records)) == expected


@given(
    records=RUNS,
    changes=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=3),
    more=st.integers(-1, 1),
)
@example(records=LARGE, changes=[(len(LARGE) * 80 + 4, 1)], more=0)
@example(records=LARGE, changes=[(5, 5)], more=0)
@example(records=LARGE, changes=[(0, 0)], more=1)
def test_scan_of_mutated_batch_matches_decoding(
    records: list[Record], changes: list[tuple[int, int]], more: int
) -> None:
    section = bytearray(section_of(build_batch(records)))
    for position, byte in changes:
        section[position % len(section)] = byte
    count = len(records) + more
    assert scanned(bytes(section), count) == plain(bytes(section), count)


@given(records=RUNS, cut=st.integers(1, 400))
def test_scan_of_truncated_batch_raises_decode_error(records: list[Record], cut: int) -> None:
    section = section_of(build_batch(records))
    with pytest.raises(DecodeError):
        scan_records(section[: max(0, len(section) - cut)], len(records))


@given(data=st.binary(max_size=300), count=st.integers(1, 50))
def test_scan_of_random_bytes_passes_or_raises_decode_error(data: bytes, count: int) -> None:
    with contextlib.suppress(DecodeError):
        scan_records(data, count)


@given(records=RUNS, first=st.integers(-3, 100), length=st.integers(0, 100))
def test_records_outside_of_timestamp_range_are_listed(
    records: list[Record], first: int, length: int
) -> None:
    batch = build_batch(records)
    base = parse_batch_header(batch).base_timestamp
    allowed = range(BASE + first - base, BASE + first + length - base)
    no_timestamp = BASE - base
    found = scan_records(
        section_of(batch),
        len(records),
        allowed_deltas=allowed,
        no_timestamp_delta=no_timestamp,
        positions_max=10_000,
    )
    assert found.invalid_timestamps == [
        position
        for position, record in enumerate(records)
        if record.timestamp != BASE and not BASE + first <= record.timestamp < BASE + first + length
    ]


def test_listed_record_positions_are_limited() -> None:
    section = section_of(build_batch([Record(timestamp=BASE)] * 100))
    found = scan_records(section, 100, allowed_deltas=range(5, 6), positions_max=7)
    assert found.without_key == found.invalid_timestamps == list(range(7))


def unlike(count: int) -> bytes:
    """A section in which no record has the size of the next one."""
    records = [Record(timestamp=BASE, value=bytes(i % 3)) for i in range(count)]
    return section_of(build_batch(records))


def test_records_alike_are_read_once_for_each_run() -> None:
    section = section_of(build_batch(LARGE))
    found = scan_records(section, len(LARGE), reads_max=100)
    assert found.reads <= 100
    assert found == scan_records(section, len(LARGE))


@pytest.mark.parametrize("allowed", [0, 1, 99])
def test_scan_ends_when_too_many_records_must_be_read(allowed: int) -> None:
    section = unlike(100)
    assert scan_records(section, 100, reads_max=100).reads == 100
    with pytest.raises(TooManyReadsError) as caught:
        scan_records(section, 100, reads_max=allowed)
    assert caught.value.reads <= allowed


def test_scan_ends_after_a_sample_that_predicts_too_many_reads() -> None:
    with pytest.raises(TooManyReadsError) as caught:
        scan_records(unlike(10_000), 10_000, reads_max=5000)
    assert caught.value.reads < 100


def test_scan_ends_after_its_reads_if_the_sample_predicted_fewer() -> None:
    alike = [Record(timestamp=BASE)] * 5000
    records = alike + [Record(timestamp=BASE, value=bytes(i % 3)) for i in range(5000)]
    with pytest.raises(TooManyReadsError) as caught:
        scan_records(section_of(build_batch(records)), len(records), reads_max=1000)
    assert caught.value.reads == 1000
