from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.log.cleaner.offset_map import short_key
from minibroker.broker.log.cleaner.record_fields import read_fields
from minibroker_protocol.errors import DecodeError
from minibroker_protocol.records import HEADER_BYTES, Record, build_batch, iter_records

RECORDS = st.lists(
    st.builds(
        Record,
        timestamp=st.integers(0, 2**40),
        key=st.none() | st.binary(max_size=200),
        value=st.none() | st.binary(max_size=200),
        headers=st.just(()) | st.just((("h", None),)),
    ),
    min_size=1,
    max_size=70,
)


@given(RECORDS)
def test_fields_are_those_of_the_records(records: list[Record]) -> None:
    data = build_batch(records, base_offset=1000)
    fields = read_fields(data, HEADER_BYTES, len(records), 1000)
    found = list(iter_records(data))
    assert fields.offsets == [record.offset for record in found]
    assert fields.keys == [None if r.key is None else short_key(r.key) for r in found]
    assert fields.tombstones == [i for i, r in enumerate(found) if r.value is None]
    assert fields.positions[-1] == len(data)


@given(RECORDS, st.data())
def test_damage_is_a_decode_error_or_is_read(records: list[Record], data: st.DataObject) -> None:
    section = bytearray(build_batch(records)[HEADER_BYTES:])
    at = data.draw(st.integers(0, len(section) - 1))
    section[at] ^= data.draw(st.integers(1, 255))
    try:
        fields = read_fields(bytes(section), 0, len(records), 0)
    except DecodeError:
        return
    assert len(fields.keys) == len(records)


def test_record_that_is_cut_off_is_a_decode_error() -> None:
    section = build_batch([Record(key=b"a", value=b"value")])[HEADER_BYTES:]
    for size in range(len(section)):
        with pytest.raises(DecodeError):
            read_fields(section[:size], 0, 1, 0)
