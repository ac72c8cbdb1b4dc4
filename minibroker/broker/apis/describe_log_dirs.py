"""DescribeLogDirs (35): the data directory, its disk, and the sizes of the partitions in it.

Versions 1-5. There is one directory, so the response has one result. Every I/O worker reports its
own partitions; a partition without a log has size 0. The first one reports the disk. A directory
whose disk cannot be examined gets KAFKA_STORAGE_ERROR. In Kafka:
``ReplicaManager.describeLogDirs``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from minibroker.broker.apis.base import Api, Context, Owner, Requires, WorkerScope
from minibroker.broker.security.acl import Operation
from minibroker.broker.settings.types import LONG_MAX
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from minibroker_protocol.registry import ApiKey

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


def split(ctx: Context, request: DescribeLogDirsRequest) -> Mapping[Owner, DescribeLogDirsPart]:
    """Send to each worker its existing partitions, without duplicates."""
    parts: dict[Owner, list[tuple[str, int]]] = {_DISK_OWNER: []}
    for topic, index in dict.fromkeys(_wanted(ctx, request)):
        if ctx.image.partition(topic, index) is not None:
            parts.setdefault(ctx.partition_owner(topic, index), []).append((topic, index))
    return {owner: tuple(part) for owner, part in parts.items()}


def _wanted(ctx: Context, request: DescribeLogDirsRequest) -> Iterable[tuple[str, int]]:
    if request.topics is None:
        for topic in ctx.image.topics.values():
            yield from ((topic.name, partition.index) for partition in topic.partitions)
    else:
        for asked in request.topics:
            yield from ((asked.topic, index) for index in asked.partitions)


def execute(scope: WorkerScope, part: DescribeLogDirsPart) -> DescribeLogDirsReply:
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


def merge(
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


API: Api[
    DescribeLogDirsRequest, DescribeLogDirsPart, DescribeLogDirsReply, DescribeLogDirsResponse
] = Api(
    key=ApiKey.DESCRIBE_LOG_DIRS,
    versions=(1, 5),
    requires=(Requires(Operation.DESCRIBE, Meaning.CLUSTER),),
    split=split,
    execute=execute,
    merge=merge,
    left_out=("cordoned directories (KIP-1066): partitions go to the only directory there is",),
)
