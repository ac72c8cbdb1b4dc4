"""Descriptions of the groups of any Kafka, of each type: classic, consumer and share groups.

Owns which request describes a group. It must never wait. Invariant: a Kafka without consumer groups
(KIP-848) or share groups (KIP-932) is not asked about them, so its groups are described, too.
"""

from __future__ import annotations

from typing import Any, Final

from minibroker.client.consumer import LATEST, committed_offsets, list_offsets
from minibroker.client.errors import ApiNotSupported
from minibroker.client.kafka_client import KafkaClient
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from minibroker_protocol.messages.describe_groups import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from minibroker_protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
)
from minibroker_protocol.messages.share_group_describe import (
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)
from minibroker_protocol.schema import Message

DEAD = "Dead"
"""The state of a group that is not known, or that is of another type."""

TYPES: Final[tuple[tuple[str, type[Any], type[Any]], ...]] = (
    ("consumer", ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse),
    ("share", ShareGroupDescribeRequest, ShareGroupDescribeResponse),
)
"""Types of groups that DescribeGroups does not know, with the messages that describe them."""


def describe_group(client: KafkaClient, group: str) -> dict[str, Any]:
    """Describe a group with its members, its offsets and its lag."""
    coordinator = client.coordinator(group)
    names = [group]
    found = client.send(DescribeGroupsRequest(groups=names), DescribeGroupsResponse, coordinator)
    [described] = found.groups
    type_, protocol = "classic", described.protocol_type
    if described.group_state == DEAD:
        for name, request, response in TYPES:
            other = _described(client, request(group_ids=names), response, coordinator)
            if other is not None:
                type_, protocol, described = name, name, other
    offsets = _share_offsets if type_ == "share" else _offsets
    return {
        "group_id": group,
        "type": type_,
        "state": described.group_state,
        "protocol_type": protocol,
        "members": [
            {"member_id": member.member_id, "client_id": member.client_id}
            for member in described.members
        ],
        **offsets(client, group, coordinator),
    }


def _described(
    client: KafkaClient, request: Message, response: type[Any], coordinator: int
) -> Any | None:
    """The description of a group; None if it is of another type, or the Kafka has no such type."""
    try:
        [found] = client.send(request, response, coordinator).groups
    except ApiNotSupported:
        return None
    return found if found.error_code == ErrorCode.NONE else None


def _offsets(client: KafkaClient, group: str, _coordinator: int) -> dict[str, Any]:
    offsets = committed_offsets(client, group)
    ends: dict[tuple[str, int], int] = {}
    for topic in {topic for topic, _ in offsets}:
        listed = list_offsets(client, client.topic(topic), LATEST)
        ends |= {(topic, index): end for index, end in listed.items()}
    lags = [max(ends[at] - offset, 0) for at, offset in offsets.items()]
    return {
        "offsets": [
            {"topic": topic, "partition": index, "offset": offset}
            for (topic, index), offset in offsets.items()
        ],
        "lag": sum(lags) if lags else None,
    }


def _share_offsets(client: KafkaClient, group: str, coordinator: int) -> dict[str, Any]:
    """The start offsets of a share group; its lag is of records that are not finished."""
    wanted = DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=None)
    request = DescribeShareGroupOffsetsRequest(groups=[wanted])
    [found] = client.send(request, DescribeShareGroupOffsetsResponse, coordinator).groups
    offsets = [
        (topic.topic_name, each.partition_index, each)
        for topic in found.topics
        for each in topic.partitions
        if each.error_code == ErrorCode.NONE and each.start_offset >= 0
    ]
    lags = [each.lag for _, _, each in offsets]
    return {
        "offsets": [
            {"topic": topic, "partition": index, "offset": each.start_offset}
            for topic, index, each in offsets
        ],
        "lag": sum(lags) if lags and min(lags) >= 0 else None,
    }
