"""Batches of one plain record are read as the general functions read them."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from minibroker_protocol.compression import Compression
from minibroker_protocol.records import (
    HEADER_BYTES,
    Record,
    build_batch,
    parse_batch_header,
    read_plain_batch,
    scan_records,
    verify_crc,
)

FIELDS = st.none() | st.binary(max_size=80) | st.binary(min_size=60, max_size=200)
TIMES = st.integers(0, 2**60)


def read_generally(data: bytes) -> tuple[object, int, bool]:
    """The header, the timestamp, and whether there is a key, of a batch of one record."""
    header = parse_batch_header(data)
    assert verify_crc(data)
    assert (header.base_offset, header.attributes, header.size) == (0, 0, len(data))
    scan = scan_records(memoryview(data)[HEADER_BYTES:], 1, None, None, positions_max=1)
    return header, header.base_timestamp + scan.max_timestamp_delta, not scan.without_key


@given(TIMES, FIELDS, FIELDS)
@example(0, None, None)
@example(0, b"", b"")
def test_plain_batch_is_read_as_by_the_general_functions(
    timestamp: int, key: bytes | None, value: bytes | None
) -> None:
    data = build_batch([Record(timestamp=timestamp, key=key, value=value)])
    found = read_plain_batch(memoryview(data))
    if found is None:  # Its key is too long for one byte of length.
        assert key is not None
        assert len(key) > 63
    else:
        assert tuple(found) == read_generally(data)


@given(st.binary(max_size=120), st.integers(0, 200), st.integers(1, 255), st.booleans())
def test_changed_batch_is_read_as_none_or_as_by_the_general_functions(
    value: bytes, position: int, change: int, with_checksum: bool
) -> None:
    data = bytearray(build_batch([Record(timestamp=1, key=b"k", value=value)]))
    data[position % len(data)] ^= change
    if with_checksum:
        data = bytearray(with_new_checksum(bytes(data)))
    found = read_plain_batch(memoryview(bytes(data)))
    if found is not None:
        assert tuple(found) == read_generally(bytes(data))


def with_new_checksum(data: bytes) -> bytes:
    from minibroker_protocol.checksum import crc32c

    return data[:17] + crc32c(data[21:]).to_bytes(4, "big") + data[21:]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(61),
        build_batch([Record(value=b"a"), Record(value=b"b")]),
        build_batch([Record(value=b"a", headers=(("h", b"v"),))]),
        build_batch([Record(value=b"a")], compression=Compression.GZIP),
        build_batch([Record(value=b"a")]) + b"\0",
        build_batch([Record(value=b"a")])[:-1],
        build_batch([Record(value=b"a")], transactional=True),
    ],
    ids=["empty", "zeros", "two", "headers", "compressed", "longer", "shorter", "transactional"],
)
def test_other_batches_are_read_as_none(data: bytes) -> None:
    assert read_plain_batch(memoryview(data)) is None
