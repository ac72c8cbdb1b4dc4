"""The requests about log directories, of which there is one: describe it, and move logs to it.

Every I/O worker knows its own partitions, and the first one the disk. Invariant: a partition is
described by its owner. In Kafka: ``ReplicaManager``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from minibroker.broker.apis.base import Api, Context, Owner, Requires, WorkerScope
from minibroker.broker.security.acl import Operation
from minibroker.broker.settings.setting import LONG_MAX
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from minibroker_protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from minibroker_protocol.registry import ApiKey

# DescribeLogDirs (35) -----------------------------------------------------------------------------
#
# The data directory, its disk, and the sizes of the partitions in it. Versions 1-5. There is one
# directory, so the response has one result. Every I/O worker reports its own partitions; a
# partition without a log has size 0. The first one reports the disk. A directory whose disk cannot
# be examined gets KAFKA_STORAGE_ERROR. In Kafka: ``ReplicaManager.describeLogDirs``.


_DISK_OWNER: Owner = 0

DescribeLogDirsPart = tuple[tuple[str, int], ...]


class Disk(NamedTuple):
    """The data directory and its file system; the sizes are None if it cannot be examined."""

    path: str
    total_bytes: int | None
    usable_bytes: int | None


class DescribeLogDirsReply(NamedTuple):
    """The disk, and topic, index and size in bytes of each partition of one worker."""

    disk: Disk
    sizes: tuple[tuple[str, int, int], ...]


def _split_description(
    ctx: Context, request: DescribeLogDirsRequest
) -> Mapping[Owner, DescribeLogDirsPart]:
    """Send to each worker its existing partitions, without duplicates."""
    parts: dict[Owner, list[tuple[str, int]]] = {_DISK_OWNER: []}
    for topic, index in dict.fromkeys(_requested_partitions(ctx, request)):
        if ctx.image.partition(topic, index) is not None:
            parts.setdefault(ctx.partition_owner(topic, index), []).append((topic, index))
    return {owner: tuple(part) for owner, part in parts.items()}


def _requested_partitions(
    ctx: Context, request: DescribeLogDirsRequest
) -> Iterable[tuple[str, int]]:
    if request.topics is None:
        for topic in ctx.image.topics.values():
            yield from ((topic.name, partition.index) for partition in topic.partitions)
    else:
        for asked in request.topics:
            yield from ((asked.topic, index) for index in asked.partitions)


def _describe(scope: WorkerScope, part: DescribeLogDirsPart) -> DescribeLogDirsReply:
    """Examine the disk and the logs."""
    path = os.path.abspath(scope.data_dir)
    try:
        found = os.statvfs(path)
    except OSError:
        disk = Disk(path, None, None)
    else:
        space = (blocks * found.f_frsize for blocks in (found.f_blocks, found.f_bavail))
        disk = Disk(path, *(min(size, LONG_MAX) for size in space))
    sizes = tuple((topic, index, scope.log_size(topic, index)) for topic, index in part)
    return DescribeLogDirsReply(disk, sizes)


def _merge_descriptions(
    _ctx: Context, _request: DescribeLogDirsRequest, replies: Mapping[Owner, DescribeLogDirsReply]
) -> DescribeLogDirsResponse:
    """One result: the data directory."""
    disk = replies[_DISK_OWNER].disk
    if disk.total_bytes is None or disk.usable_bytes is None:
        failed = DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=disk.path)
        return DescribeLogDirsResponse(results=[failed])
    topics: dict[str, list[DescribeLogDirsPartition]] = {}
    for reply in replies.values():
        for topic, index, size in reply.sizes:
            described = DescribeLogDirsPartition(partition_index=index, partition_size=size)
            topics.setdefault(topic, []).append(described)
    result = DescribeLogDirsResult(
        log_dir=disk.path,
        topics=[
            DescribeLogDirsTopic(
                name=name, partitions=sorted(partitions, key=lambda one: one.partition_index)
            )
            for name, partitions in sorted(topics.items())
        ],
        total_bytes=disk.total_bytes,
        usable_bytes=disk.usable_bytes,
    )
    return DescribeLogDirsResponse(results=[result])


DESCRIBE_LOG_DIRS = Api(
    key=ApiKey.DESCRIBE_LOG_DIRS,
    versions=(1, 5),
    requires=(Requires(Operation.DESCRIBE, Meaning.CLUSTER),),
    split=_split_description,
    execute=_describe,
    merge=_merge_descriptions,
    left_out=("cordoned directories (KIP-1066): partitions go to the only directory there is",),
)


# AlterReplicaLogDirs (34) -------------------------------------------------------------------------
#
# Move partitions to another log directory, of which there is none. Versions 1-2. The broker has one
# directory. Moving a partition to where it is changes nothing; any other directory gets
# LOG_DIR_NOT_FOUND. A topic whose name leaves no room for the suffix of a moving log gets
# INVALID_TOPIC_EXCEPTION. In Kafka: ``ReplicaManager.alterReplicaLogDirs``.


FILE_NAME_MAX: Final = 255
_MOVING_SUFFIX_LENGTH: Final = len("-") + len(".") + 32 + len("-future")
"""What Kafka adds to topic and partition in the directory name of a log that is being moved."""


AlterReplicaLogDirsReply = str
"""The directory of the logs."""


def _split_moves(_ctx: Context, _request: AlterReplicaLogDirsRequest) -> Mapping[Owner, None]:
    """Ask one worker for the directory."""
    return {_DISK_OWNER: None}


def _data_directory(scope: WorkerScope, _part: None) -> AlterReplicaLogDirsReply:
    """The directory of the logs, as an absolute path."""
    return os.path.abspath(scope.data_dir)


def _merge_moves(
    ctx: Context,
    request: AlterReplicaLogDirsRequest,
    replies: Mapping[Owner, AlterReplicaLogDirsReply],
) -> AlterReplicaLogDirsResponse:
    """One error per partition; of a partition that is named twice, the last directory counts."""
    wanted = {
        (topic.name, index): directory.path
        for directory in request.dirs
        for topic in directory.topics
        for index in topic.partitions
    }
    results: dict[str, list[AlterReplicaLogDirPartitionResult]] = {}
    for (name, index), path in wanted.items():
        error = _move_error(ctx, name, index, is_own=path == replies[_DISK_OWNER])
        result = AlterReplicaLogDirPartitionResult(partition_index=index, error_code=error)
        results.setdefault(name, []).append(result)
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirTopicResult(topic_name=name, partitions=partitions)
            for name, partitions in results.items()
        ]
    )


def _move_error(ctx: Context, topic: str, index: int, *, is_own: bool) -> ErrorCode:
    if len(topic) + len(str(index)) + _MOVING_SUFFIX_LENGTH > FILE_NAME_MAX:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    if not is_own:
        return ErrorCode.LOG_DIR_NOT_FOUND
    if ctx.image.partition(topic, index) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NONE


ALTER_REPLICA_LOG_DIRS = Api(
    key=ApiKey.ALTER_REPLICA_LOG_DIRS,
    versions=(1, 2),
    requires=(Requires(Operation.ALTER, Meaning.CLUSTER),),
    split=_split_moves,
    execute=_data_directory,
    merge=_merge_moves,
    left_out=("moving logs: there is one data directory, so every other one is refused",),
)


APIS = (
    DESCRIBE_LOG_DIRS,
    ALTER_REPLICA_LOG_DIRS,
)
