"""Records of consumer groups equal Kafka's byte for byte, and decode to what was encoded."""

from __future__ import annotations

import pytest

from minibroker.broker.groups.consumer_member import ClassicSession, ConsumerMember, MemberState
from minibroker.broker.groups.consumer_records import (
    ConsumerGroupMetadata,
    ConsumerGroupRecord,
    ConsumerMemberMetadata,
    CurrentMemberAssignment,
    CurrentTopicPartitions,
    RecordKind,
    RegularExpression,
    TargetAssignmentMember,
    TargetAssignmentMetadata,
    TargetTopicPartitions,
)
from minibroker.broker.groups.records import decode_entry, encode_entry

ID = bytes(range(16))
MEMBER = ConsumerMember(
    member_id="m",
    member_epoch=5,
    previous_member_epoch=4,
    state=MemberState.UNREVOKED_PARTITIONS,
    instance_id="i",
    rack_id=None,
    rebalance_timeout_ms=300,
    client_id="c",
    client_host="/h",
    topics=frozenset({"u", "t"}),
    regex=None,
    assignor="range",
    classic=ClassicSession(10, (("range", b"s"),)),
    assigned={ID: {0: 3, 1: 5}},
    pending_revocation={ID: {2: 4}},
)

RECORDS = [
    # Kafka 4.4 writes the same bytes, with the tagged fields of its schemas.
    (
        ConsumerGroupRecord(
            RecordKind.EPOCH, "g", value=ConsumerGroupMetadata(epoch=5, metadata_hash=1)
        ),
        b"\0\3\0\1g",
        b"\0\0\0\0\0\5\1\0\x08" + (1).to_bytes(8, "big"),
    ),
    (
        ConsumerGroupRecord(
            RecordKind.TARGET_EPOCH, "g", value=TargetAssignmentMetadata(assignment_epoch=5)
        ),
        b"\0\6\0\1g",
        b"\0\0\0\0\0\5\0",
    ),
    (
        ConsumerGroupRecord(
            RecordKind.TARGET,
            "g",
            "m",
            TargetAssignmentMember(
                topic_partitions=[TargetTopicPartitions(topic_id=ID, partitions=[7])]
            ),
        ),
        b"\0\7\0\1g\0\1m",
        b"\0\0\2" + ID + b"\2\0\0\0\7\0\0",
    ),
    (
        MEMBER.assignment_record("g"),
        b"\0\x08\0\1g\0\1m",
        b"\0\0\0\0\0\5\0\0\0\4\1\2"
        + ID
        + b"\3\0\0\0\0\0\0\0\1\1\0\x09\3\0\0\0\3\0\0\0\5\2"
        + ID
        + b"\2\0\0\0\2\1\0\5\2\0\0\0\4\0",
    ),
    (
        MEMBER.metadata_record("g"),
        b"\0\5\0\1g\0\1m",
        b"\0\0\2i\0\2c\3/h\3\2t\2u\0\0\0\1\x2c\6range\1\0\x10" + b"\1\0\0\0\x0a\2\6range\2s\0\0",
    ),
    (
        ConsumerGroupRecord(
            RecordKind.REGEX, "g", "t.*", RegularExpression(topics=["t"], version=1, timestamp=2)
        ),
        b"\0\x10\0\1g\0\3t.*",
        b"\0\0\2\2t" + bytes(7) + b"\1" + bytes(7) + b"\2\0",
    ),
    (ConsumerGroupRecord(RecordKind.PARTITION_METADATA, "g"), b"\0\4\0\1g", None),
]


@pytest.mark.parametrize(("record", "key", "value"), RECORDS, ids=lambda each: type(each).__name__)
def test_record_is_encoded_as_kafka_does_and_decoded_again(
    record: ConsumerGroupRecord, key: bytes, value: bytes | None
) -> None:
    assert encode_entry(record) == (key, value)
    assert decode_entry(key, value) == record
    tombstone = record.tombstone()
    assert decode_entry(*encode_entry(tombstone)) == tombstone


def test_partition_metadata_of_older_brokers_is_not_read() -> None:
    found = decode_entry(b"\0\4\0\1g", b"\0\0whatever")
    assert found == ConsumerGroupRecord(RecordKind.PARTITION_METADATA, "g")


def test_member_is_restored_from_its_two_records() -> None:
    metadata, assignment = MEMBER.metadata_record("g"), MEMBER.assignment_record("g")
    restored = ConsumerMember(member_id="m")
    restored = restored.with_metadata(metadata.value)  # type: ignore[arg-type]
    restored = restored.with_assignment(assignment.value)  # type: ignore[arg-type]
    assert restored == MEMBER


def test_partitions_without_epochs_have_the_epoch_of_the_member() -> None:
    stored = CurrentTopicPartitions(topic_id=ID, partitions=[0, 1])
    value = CurrentMemberAssignment(member_epoch=4, state=99, assigned_partitions=[stored])
    member = ConsumerMember(member_id="m").with_assignment(value)
    assert member.assigned == {ID: {0: 4, 1: 4}}
    assert member.state is MemberState.UNKNOWN


# What Kafka 4.4 has written for a member of a consumer group.
KAFKA_S_MEMBER = bytes.fromhex(
    "0000 00 00 04726177 0b2f3132372e302e302e31 02 076f7264657273 01 0000ea60 00 01 00 01 00"
)


def test_member_without_classic_requests_is_written_as_by_kafka() -> None:
    """Kafka takes a record without the tagged field for that of a classic member."""
    member = ConsumerMember(
        member_id="a",
        rebalance_timeout_ms=60_000,
        client_id="raw",
        client_host="/127.0.0.1",
        topics=frozenset({"orders"}),
        regex="",
    )
    record = member.metadata_record("g")
    assert record.encode_value() == KAFKA_S_MEMBER
    found = decode_entry(record.encode_key(), KAFKA_S_MEMBER)
    assert isinstance(found, ConsumerGroupRecord)
    assert isinstance(found.value, ConsumerMemberMetadata)
    assert ConsumerMember(member_id="a").with_metadata(found.value) == member


def test_member_of_an_earlier_minibroker_is_no_classic_one() -> None:
    key = ConsumerMember(member_id="a").metadata_record("g").encode_key()
    found = decode_entry(key, KAFKA_S_MEMBER[:-4] + b"\0")
    assert isinstance(found, ConsumerGroupRecord)
    assert isinstance(found.value, ConsumerMemberMetadata)
    assert ConsumerMember(member_id="a").with_metadata(found.value).classic is None
