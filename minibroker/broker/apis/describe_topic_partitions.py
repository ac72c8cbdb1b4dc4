"""DescribeTopicPartitions (75): topics and partitions page by page (KIP-966).

Version 0. Topics are sorted by name. A page ends at the limit of the request or of
``max.request.partition.size.limit``, and its cursor names the partition that the next page starts
with. Without topics in the request all are described, except those that the caller may not
describe. A cursor outside of the requested topics or below 0 gets INVALID_REQUEST for each topic.
There are no eligible leader replicas: one broker has one replica, which is in sync. In Kafka:
``DescribeTopicPartitionsRequestHandler``.
"""

from __future__ import annotations

from typing import Final

from minibroker.broker.apis.base import SPECIAL, Context, without_owner
from minibroker.broker.apis.operations import TOPIC_OPERATIONS
from minibroker.broker.metadata.image import PartitionRegistration, Topic
from minibroker.broker.metadata.topics import INTERNAL_TO_CLIENTS, name_problem
from minibroker.broker.settings.definitions import MAX_REQUEST_PARTITION_SIZE_LIMIT
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from minibroker_protocol.registry import ApiKey

NO_LEADER: Final = -1


def answer(
    ctx: Context, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    """One page from the current image."""
    if has_invalid_cursor(request):
        return refusal(request, ErrorCode.INVALID_REQUEST)
    limit = min(ctx.settings[MAX_REQUEST_PARTITION_SIZE_LIMIT], request.response_partition_limit)
    left = max(limit, 1)
    page = DescribeTopicPartitionsResponse()
    for name in names_from_cursor(ctx, request):
        if left == 0:
            page.next_cursor = Cursor(topic_name=name, partition_index=0)
            break
        topic = ctx.image.topics.get(name)
        if topic is None:
            page.topics.append(_unknown(name))
            continue
        cursor = request.cursor
        first = cursor.partition_index if cursor and cursor.topic_name == name else 0
        described = _describe(ctx, topic, topic.partitions[first : first + left])
        page.topics.append(described)
        left -= len(described.partitions)
        if first + len(described.partitions) < len(topic.partitions) and left == 0:
            next_index = first + len(described.partitions)
            page.next_cursor = Cursor(topic_name=name, partition_index=next_index)
            break
    return page


def has_invalid_cursor(request: DescribeTopicPartitionsRequest) -> bool:
    """Whether the cursor is not one that a response of the same request could have had."""
    cursor = request.cursor
    if cursor is None:
        return False
    names = {topic.name for topic in request.topics}
    return cursor.partition_index < 0 or bool(names and cursor.topic_name not in names)


def names_from_cursor(ctx: Context, request: DescribeTopicPartitionsRequest) -> list[str]:
    """The names of the topics to describe, from the topic of the cursor on, sorted."""
    first = request.cursor.topic_name if request.cursor else ""
    names = {topic.name for topic in request.topics} if request.topics else ctx.image.topics.keys()
    return sorted(name for name in names if name >= first)


def refusal(
    request: DescribeTopicPartitionsRequest, error: ErrorCode
) -> DescribeTopicPartitionsResponse:
    """The same error for every topic of the request."""
    return DescribeTopicPartitionsResponse(
        topics=[
            DescribeTopicPartitionsResponseTopic(error_code=error, name=topic.name)
            for topic in request.topics
        ]
    )


def _unknown(name: str) -> DescribeTopicPartitionsResponseTopic:
    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if name_problem(name):
        error = ErrorCode.INVALID_TOPIC_EXCEPTION
    return DescribeTopicPartitionsResponseTopic(
        error_code=error, name=name, topic_authorized_operations=TOPIC_OPERATIONS
    )


def _describe(
    ctx: Context, topic: Topic, partitions: tuple[PartitionRegistration, ...]
) -> DescribeTopicPartitionsResponseTopic:
    reachable = {broker.broker_id for broker, _, _ in ctx.image.brokers_at(ctx.caller.listener)}
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TO_CLIENTS,
        partitions=[
            DescribeTopicPartitionsResponsePartition(
                partition_index=partition.index,
                leader_id=partition.leader if partition.leader in reachable else NO_LEADER,
                leader_epoch=partition.leader_epoch,
                replica_nodes=list(partition.replicas),
                isr_nodes=list(partition.isr),
                eligible_leader_replicas=[],
                last_known_elr=[],
                offline_replicas=[
                    broker_id for broker_id in partition.replicas if broker_id not in reachable
                ],
            )
            for partition in partitions
        ],
        topic_authorized_operations=TOPIC_OPERATIONS,
    )


API = without_owner(
    answer,
    key=ApiKey.DESCRIBE_TOPIC_PARTITIONS,
    versions=(0, 0),
    requires=SPECIAL,
)
