"""Records of streams groups have Kafka's keys and values, and can be read again."""

from __future__ import annotations

import pytest

from minibroker.broker.groups.records import decode_entry
from minibroker.broker.groups.streams_records import (
    LastAssignmentConfig,
    StreamsClientTag,
    StreamsCopartitionGroup,
    StreamsCurrentAssignment,
    StreamsCurrentTasks,
    StreamsEndpoint,
    StreamsGroupMetadata,
    StreamsGroupRecord,
    StreamsGroupTopology,
    StreamsMemberMetadata,
    StreamsRecordKind,
    StreamsSubtopology,
    StreamsTargetMember,
    StreamsTargetMetadata,
    StreamsTargetTasks,
    StreamsTopicConfig,
    StreamsTopicInfo,
)
from minibroker_protocol.errors import DecodeError

RECORDS = [
    StreamsGroupRecord(
        StreamsRecordKind.EPOCH,
        "g",
        None,
        StreamsGroupMetadata(
            epoch=3,
            metadata_hash=-7,
            validated_topology_epoch=0,
            last_assignment_configs=[LastAssignmentConfig(key="num.standby.replicas", value="1")],
        ),
    ),
    StreamsGroupRecord(
        StreamsRecordKind.MEMBER,
        "g",
        "m",
        StreamsMemberMetadata(
            instance_id=None,
            rack_id="r",
            client_id="c",
            client_host="/h",
            rebalance_timeout_ms=9,
            topology_epoch=0,
            process_id="p",
            user_endpoint=StreamsEndpoint(host="h", port=65535),
            client_tags=[StreamsClientTag(key="zone", value="z")],
        ),
    ),
    StreamsGroupRecord(
        StreamsRecordKind.TARGET_EPOCH,
        "g",
        None,
        StreamsTargetMetadata(assignment_epoch=3, assignment_timestamp=9),
    ),
    StreamsGroupRecord(
        StreamsRecordKind.TARGET,
        "g",
        "m",
        StreamsTargetMember(active_tasks=[StreamsTargetTasks(subtopology_id="0", partitions=[1])]),
    ),
    StreamsGroupRecord(
        StreamsRecordKind.CURRENT,
        "g",
        "m",
        StreamsCurrentAssignment(
            member_epoch=3,
            previous_member_epoch=2,
            state=1,
            active_tasks=[
                StreamsCurrentTasks(subtopology_id="0", partitions=[1], assignment_epochs=[3])
            ],
        ),
    ),
    StreamsGroupRecord(
        StreamsRecordKind.TOPOLOGY,
        "g",
        None,
        StreamsGroupTopology(
            epoch=0,
            subtopologies=[
                StreamsSubtopology(
                    subtopology_id="0",
                    source_topics=["t"],
                    state_changelog_topics=[
                        StreamsTopicInfo(
                            name="log",
                            topic_configs=[StreamsTopicConfig(key="cleanup.policy", value="x")],
                        )
                    ],
                    copartition_groups=[StreamsCopartitionGroup(source_topics=[0])],
                )
            ],
        ),
    ),
]
# Written by StreamsCoordinatorRecordHelpers and the serde of Kafka 4.4.
KAFKA_BYTES = {
    StreamsRecordKind.EPOCH: (
        "0011000167",
        (
            "000000000003fffffffffffffff902000400000000011902156e756d2e7374616e6462792e726570"
            "6c69636173023100"
        ),
    ),
    StreamsRecordKind.MEMBER: (
        "001300016700016d",
        "00000002720263032f6800000009000000000270010268ffff0002057a6f6e65027a0000",
    ),
    StreamsRecordKind.TARGET_EPOCH: (
        "0014000167",
        "0000000000030100080000000000000009",
    ),
    StreamsRecordKind.TARGET: (
        "001500016700016d",
        "0000020230020000000100010100",
    ),
    StreamsRecordKind.CURRENT: (
        "001600016700016d",
        "000000000003000000020102023002000000010100050200000003010101010100",
    ),
    StreamsRecordKind.TOPOLOGY: (
        "0017000167",
        (
            "0000000000000202300202740102046c6f67000000000000020f636c65616e75702e706f6c696379"
            "027800000101020200000101000000"
        ),
    ),
}


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.kind.name)
def test_record_has_the_bytes_of_kafka(record: StreamsGroupRecord) -> None:
    key, value = KAFKA_BYTES[record.kind]
    assert record.encode_key().hex() == key
    encoded = record.encode_value()
    assert encoded is not None
    assert encoded.hex() == value


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.kind.name)
def test_record_and_its_tombstone_are_read_again(record: StreamsGroupRecord) -> None:
    assert decode_entry(record.encode_key(), record.encode_value()) == record
    tombstone = record.tombstone()
    assert tombstone.encode_value() is None
    assert decode_entry(record.encode_key(), None) == tombstone
    assert record.group_type == "streams"


def test_other_bytes_are_no_record() -> None:
    with pytest.raises(DecodeError):
        decode_entry(b"\x00\x11", b"\x00\x00")
