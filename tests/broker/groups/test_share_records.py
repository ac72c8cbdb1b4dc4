"""Records of share groups have Kafka's keys and values, and can be read again."""

from __future__ import annotations

import pytest

from minibroker.broker.groups.records import decode_entry
from minibroker.broker.groups.share_records import (
    ShareCurrentAssignment,
    SharedTopic,
    SharedTopicPartitions,
    ShareGroupMetadata,
    ShareGroupRecord,
    ShareMemberMetadata,
    SharePartitionsMetadata,
    ShareRecordKind,
    ShareTargetMember,
    ShareTargetMetadata,
    ShareTopicPartitions,
)
from minibroker_protocol.errors import DecodeError

T = bytes(range(16))
RECORDS = [
    ShareGroupRecord(
        ShareRecordKind.MEMBER,
        "g",
        "m",
        ShareMemberMetadata(
            rack_id="r", client_id="c", client_host="/h", subscribed_topic_names=["t"]
        ),
    ),
    ShareGroupRecord(
        ShareRecordKind.EPOCH, "g", None, ShareGroupMetadata(epoch=3, metadata_hash=-7)
    ),
    ShareGroupRecord(
        ShareRecordKind.TARGET_EPOCH,
        "g",
        None,
        ShareTargetMetadata(assignment_epoch=3, assignment_timestamp=9),
    ),
    ShareGroupRecord(
        ShareRecordKind.TARGET,
        "g",
        "m",
        ShareTargetMember(topic_partitions=[ShareTopicPartitions(topic_id=T, partitions=[0, 1])]),
    ),
    ShareGroupRecord(
        ShareRecordKind.CURRENT,
        "g",
        "m",
        ShareCurrentAssignment(member_epoch=3, previous_member_epoch=2, state=0),
    ),
    ShareGroupRecord(
        ShareRecordKind.PARTITIONS,
        "g",
        None,
        SharePartitionsMetadata(
            initialized_topics=[
                SharedTopicPartitions(topic_id=T, topic_name="t", partitions=[0, 1])
            ],
            deleting_topics=[SharedTopic(topic_id=T, topic_name="u")],
        ),
    ),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.kind.name)
def test_record_can_be_read_again(record: ShareGroupRecord) -> None:
    key, value = record.encode_key(), record.encode_value()
    assert key[:2] == record.kind.value.to_bytes(2, "big")
    assert decode_entry(key, value) == record
    assert decode_entry(key, None) == record.tombstone()


def test_records_have_kafka_s_bytes() -> None:
    member, epoch, *_ = RECORDS
    assert member.encode_key() == b"\0\x0a\0\1g\0\1m"
    assert member.encode_value() == b"\0\0\2r\2c\3/h\2\2t\0"
    assert epoch.encode_key() == b"\0\x0b\0\1g"
    assert epoch.encode_value() == b"\0\0\0\0\0\3" + b"\xff" * 7 + b"\xf9\0"


def test_malformed_record_raises() -> None:
    with pytest.raises(DecodeError):
        decode_entry(RECORDS[0].encode_key(), b"\0\0\2")
