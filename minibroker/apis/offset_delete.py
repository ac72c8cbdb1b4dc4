"""OffsetDelete (47): forget a group's offsets of some partitions.

Version 0. While a consumer group has members, only offsets of topics that none of them consumes
can go; groups of other protocols must be empty. Partitions that do not exist get
UNKNOWN_TOPIC_OR_PARTITION; an error of the group stands alone. Echoes
``KafkaApis.handleOffsetDeleteRequest`` and ``OffsetMetadataManager.deleteOffsets``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from minibroker.apis.base import Api, Context, Owner, WorkerScope
from protocol.errors import ErrorCode
from protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from protocol.registry import ApiKey


class OffsetDeletePart(NamedTuple):
    """What a group is to forget."""

    group_id: str
    partitions: tuple[tuple[str, int], ...]


class OffsetDeleteReply(NamedTuple):
    """The group's error, then one a partition."""

    error: ErrorCode
    errors: dict[tuple[str, int], ErrorCode]


def split(ctx: Context, request: OffsetDeleteRequest) -> Mapping[Owner, OffsetDeletePart]:
    """To the group's owner, the partitions that exist."""
    partitions = tuple(
        (topic.name, each.partition_index)
        for topic in request.topics
        for each in topic.partitions
        if ctx.image.partition(topic.name, each.partition_index) is not None
    )
    return {ctx.group_owner(request.group_id): OffsetDeletePart(request.group_id, partitions)}


def execute(scope: WorkerScope, part: OffsetDeletePart) -> OffsetDeleteReply:
    """Forgets what nobody consumes."""
    return OffsetDeleteReply(*scope.groups.delete_offsets(part.group_id, part.partitions))


def merge(
    _ctx: Context, request: OffsetDeleteRequest, replies: Mapping[Owner, OffsetDeleteReply]
) -> OffsetDeleteResponse:
    """An error a partition, in the order of the request."""
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
    split=split,
    execute=execute,
    merge=merge,
)
