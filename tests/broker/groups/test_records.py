"""Records equal Kafka's byte for byte, and decode to the entry that was encoded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.groups.offsets import CommittedOffset
from minibroker.broker.groups.records import (
    Entry,
    GroupEntry,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitValue,
    OffsetEntry,
    decode_entry,
    encode_entry,
)
from minibroker_protocol.compiler import encode
from minibroker_protocol.errors import DecodeError, UnsupportedVersion
from tests.broker.groups.stored import stored_group, stored_member

TEXT = st.text(max_size=8)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(0, 2**63 - 1)
OFFSETS = st.builds(CommittedOffset, INT64, INT32, TEXT, INT64, st.none())
EXPIRING = st.builds(CommittedOffset, INT64, st.just(-1), TEXT, INT64, INT64)
MEMBERS = st.builds(
    stored_member,
    TEXT,
    st.none() | TEXT,
    TEXT,
    TEXT,
    st.integers(0, 2**31 - 1),
    INT32,
    st.binary(max_size=8),
    st.binary(max_size=8),
)
IMAGES = st.builds(
    stored_group,
    TEXT,
    INT32,
    st.none() | TEXT,
    st.none() | TEXT,
    INT64,
    members=st.lists(MEMBERS, max_size=3).map(tuple),
)
ENTRIES = st.one_of(
    st.builds(OffsetEntry, TEXT, TEXT, INT32, st.none() | OFFSETS | EXPIRING),
    st.builds(GroupEntry, TEXT, st.none() | IMAGES),
)


@given(ENTRIES)
def test_entry_round_trip_is_equal(entry: Entry) -> None:
    assert decode_entry(*encode_entry(entry)) == entry


def test_offset_is_encoded_as_in_kafka() -> None:
    key, value = encode_entry(OffsetEntry("g", "t", 3, CommittedOffset(7, 5, "m", 9)))
    assert key.hex(" ") == "00 01 00 01 67 00 01 74 00 00 00 03"
    assert value is not None
    assert value.hex() == "0003" + f"{7:016x}" + f"{5:08x}" + "00016d" + f"{9:016x}"


def test_offset_with_expiry_time_is_encoded_as_version_1() -> None:
    _, value = encode_entry(OffsetEntry("g", "t", 3, CommittedOffset(7, 5, "m", 9, 11)))
    assert value is not None
    assert value.hex() == "0001" + f"{7:016x}" + "00016d" + f"{9:016x}" + f"{11:016x}"


def test_group_is_encoded_as_in_kafka() -> None:
    member = stored_member("m", "i", "c", "/h", 60, 10, b"S", b"A")
    key, value = encode_entry(
        GroupEntry("g", stored_group("consumer", 2, "range", "m", 5, members=(member,)))
    )
    assert key.hex(" ") == "00 02 00 01 67"
    assert value is not None
    assert value == (
        b"\0\3\0\x08consumer\0\0\0\2\0\5range\0\1m\0\0\0\0\0\0\0\5\0\0\0\1"
        b"\0\1m\0\1i\0\1c\0\2/h\0\0\0\x3c\0\0\0\x0a\0\0\0\1S\0\0\0\1A"
    )


def test_tombstones_have_no_value() -> None:
    assert encode_entry(GroupEntry("g", None))[1] is None
    assert encode_entry(OffsetEntry("g", "t", 0, None))[1] is None


@pytest.mark.parametrize("version", range(5))
def test_older_and_newer_value_versions_are_decoded(version: int) -> None:
    key, _ = encode_entry(OffsetEntry("g", "t", 0, None))
    data = version.to_bytes(2, "big") + encode(
        OffsetCommitValue(offset=1, metadata="", commit_timestamp=2), version
    )
    assert decode_entry(key, data) == OffsetEntry("g", "t", 0, CommittedOffset(1, -1, "", 2))
    key, _ = encode_entry(GroupEntry("g", None))
    group = GroupMetadataValue(
        members=[MemberMetadata(member_id="m", rebalance_timeout=4, session_timeout=3)]
    )
    entry = decode_entry(key, version.to_bytes(2, "big") + encode(group, version))
    assert isinstance(entry, GroupEntry)
    assert entry.metadata is not None
    assert entry.metadata.members[0].rebalance_timeout == (3 if version == 0 else 4)


def test_unknown_key_types_are_ignored() -> None:
    assert decode_entry(b"\0\x63\0\1g", b"whatever") is None


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        (b"\0\1\0\x09g", None, DecodeError),
        (b"\0\2\0\1g", b"", DecodeError),
        (b"\0\2\0\1g", b"\0\x63", UnsupportedVersion),
    ],
)
def test_malformed_record_raises(key: bytes, value: bytes | None, error: type[Exception]) -> None:
    with pytest.raises(error):
        decode_entry(key, value)
