"""CreatePartitions (37): give topics more partitions, each topic for itself.

Versions 0-3.  A topic only grows; replicas of the new partitions may be assigned by hand;
``validate_only`` checks without adding.  The answer goes out when every process knows the
partitions.  Echoes ``ReplicationControlManager.createPartitions``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from minibroker.apis.base import CONTROLLER, Api, Context, ControllerScope, Mutator, Owner
from minibroker.cluster.topics import ChangeRejected, Growth
from minibroker.quotas.controller_mutation import Mutated
from protocol.errors import ErrorCode
from protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from protocol.registry import ApiKey

STRICT_FROM = 3
"""Clients that ask in this version know what a refusal by quota is (KIP-599)."""


class CreatePartitionsPart(NamedTuple):
    """The wishes of a request."""

    topics: tuple[Growth, ...]
    validate_only: bool
    mutator: Mutator


class CreatePartitionsReply(NamedTuple):
    """Why a topic did not grow, None if it did, and what of it a quota counted."""

    topics: dict[str, ChangeRejected | None]
    mutated: Mutated


def split(ctx: Context, request: CreatePartitionsRequest) -> Mapping[Owner, CreatePartitionsPart]:
    """All to the controller."""
    wishes = tuple(map(_wish, request.topics))
    mutator = ctx.mutator(strict_from=STRICT_FROM)
    return {CONTROLLER: CreatePartitionsPart(wishes, request.validate_only, mutator)}


def _wish(topic: CreatePartitionsTopic) -> Growth:
    assignments = topic.assignments
    if assignments is None:
        return Growth(topic.name, topic.count)
    return Growth(topic.name, topic.count, tuple(tuple(given.broker_ids) for given in assignments))


async def execute_at_controller(
    scope: ControllerScope, part: CreatePartitionsPart
) -> CreatePartitionsReply:
    """Decide, keep, and wait until everybody knows."""
    mutations = scope.mutations(part.mutator)
    outcome = await scope.cluster.create_partitions(
        part.topics, validate_only=part.validate_only, take=mutations.take
    )
    await scope.publish(outcome.updates)
    refusals = {grown.name: grown.refusal for grown in outcome.topics}
    return CreatePartitionsReply(refusals, mutations.mutated())


def merge(
    ctx: Context, _request: CreatePartitionsRequest, replies: Mapping[Owner, CreatePartitionsReply]
) -> CreatePartitionsResponse:
    """One result a name, in the order of the request."""
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
