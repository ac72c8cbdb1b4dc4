"""DeleteRecords (21): move the start of partitions forward, so that older records are gone.

Versions 0-2.  An offset of -1 means the end.  Internal topics are refused, and topics whose
cleanup policy does not delete, as in Kafka.  Whole segments below the start go with the next
round of retention.  Echoes ``ReplicaManager.deleteRecords``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from minibroker.apis.base import Api, Context, Owner, WorkerScope
from minibroker.config.topics import CLEANUP_POLICY, topic_value
from minibroker.storage.errors import LogError
from protocol.errors import ErrorCode
from protocol.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from protocol.registry import ApiKey

NO_WATERMARK = -1


class Wanted(NamedTuple):
    """One partition and the first offset to keep."""

    topic: str
    partition: int
    offset: int


class Done(NamedTuple):
    """The offset that a partition begins with now, or the error instead."""

    error: int = ErrorCode.NONE
    low_watermark: int = NO_WATERMARK


Part = tuple[Wanted, ...]
Reply = dict[tuple[str, int], Done]


def split(ctx: Context, request: DeleteRecordsRequest) -> Mapping[Owner, Part]:
    """By owner, the partitions that exist and may lose records."""
    parts: dict[Owner, list[Wanted]] = {}
    for topic in request.topics:
        if _refuse(ctx, topic.name) != ErrorCode.NONE:
            continue
        for asked in topic.partitions:
            if ctx.image.partition(topic.name, asked.partition_index) is not None:
                owner = ctx.partition_owner(topic.name, asked.partition_index)
                wanted = Wanted(topic.name, asked.partition_index, asked.offset)
                parts.setdefault(owner, []).append(wanted)
    return {owner: tuple(entries) for owner, entries in parts.items()}


def _refuse(ctx: Context, name: str) -> ErrorCode:
    topic = ctx.image.topics.get(name)
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if topic.internal:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    settings = ctx.in_force.of(ctx.image.configs)
    policy = topic_value(settings, ctx.image.topic_overrides(name), CLEANUP_POLICY)
    return ErrorCode.NONE if "delete" in policy else ErrorCode.POLICY_VIOLATION


def execute(scope: WorkerScope, part: Part) -> Reply:
    """Each in its log."""
    return {(wanted.topic, wanted.partition): _delete(scope, wanted) for wanted in part}


def _delete(scope: WorkerScope, wanted: Wanted) -> Done:
    try:
        partition = scope.partition(wanted.topic, wanted.partition)
        if partition is None:
            return Done(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return Done(low_watermark=partition.delete_records(wanted.offset))
    except LogError as error:
        return Done(error.code)


def merge(
    ctx: Context, request: DeleteRecordsRequest, replies: Mapping[Owner, Reply]
) -> DeleteRecordsResponse:
    """Every partition in the order of the request."""
    done: Reply = {}
    for reply in replies.values():
        done.update(reply)
    results = []
    for topic in request.topics:
        error = _refuse(ctx, topic.name)
        missing = Done(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if error == ErrorCode.NONE else error)
        partitions = []
        for asked in topic.partitions:
            found = done.get((topic.name, asked.partition_index), missing)
            partitions.append(
                DeleteRecordsPartitionResult(
                    partition_index=asked.partition_index,
                    low_watermark=found.low_watermark,
                    error_code=found.error,
                )
            )
        results.append(DeleteRecordsTopicResult(name=topic.name, partitions=partitions))
    return DeleteRecordsResponse(topics=results)


API: Api[DeleteRecordsRequest, Part, Reply, DeleteRecordsResponse] = Api(
    key=ApiKey.DELETE_RECORDS,
    versions=(0, 2),
    split=split,
    execute=execute,
    merge=merge,
    left_out=("timeout_ms: there is no follower to wait for",),
)
