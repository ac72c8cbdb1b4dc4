"""The requests about replicas: elections of leaders, and reassignments.

Each partition has one replica, which leads it, so nothing moves. Invariant: each partition of a
request gets the error that Kafka gives a cluster of one broker. In Kafka:
``ReplicationControlManager``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from minibroker.broker.apis.base import (
    Api,
    Context,
    Owner,
    Requires,
    WorkerScope,
    error_fields,
    without_owner,
)
from minibroker.broker.metadata.image import ChangeRejected, Image
from minibroker.broker.security.acl import Operation
from minibroker.broker.settings.setting import LONG_MAX
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
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
from minibroker_protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
    TopicPartitions,
)
from minibroker_protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from minibroker_protocol.registry import ApiKey

# ElectLeaders (43) --------------------------------------------------------------------------------
#
# Let the preferred, or any, replica lead a partition (KIP-460). Versions 0-2; version 0 elects
# preferred leaders only. Each partition has one replica, which leads it, so a partition of the
# request gets ELECTION_NOT_NEEDED; if the request names none, the response omits such partitions.
# An unknown election type gets INVALID_REQUEST. In Kafka:
# ``ReplicationControlManager.electLeaders``.


PREFERRED, UNCLEAN = 0, 1
_TYPES: Final = (PREFERRED, UNCLEAN)
NO_LEADER: Final = -1

_Outcome = Callable[[str, int], ChangeRejected]
"""The error of a partition."""


def _elect_leaders(ctx: Context, request: ElectLeadersRequest) -> ElectLeadersResponse:
    """One result per partition of the request."""
    kind = request.election_type
    if kind not in _TYPES:
        problem = ChangeRejected(ErrorCode.INVALID_REQUEST, f"Unknown election type {kind}")
        return _refuse_election(request, *problem)
    if request.topic_partitions is None:
        return ElectLeadersResponse(
            replica_election_results=list(_needed_elections(ctx.image, kind))
        )
    return _election_response(
        request, lambda topic, index: _election_outcome(ctx.image, kind, topic, index)
    )


def _refuse_election(
    request: ElectLeadersRequest, error: ErrorCode, text: str | None = None
) -> ElectLeadersResponse:
    """The same error at the top level and for each partition."""
    response = _election_response(request, lambda _topic, _index: ChangeRejected(error, text or ""))
    response.error_code = error
    return response


def _election_response(request: ElectLeadersRequest, outcome: _Outcome) -> ElectLeadersResponse:
    return ElectLeadersResponse(
        replica_election_results=[
            _election_result(topic, outcome) for topic in request.topic_partitions or ()
        ]
    )


def _election_result(topic: TopicPartitions, outcome: _Outcome) -> ReplicaElectionResult:
    results = []
    for index in topic.partitions:
        error, text = outcome(topic.topic, index)
        results.append(PartitionResult(partition_id=index, error_code=error, error_message=text))
    return ReplicaElectionResult(topic=topic.topic, partition_result=results)


def _election_outcome(image: Image, kind: int, topic: str, index: int) -> ChangeRejected:
    if topic not in image.topics:
        return ChangeRejected(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {topic}")
    partition = image.partition(topic, index)
    if partition is None:
        text = f"No such partition as {topic}-{index}"
        return ChangeRejected(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
    leads = partition.leader != NO_LEADER
    if partition.leader == partition.replicas[0] or (kind == UNCLEAN and leads):
        text = "Leader election not needed for topic partition."
        return ChangeRejected(ErrorCode.ELECTION_NOT_NEEDED, text)
    if kind == PREFERRED:
        return ChangeRejected(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader was not available."
        )
    return ChangeRejected(
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        "Eligible topic partition leaders are not available.",
    )


def _needed_elections(image: Image, kind: int) -> Iterator[ReplicaElectionResult]:
    """Every topic, with those of its partitions that would need an election."""
    for topic in image.topics.values():
        found = TopicPartitions(topic=topic.name)
        for partition in topic.partitions:
            error, _ = _election_outcome(image, kind, topic.name, partition.index)
            if error != ErrorCode.ELECTION_NOT_NEEDED:
                found.partitions.append(partition.index)
        yield _election_result(
            found, lambda name, index: _election_outcome(image, kind, name, index)
        )


ELECT_LEADERS = without_owner(
    _elect_leaders,
    key=ApiKey.ELECT_LEADERS,
    versions=(0, 2),
    requires=(Requires(Operation.ALTER, Meaning.CLUSTER, refusal=_refuse_election),),
    left_out=("elections: each partition has one replica, and only that can lead",),
)


# AlterPartitionReassignments (45) -----------------------------------------------------------------
#
# Change or cancel the assignment of replicas (KIP-455). Versions 0-1; version 1 may forbid a change
# of the replication factor. With one broker the only valid assignment is the present one, which
# changes nothing. Any other gets INVALID_REPLICA_ASSIGNMENT with the reason, and a cancellation
# gets NO_REASSIGNMENT_IN_PROGRESS. In Kafka:
# ``ReplicationControlManager.alterPartitionReassignments``.


def _alter_reassignments(
    ctx: Context, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    """One error per partition, in the order of the request."""
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_message=None,
        responses=[
            ReassignableTopicResponse(
                name=topic.name,
                partitions=[
                    _reassignment_result(ctx.image, topic.name, each) for each in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def _refuse_reassignments(
    request: AlterPartitionReassignmentsRequest, error: ErrorCode
) -> AlterPartitionReassignmentsResponse:
    """The same error at the top level and for each partition."""
    return AlterPartitionReassignmentsResponse(
        error_code=error,
        error_message=error.name,
        responses=[
            ReassignableTopicResponse(
                name=topic.name,
                partitions=[
                    ReassignablePartitionResponse(
                        partition_index=each.partition_index,
                        error_code=error,
                        error_message=error.name,
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def _reassignment_result(
    image: Image, topic: str, wanted: ReassignablePartition
) -> ReassignablePartitionResponse:
    problem = _reassignment_problem(image, topic, wanted)
    return ReassignablePartitionResponse(
        partition_index=wanted.partition_index,
        **error_fields(problem),
    )


def _reassignment_problem(
    image: Image, topic: str, wanted: ReassignablePartition
) -> ChangeRejected | None:
    if topic not in image.topics:
        text = f"Unable to find a topic named {topic}."
        return ChangeRejected(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
    partition = image.partition(topic, wanted.partition_index)
    if partition is None:
        text = f"Unable to find partition {topic}:{wanted.partition_index}."
        return ChangeRejected(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
    if wanted.replicas is None:
        text = "No partition reassignment is in progress."
        return ChangeRejected(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, text)
    problem = _assignment_problem(image, wanted.replicas)
    if not problem and tuple(wanted.replicas) != partition.replicas:
        problem = "There is no other broker that could take over the replicas."
    return ChangeRejected(ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem) if problem else None


def _assignment_problem(image: Image, replicas: Sequence[int]) -> str:
    """Why these brokers cannot hold the replicas; empty if they can."""
    prefix = "The manual partition assignment includes"
    if not replicas:
        return f"{prefix} an empty replica list."
    for broker_id in sorted(replicas):
        if broker_id not in image.brokers:
            return f"{prefix} broker {broker_id}, but no such broker is registered."
        if replicas.count(broker_id) > 1:
            return f"{prefix} the broker {broker_id} more than once."
    return ""


ALTER_PARTITION_REASSIGNMENTS = without_owner(
    _alter_reassignments,
    key=ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    versions=(0, 1),
    requires=(Requires(Operation.ALTER, Meaning.CLUSTER, refusal=_refuse_reassignments),),
    left_out=("moving replicas: there is no other broker to move them to",),
)


# ListPartitionReassignments (46) ------------------------------------------------------------------
#
# Reassignments of partitions that are in progress (KIP-455). Version 0. With one broker no
# partition moves, so the response is always empty. In Kafka:
# ``ReplicationControlManager.listPartitionReassignments``.


def _list_reassignments(
    _ctx: Context, _request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    return ListPartitionReassignmentsResponse(error_message=None)


def _refuse_list(
    request: ListPartitionReassignmentsRequest, error: ErrorCode
) -> ListPartitionReassignmentsResponse:
    """An error, with the requested partitions as if they had no replicas."""
    return ListPartitionReassignmentsResponse(
        error_code=error,
        error_message=error.name,
        topics=[
            OngoingTopicReassignment(
                name=topic.name,
                partitions=[
                    OngoingPartitionReassignment(partition_index=index)
                    for index in topic.partition_indexes
                ],
            )
            for topic in request.topics or ()
        ],
    )


LIST_PARTITION_REASSIGNMENTS = without_owner(
    _list_reassignments,
    key=ApiKey.LIST_PARTITION_REASSIGNMENTS,
    versions=(0, 0),
    requires=(Requires(Operation.DESCRIBE, Meaning.CLUSTER, refusal=_refuse_list),),
)


# ------ The requests about log directories, of which there is one: describe it, and move logs to it
# Every I/O worker knows its own partitions, and the first one the disk. Invariant: a partition is
# described by its owner. In Kafka: ``ReplicaManager``.


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
    ELECT_LEADERS,
    ALTER_PARTITION_REASSIGNMENTS,
    LIST_PARTITION_REASSIGNMENTS,
    DESCRIBE_LOG_DIRS,
    ALTER_REPLICA_LOG_DIRS,
)
