"""Only the named bytes of a response are damaged."""

from __future__ import annotations

import pytest

from minibroker.lab.faults.corruption import UNKNOWN_TAG, add_tagged_field, damage_crc, damage_frame
from minibroker_protocol.compiler import decode, encode
from minibroker_protocol.messages.heartbeat import HeartbeatResponse

FRAME = (14).to_bytes(4, "big") + (7).to_bytes(4, "big") + b"0123456789"


def test_crc_of_first_batch_is_changed_and_nothing_else() -> None:
    records = bytes(range(80))
    damaged = damage_crc(records)
    assert [at for at in range(80) if damaged[at] != records[at]] == [17]


def test_records_without_complete_batch_are_unchanged() -> None:
    assert damage_crc(b"") == b""
    assert damage_crc(bytes(20)) == bytes(20)


@pytest.mark.parametrize(("position", "at"), [(None, 4 + 7), (0, 4), (5, 9), (1000, 17)])
def test_one_bit_is_changed(position: int | None, at: int) -> None:
    damaged = damage_frame(FRAME, "bit", position)
    changed = [index for index in range(len(FRAME)) if damaged[index] != FRAME[index]]
    assert changed == [at]
    assert (damaged[at] ^ FRAME[at]).bit_count() == 1


def test_length_is_one_too_large() -> None:
    assert damage_frame(FRAME, "length", None) == (15).to_bytes(4, "big") + FRAME[4:]


def test_correlation_id_is_another_one() -> None:
    assert damage_frame(FRAME, "correlation_id", None) == FRAME[:7] + b"\x06" + FRAME[8:]


@pytest.mark.parametrize(("cut", "left"), [(None, 7), (3, 11), (0, 14), (99, 0)])
def test_truncated_response_has_the_length_of_what_is_left(cut: int | None, left: int) -> None:
    damaged = damage_frame(FRAME, "truncate", cut)
    assert damaged == left.to_bytes(4, "big") + FRAME[4 : 4 + left]


def test_unknown_tagged_field_is_in_flexible_versions_only() -> None:
    response = HeartbeatResponse(unknown_tagged_fields={5: b"kept"})
    add_tagged_field(response)
    assert encode(response, 3) == encode(HeartbeatResponse(), 3)
    decoded = decode(HeartbeatResponse, 4, encode(response, 4))
    assert sorted(decoded.unknown_tagged_fields or {}) == [5, UNKNOWN_TAG]
