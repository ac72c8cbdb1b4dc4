from __future__ import annotations

from minibroker.pipeline.encoding.thrift import array, binary, int16, int32, int64, struct, varint


def test_numbers() -> None:
    assert [varint(number) for number in (0, 127, 128, 300)] == [
        b"\0", b"\x7f", b"\x80\x01", b"\xac\x02",
    ]  # fmt: skip
    assert [int32(number).content for number in (0, -1, 1, -64, 64)] == [
        b"\0", b"\x01", b"\x02", b"\x7f", b"\x80\x01",
    ]  # fmt: skip
    assert [kind(1).kind for kind in (int16, int32, int64)] == [4, 5, 6]
    assert int64(-(2**63)).content == b"\xff" * 9 + b"\x01"


def test_struct_encodes_field_ids_as_deltas() -> None:
    made = struct({1: int32(3), 3: binary(b"ab"), 12: struct({})})
    assert made.content == b"\x15\x06" + b"\x28\x02ab" + b"\x9c\0" + b"\0"


def test_a_list_has_its_length_and_type_before_it() -> None:
    assert array([int32(1)] * 2).content == b"\x25\x02\x02"
    assert array([binary(b"")] * 15).content == b"\xf8\x0f" + bytes(15)
