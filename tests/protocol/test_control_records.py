from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker_protocol.control_records import EndTransactionMarker, build_marker, parse_marker
from minibroker_protocol.errors import DecodeError
from minibroker_protocol.records import Record, build_batch, parse_batch_header

MARKER = EndTransactionMarker(committed=True, coordinator_epoch=3)


@given(st.booleans(), st.integers(-1, 2**31 - 1))
def test_marker_that_was_built_is_parsed(committed: bool, coordinator_epoch: int) -> None:
    marker = EndTransactionMarker(committed, coordinator_epoch)
    batch = build_marker(9, 2, marker, 1_700_000_000_000)
    header = parse_batch_header(batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 2, -1)
    assert header.is_control
    assert header.is_transactional
    assert parse_marker(batch) == marker


def test_marker_has_kafkas_bytes() -> None:
    section = build_marker(1, 0, MARKER, 5)[61:]
    key, value = bytes.fromhex("00000001"), bytes.fromhex("000000000003")
    assert section == bytes((32, 0, 0, 0, 8)) + key + bytes((12,)) + value + b"\x00"


def control_batch(key: bytes | None, value: bytes | None = b"") -> bytes:
    return build_batch([Record(key=key, value=value)], control=True)


def test_control_batch_of_another_type_is_no_marker() -> None:
    leader_change = bytes.fromhex("00000002")
    assert parse_marker(control_batch(leader_change)) is None
    assert parse_marker(build_batch([Record(key=b"k", value=b"v")])) is None


@pytest.mark.parametrize("key", [None, b"", b"\0\0\0"])
def test_control_batch_with_short_key_cannot_be_read(key: bytes | None) -> None:
    with pytest.raises(DecodeError, match="too short"):
        parse_marker(control_batch(key))


def test_marker_with_short_value_cannot_be_read() -> None:
    with pytest.raises(DecodeError, match="too short"):
        parse_marker(control_batch(bytes.fromhex("00000001"), b"\0\0"))
