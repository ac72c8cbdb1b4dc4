"""Damage hits only what is named, and a batch with other values has the right checksum."""

from __future__ import annotations

import pytest

from minibroker.lab.faults.damage import (
    UNKNOWN_SCHEMA_ID,
    UNKNOWN_TAG,
    add_tagged_field,
    damage_frame,
    damage_records,
)
from minibroker_protocol.compiler import decode, encode
from minibroker_protocol.compression import Compression
from minibroker_protocol.messages.heartbeat import HeartbeatResponse
from minibroker_protocol.records import Record, build_batch, iter_batches, iter_records, verify_crc

RECORDS = [
    Record(timestamp=5, key=b"k", value=None),
    Record(timestamp=6, value=b"\0\0\0\0\7payload", headers=(("h", b"x"),)),
    Record(timestamp=7, value=b"\0\0\0\0\7other"),
    Record(timestamp=8, value=b"\1\0\0\0\7none"),
]
BATCH = build_batch(RECORDS)
FRAME = (14).to_bytes(4, "big") + (7).to_bytes(4, "big") + b"0123456789"


def test_crc_of_first_batch_is_changed_and_nothing_else() -> None:
    records = BATCH + BATCH
    damaged = damage_records(records, "crc")
    assert [at for at in range(len(records)) if damaged[at] != records[at]] == [17]


def test_records_without_complete_batch_are_unchanged() -> None:
    for part in ("crc", "payload", "schema_id", "repeat"):
        assert damage_records(b"", part) == b""
        assert damage_records(bytes(20), part) == bytes(20)
        assert (damage_records(bytes(80), part) == bytes(80)) == (part != "crc")


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


def values(batch: bytes) -> list[bytes | None]:
    return [record.value for record in iter_records(batch)]


@pytest.mark.parametrize("codec", Compression)
def test_first_value_is_damaged_under_a_right_checksum(codec: Compression) -> None:
    batch = build_batch(RECORDS, base_offset=70, compression=codec)
    damaged = damage_records(batch + BATCH, "payload")
    (_, first), (at, second) = iter_batches(damaged)
    assert damaged[at:] == BATCH
    assert verify_crc(damaged)
    assert (first.codec, first.base_offset, first.record_count) == (codec, 70, 4)
    expected = [record._replace(offset=70 + at) for at, record in enumerate(RECORDS)]
    expected[1] = expected[1]._replace(value=b"\0\0\0\0\7pazload")
    found = list(iter_records(damaged[:at]))
    assert [each.value for each in found].count(RECORDS[1].value) == 0
    assert [each._replace(value=None) for each in found] == [
        each._replace(value=None) for each in expected
    ]
    assert [each.value for each in found][2:] == [each.value for each in RECORDS][2:]
    assert second.base_offset == 0


def test_schema_ids_are_replaced_where_values_have_one() -> None:
    damaged = damage_records(BATCH, "schema_id")
    assert verify_crc(damaged)
    unknown = b"\0" + UNKNOWN_SCHEMA_ID.to_bytes(4, "big")
    assert values(damaged) == [None, unknown + b"payload", unknown + b"other", RECORDS[3].value]


def test_first_batch_is_repeated() -> None:
    other = build_batch(RECORDS, base_offset=4)
    assert damage_records(BATCH + other, "repeat") == BATCH + BATCH + other
