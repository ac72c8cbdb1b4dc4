"""CreatePartitions (37): add partitions to topics, independently for each topic.

Versions 0-3. The number of partitions cannot decrease. The request may assign the replicas of the
new partitions. ``validate_only`` changes nothing. The response is sent when every process has
applied the change. In Kafka: ``ReplicationControlManager.createPartitions``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from minibroker.broker.apis.base import CONTROLLER, Api, Context, ControllerScope, Mutator, Owner
from minibroker.broker.metadata.image import ChangeRejected
from minibroker.broker.metadata.topics import NewPartitions
from minibroker.broker.quotas.controller_mutation import Mutated
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from minibroker_protocol.registry import ApiKey

STRICT_FROM = 3
"""First version whose clients understand THROTTLING_QUOTA_EXCEEDED (KIP-599)."""


class CreatePartitionsPart(NamedTuple):
    """Requested numbers of partitions."""

    topics: tuple[NewPartitions, ...]
    validate_only: bool
    mutator: Mutator


class CreatePartitionsReply(NamedTuple):
    """Error of each topic or None, and the recorded controller mutations."""

    topics: dict[str, ChangeRejected | None]
    mutated: Mutated


def split(ctx: Context, request: CreatePartitionsRequest) -> Mapping[Owner, CreatePartitionsPart]:
    """Send everything to the controller."""
    requested = tuple(map(_requested_topic, request.topics))
    mutator = ctx.mutator(strict_from=STRICT_FROM)
    return {CONTROLLER: CreatePartitionsPart(requested, request.validate_only, mutator)}


def _requested_topic(topic: CreatePartitionsTopic) -> NewPartitions:
    assignments = topic.assignments
    if assignments is None:
        return NewPartitions(topic.name, topic.count)
    return NewPartitions(
        topic.name, topic.count, tuple(tuple(assignment.broker_ids) for assignment in assignments)
    )


async def execute_at_controller(
    scope: ControllerScope, part: CreatePartitionsPart
) -> CreatePartitionsReply:
    """Validate, store, and wait until every process has applied the change."""
    mutations = scope.mutations(part.mutator)
    outcome = await scope.cluster.create_partitions(
        part.topics, validate_only=part.validate_only, allow=mutations.take
    )
    await scope.publish(outcome.updates)
    rejections = {grown.name: grown.rejection for grown in outcome.topics}
    return CreatePartitionsReply(rejections, mutations.mutated())


def merge(
    ctx: Context, _request: CreatePartitionsRequest, replies: Mapping[Owner, CreatePartitionsReply]
) -> CreatePartitionsResponse:
    """One result per name, in the order of the request."""
    topics, ctx.mutated = replies[CONTROLLER]
    return CreatePartitionsResponse(
        throttle_time_ms=ctx.mutated.throttle_ms,
        results=[
            CreatePartitionsTopicResult(
                name=name,
                error_code=refusal.code if refusal else ErrorCode.NONE,
                error_message=refusal.text if refusal else None,
            )
            for name, refusal in topics.items()
        ],
    )


API: Api[
    CreatePartitionsRequest, CreatePartitionsPart, CreatePartitionsReply, CreatePartitionsResponse
] = Api(
    key=ApiKey.CREATE_PARTITIONS,
    versions=(0, 3),
    split=split,
    execute_at_controller=execute_at_controller,
    merge=merge,
)
