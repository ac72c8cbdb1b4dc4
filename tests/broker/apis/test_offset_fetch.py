"""Every version of OffsetFetch returns committed offsets, for one group or several."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.apis.offset_fetch import API
from minibroker.broker.groups.events import CommitRequested
from minibroker.broker.groups.offsets import CommittedOffset
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)

UNKNOWN_ID = bytes(15) + b"\x09"
ANYBODY = CommitRequested(member_id="", generation=-1)


def commit(apis: Any, group_id: str, **offsets: int) -> None:
    worker = apis.workers[apis.context(API.key, 10).group_owner(group_id)]
    values = {(topic, 0): CommittedOffset(offset, 7, "m", 1) for topic, offset in offsets.items()}
    worker.groups.commit(group_id, ANYBODY, values)


def request(apis: Any, version: int, group_id: str, topics: Any) -> OffsetFetchRequest:
    """``topics`` maps names to partitions, or is None for all."""
    if version < 8:
        older = None
        if topics is not None:
            older = [
                OffsetFetchRequestTopic(name=name, partition_indexes=partitions)
                for name, partitions in topics.items()
            ]
        return OffsetFetchRequest(group_id=group_id, topics=older)
    return OffsetFetchRequest(groups=[group(apis, version, group_id, topics)])


def group(apis: Any, version: int, group_id: str, topics: Any) -> OffsetFetchRequestGroup:
    asked = None
    if topics is not None:
        asked = [
            OffsetFetchRequestTopics(
                name=name if version < 10 else "",
                topic_id=topic_id(apis, name) if version >= 10 else bytes(16),
                partition_indexes=partitions,
            )
            for name, partitions in topics.items()
        ]
    return OffsetFetchRequestGroup(group_id=group_id, topics=asked)


def topic_id(apis: Any, name: str) -> bytes:
    known = apis.controller.image.topics.get(name)
    return UNKNOWN_ID if known is None else bytes(known.topic_id)


def found(apis: Any, version: int, response: Any) -> list[Any]:
    """(topic, partition, offset, metadata, error) of the first group."""
    topics = response.topics if version < 8 else response.groups[0].topics
    names = {topic_id(apis, name): name for name in ("t", "u", "gone")}
    return [
        (
            topic.name if version < 10 else names[topic.topic_id],
            each.partition_index,
            each.committed_offset,
            each.metadata,
            each.error_code,
        )
        for topic in topics
        for each in topic.partitions
    ]


@pytest.mark.parametrize("version", range(1, 11))
async def test_partitions_are_answered_in_request_order(group_apis: Any, version: int) -> None:
    commit(group_apis, "g", t=5, u=6)
    asked = {"u": [0], "gone": [1], "t": [2, 0]}
    response = await group_apis.ask(API, request(group_apis, version, "g", asked), version)
    gone = ErrorCode.UNKNOWN_TOPIC_ID if version >= 10 else ErrorCode.NONE
    assert found(group_apis, version, response) == [
        ("u", 0, 6, "m", 0),
        ("gone", 1, -1, "", gone),
        ("t", 2, -1, "", 0),
        ("t", 0, 5, "m", 0),
    ]


@pytest.mark.parametrize("version", range(2, 11))
async def test_null_topics_return_all_offsets_of_group(group_apis: Any, version: int) -> None:
    commit(group_apis, "g", t=5, gone=6)
    response = await group_apis.ask(API, request(group_apis, version, "g", None), version)
    # Without a topic there is no id to name it by.
    expected = [("t", 0, 5, "m", 0)] + [("gone", 0, 6, "m", 0)] * (version < 10)
    assert found(group_apis, version, response) == expected


@pytest.mark.parametrize("version", [5, 7, 8])
async def test_committed_leader_epoch_is_returned(group_apis: Any, version: int) -> None:
    commit(group_apis, "g", t=5)
    response = await group_apis.ask(API, request(group_apis, version, "g", {"t": [0]}), version)
    topics = response.topics if version < 8 else response.groups[0].topics
    assert topics[0].partitions[0].committed_leader_epoch == 7


@pytest.mark.parametrize("version", [1, 7, 10])
async def test_unknown_group_has_no_offsets(group_apis: Any, version: int) -> None:
    response = await group_apis.ask(API, request(group_apis, version, "h", {"t": [0]}), version)
    assert found(group_apis, version, response) == [("t", 0, -1, "", 0)]


@pytest.mark.parametrize("version", [8, 9, 10])
async def test_groups_of_several_workers_are_answered_in_request_order(
    group_apis: Any, version: int
) -> None:
    ids = [f"g{number}" for number in range(8)]
    for number, group_id in enumerate(ids):
        commit(group_apis, group_id, t=number)
    groups = [group(group_apis, version, group_id, {"t": [0]}) for group_id in ids]
    groups.append(group(group_apis, version, "g3", None))
    response = await group_apis.ask(API, OffsetFetchRequest(groups=groups), version)
    assert len(group_apis.asked) == 2
    assert [each.group_id for each in response.groups] == [*ids, "g3"]
    offsets = [each.topics[0].partitions[0].committed_offset for each in response.groups]
    assert offsets == [*range(8), 3]
    assert {each.error_code for each in response.groups} == {ErrorCode.NONE}
