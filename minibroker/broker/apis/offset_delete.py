"""OffsetDelete (47): delete offsets of a group.

Version 0. While a consumer group has members, only offsets of topics to which no member is
subscribed can be deleted; groups of other protocols must be empty. Partitions that do not exist get
UNKNOWN_TOPIC_OR_PARTITION. If the group has an error, the response contains no partitions. Kafka's
counterparts are ``KafkaApis.handleOffsetDeleteRequest`` and
``OffsetMetadataManager.deleteOffsets``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from minibroker.broker.apis.base import Api, Context, Owner, Requires, WorkerScope
from minibroker.broker.security.acl import Operation
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from minibroker_protocol.registry import ApiKey


class OffsetDeletePart(NamedTuple):
    """The offsets to delete from a group."""

    group_id: str
    partitions: tuple[tuple[str, int], ...]


class OffsetDeleteReply(NamedTuple):
    """The error of the group, and one error per partition."""

    error: ErrorCode
    errors: dict[tuple[str, int], ErrorCode]


def split(ctx: Context, request: OffsetDeleteRequest) -> Mapping[Owner, OffsetDeletePart]:
    """Send the existing partitions to the group's owner."""
    partitions = tuple(
        (topic.name, each.partition_index)
        for topic in request.topics
        for each in topic.partitions
        if ctx.image.partition(topic.name, each.partition_index) is not None
    )
    return {ctx.group_owner(request.group_id): OffsetDeletePart(request.group_id, partitions)}


def execute(scope: WorkerScope, part: OffsetDeletePart) -> OffsetDeleteReply:
    """Delete the offsets of topics without subscribers."""
    return OffsetDeleteReply(*scope.groups.delete_offsets(part.group_id, part.partitions))


def merge(
    _ctx: Context, request: OffsetDeleteRequest, replies: Mapping[Owner, OffsetDeleteReply]
) -> OffsetDeleteResponse:
    """Return one error per partition, in the order of the request."""
    (reply,) = replies.values()
    if reply.error is not ErrorCode.NONE:
        return OffsetDeleteResponse(error_code=reply.error)
    missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return OffsetDeleteResponse(
        topics=[
            OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetDeleteResponsePartition(
                        partition_index=each.partition_index,
                        error_code=reply.errors.get((topic.name, each.partition_index), missing),
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


API: Api[OffsetDeleteRequest, OffsetDeletePart, OffsetDeleteReply, OffsetDeleteResponse] = Api(
    key=ApiKey.OFFSET_DELETE,
    versions=(0, 0),
    requires=(
        Requires(Operation.DELETE, Meaning.GROUP),
        Requires(Operation.READ, Meaning.TOPIC),
    ),
    split=split,
    execute=execute,
    merge=merge,
)
