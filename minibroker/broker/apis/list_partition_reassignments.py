"""ListPartitionReassignments (46): reassignments of partitions that are in progress (KIP-455).

Version 0. With one broker no partition moves, so the response is always empty. In Kafka:
``ReplicationControlManager.listPartitionReassignments``.
"""

from __future__ import annotations

from minibroker.broker.apis.base import Context, Requires, without_owner
from minibroker.broker.security.acl import Operation
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from minibroker_protocol.registry import ApiKey


def answer(
    _ctx: Context, _request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """Return the empty list."""
    return ListPartitionReassignmentsResponse(error_message=None)


def refusal(
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


API = without_owner(
    answer,
    key=ApiKey.LIST_PARTITION_REASSIGNMENTS,
    versions=(0, 0),
    requires=(Requires(Operation.DESCRIBE, Meaning.CLUSTER, refusal=refusal),),
)
