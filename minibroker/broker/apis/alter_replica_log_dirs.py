"""AlterReplicaLogDirs (34): move partitions to another log directory, of which there is none.

Versions 1-2. The broker has one directory. Moving a partition to where it is changes nothing; any
other directory gets LOG_DIR_NOT_FOUND. A topic whose name leaves no room for the suffix of a moving
log gets INVALID_TOPIC_EXCEPTION. In Kafka: ``ReplicaManager.alterReplicaLogDirs``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from minibroker.broker.apis.base import Api, Context, Owner, Requires, WorkerScope
from minibroker.broker.security.acl import Operation
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from minibroker_protocol.registry import ApiKey

FILE_NAME_MAX: Final = 255
_MOVING_SUFFIX_LENGTH: Final = len("-") + len(".") + 32 + len("-future")
"""What Kafka adds to topic and partition in the directory name of a log that is being moved."""

_DISK_OWNER: Owner = 0

AlterReplicaLogDirsReply = str
"""The directory of the logs."""


def split(_ctx: Context, _request: AlterReplicaLogDirsRequest) -> Mapping[Owner, None]:
    """Ask one worker for the directory."""
    return {_DISK_OWNER: None}


def execute(scope: WorkerScope, _part: None) -> AlterReplicaLogDirsReply:
    """The directory of the logs, as an absolute path."""
    return os.path.abspath(scope.data_dir)


def merge(
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
        error = _error(ctx, name, index, is_own=path == replies[_DISK_OWNER])
        result = AlterReplicaLogDirPartitionResult(partition_index=index, error_code=error)
        results.setdefault(name, []).append(result)
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirTopicResult(topic_name=name, partitions=partitions)
            for name, partitions in results.items()
        ]
    )


def _error(ctx: Context, topic: str, index: int, *, is_own: bool) -> ErrorCode:
    if len(topic) + len(str(index)) + _MOVING_SUFFIX_LENGTH > FILE_NAME_MAX:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    if not is_own:
        return ErrorCode.LOG_DIR_NOT_FOUND
    if ctx.image.partition(topic, index) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NONE


API: Api[
    AlterReplicaLogDirsRequest, None, AlterReplicaLogDirsReply, AlterReplicaLogDirsResponse
] = Api(
    key=ApiKey.ALTER_REPLICA_LOG_DIRS,
    versions=(1, 2),
    requires=(Requires(Operation.ALTER, Meaning.CLUSTER),),
    split=split,
    execute=execute,
    merge=merge,
    left_out=("moving logs: there is one data directory, so every other one is refused",),
)
