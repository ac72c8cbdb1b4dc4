"""AlterPartitionReassignments (45): change or cancel the assignment of replicas (KIP-455).

Versions 0-1; version 1 may forbid a change of the replication factor. With one broker the only
valid assignment is the present one, which changes nothing. Any other gets
INVALID_REPLICA_ASSIGNMENT with the reason, and a cancellation gets NO_REASSIGNMENT_IN_PROGRESS. In
Kafka: ``ReplicationControlManager.alterPartitionReassignments``.
"""

from __future__ import annotations

from collections.abc import Sequence

from minibroker.broker.apis.base import Context, Requires, without_owner
from minibroker.broker.metadata.image import ChangeRejected, Image
from minibroker.broker.security.acl import Operation
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from minibroker_protocol.registry import ApiKey


def answer(
    ctx: Context, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    """One error per partition, in the order of the request."""
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_message=None,
        responses=[
            ReassignableTopicResponse(
                name=topic.name,
                partitions=[_result(ctx.image, topic.name, each) for each in topic.partitions],
            )
            for topic in request.topics
        ],
    )


def refusal(
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


def _result(
    image: Image, topic: str, wanted: ReassignablePartition
) -> ReassignablePartitionResponse:
    problem = _problem(image, topic, wanted)
    return ReassignablePartitionResponse(
        partition_index=wanted.partition_index,
        error_code=problem.code if problem else ErrorCode.NONE,
        error_message=problem.text if problem else None,
    )


def _problem(image: Image, topic: str, wanted: ReassignablePartition) -> ChangeRejected | None:
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


API = without_owner(
    answer,
    key=ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    versions=(0, 1),
    requires=(Requires(Operation.ALTER, Meaning.CLUSTER, refusal=refusal),),
    left_out=("moving replicas: there is no other broker to move them to",),
)
