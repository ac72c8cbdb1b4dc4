"""OffsetDelete deletes offsets of unsubscribed topics, and reports why it keeps others."""

from __future__ import annotations

from typing import Any

from minibroker.broker.apis import join_group
from minibroker.broker.apis.offset_delete import API
from minibroker.broker.groups.events import CommitRequested
from minibroker.broker.groups.offsets import CommittedOffset
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from minibroker_protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)

SUBSCRIBED_TO_T = b"\0\0" + b"\0\0\0\1\0\1t" + b"\xff\xff\xff\xff"


def request(**topics: list[int]) -> OffsetDeleteRequest:
    return OffsetDeleteRequest(
        group_id="g",
        topics=[
            OffsetDeleteRequestTopic(
                name=name,
                partitions=[OffsetDeleteRequestPartition(partition_index=p) for p in partitions],
            )
            for name, partitions in topics.items()
        ],
    )


def groups(apis: Any) -> Any:
    return apis.workers[apis.context(API.key, 0).group_owner("g")].groups


def commit(apis: Any) -> None:
    offsets = {(name, 0): CommittedOffset(1, -1, "", 1) for name in "tu"}
    groups(apis).commit("g", CommitRequested(member_id="", generation=-1), offsets)


async def join(apis: Any, protocol_type: str) -> None:
    protocol = JoinGroupRequestProtocol(name="range", metadata=SUBSCRIBED_TO_T)
    joining = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        protocol_type=protocol_type,
        protocols=[protocol],
    )
    await apis.ask(join_group.API, joining, 3)


async def test_offsets_of_subscribed_topics_are_not_deleted(group_apis: Any) -> None:
    commit(group_apis)
    await join(group_apis, "consumer")
    response = await group_apis.ask(API, request(u=[0, 9], t=[0], gone=[0]), 0)
    assert response.error_code == ErrorCode.NONE
    missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    errors = [[each.error_code for each in topic.partitions] for topic in response.topics]
    assert errors == [[0, missing], [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC], [missing]]
    assert [topic.name for topic in response.topics] == ["u", "t", "gone"]
    assert groups(group_apis).committed("g").topics() == ["t"]


async def test_group_error_is_returned_without_topics(group_apis: Any) -> None:
    response = await group_apis.ask(API, request(t=[0]), 0)
    assert (response.error_code, response.topics) == (ErrorCode.GROUP_ID_NOT_FOUND, [])
    commit(group_apis)
    await join(group_apis, "connect")
    response = await group_apis.ask(API, request(t=[0]), 0)
    assert (response.error_code, response.topics) == (ErrorCode.NON_EMPTY_GROUP, [])
