"""Every version of OffsetCommit stores what it can, and reports the rest."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.apis.offset_commit import API
from minibroker.broker.groups.offsets import CommittedOffset
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)

UNKNOWN_ID = bytes(15) + b"\x09"
WALL_MS = 1_700_000_000_000


def position(partition: int, offset: int = 5, **other: Any) -> OffsetCommitRequestPartition:
    values: dict[str, Any] = {"committed_leader_epoch": -1, "committed_metadata": "m"}
    return OffsetCommitRequestPartition(
        partition_index=partition, committed_offset=offset, **(values | other)
    )


def topic(apis: Any, version: int, name: str, *partitions: Any) -> OffsetCommitRequestTopic:
    if version < 10:
        return OffsetCommitRequestTopic(name=name, partitions=list(partitions))
    known = apis.controller.image.topics.get(name)
    topic_id = UNKNOWN_ID if known is None else known.topic_id
    return OffsetCommitRequestTopic(topic_id=topic_id, partitions=list(partitions))


def stored(apis: Any) -> list[tuple[str, int, CommittedOffset]]:
    owner = apis.context(API.key, 10).group_owner("g")
    return list(apis.workers[owner].groups.committed("g"))


def errors(response: Any) -> list[list[int]]:
    return [[each.error_code for each in topic.partitions] for topic in response.topics]


@pytest.mark.parametrize("version", range(2, 11))
async def test_offsets_of_existing_partitions_are_stored_and_others_rejected(
    group_apis: Any, version: int
) -> None:
    epoch = 7 if version >= 6 else -1
    topics = [
        topic(group_apis, version, "t", position(2, committed_leader_epoch=epoch), position(3)),
        topic(group_apis, version, "nope", position(0)),
        topic(group_apis, version, "u", position(0, 6, committed_metadata=None)),
    ]
    response = await group_apis.ask(API, OffsetCommitRequest(group_id="g", topics=topics), version)
    missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    no_topic = missing if version < 10 else ErrorCode.UNKNOWN_TOPIC_ID
    assert errors(response) == [[0, missing], [no_topic], [0]]
    assert [each.name for each in response.topics] == [each.name for each in topics]
    assert [each.topic_id for each in response.topics] == [each.topic_id for each in topics]
    assert stored(group_apis) == [
        ("t", 2, CommittedOffset(5, epoch, "m", WALL_MS)),
        ("u", 0, CommittedOffset(6, -1, "", WALL_MS)),
    ]


@pytest.mark.parametrize("version", [2, 4])
async def test_retention_time_of_older_versions_sets_offset_expiration(
    group_apis: Any, version: int
) -> None:
    topics = [topic(group_apis, version, "t", position(0))]
    request = OffsetCommitRequest(group_id="g", topics=topics, retention_time_ms=1_000)
    await group_apis.ask(API, request, version)
    assert stored(group_apis)[0][2].expire_ms == WALL_MS + 1_000


async def test_offset_expiration_is_capped_at_largest_int64(group_apis: Any) -> None:
    topics = [topic(group_apis, 4, "t", position(0))]
    request = OffsetCommitRequest(group_id="g", topics=topics, retention_time_ms=2**63 - 1)
    assert errors(await group_apis.ask(API, request, 4)) == [[0]]
    assert stored(group_apis)[0][2].expire_ms == 2**63 - 1


@pytest.mark.parametrize("version", [8, 9, 10])
async def test_commit_of_member_in_unknown_group_is_rejected(group_apis: Any, version: int) -> None:
    topics = [topic(group_apis, version, "t", position(0), position(9))]
    request = OffsetCommitRequest(
        group_id="g", generation_id_or_member_epoch=3, member_id="m", topics=topics
    )
    none = ErrorCode.GROUP_ID_NOT_FOUND if version >= 9 else ErrorCode.ILLEGAL_GENERATION
    missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert errors(await group_apis.ask(API, request, version)) == [[none, missing]]


async def test_too_long_metadata_is_rejected_for_its_partition(group_apis: Any) -> None:
    long = position(0, committed_metadata="m" * 4097)
    topics = [topic(group_apis, 9, "t", long, position(1))]
    response = await group_apis.ask(API, OffsetCommitRequest(group_id="g", topics=topics), 9)
    assert errors(response) == [[ErrorCode.OFFSET_METADATA_TOO_LARGE, 0]]


async def test_commit_without_existing_partitions_is_not_forwarded_to_workers(
    group_apis: Any,
) -> None:
    topics = [topic(group_apis, 9, "nope", position(0))]
    for request in (OffsetCommitRequest(group_id="g", topics=topics), OffsetCommitRequest()):
        await group_apis.ask(API, request, 9)
        assert group_apis.asked == {}
