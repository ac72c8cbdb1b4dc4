"""CreateTopics (19): create topics, independently of each other, and return their configs.

Versions 2-7. Counts of -1 take the broker's defaults. The request may assign replicas and set
configs. ``validate_only`` changes nothing. From version 5 on the response has the counts and all
configs, from 7 on the topic id. The response is sent when every process has applied the change, so
``timeout_ms`` is not used. In Kafka: ``ControllerApis.createTopics`` and
``ReplicationControlManager``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from minibroker.broker.apis.base import CONTROLLER, Api, Context, ControllerScope, Mutator, Owner
from minibroker.broker.apis.config_entries import topic_entries
from minibroker.broker.metadata.topics import NewTopic, TopicOutcome
from minibroker.broker.quotas.controller_mutation import Mutated
from minibroker_protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from minibroker_protocol.registry import ApiKey

STRICT_FROM = 6
"""First version whose clients understand THROTTLING_QUOTA_EXCEEDED (KIP-599)."""


class CreateTopicsPart(NamedTuple):
    """Requested topics."""

    topics: tuple[NewTopic, ...]
    validate_only: bool
    mutator: Mutator


class CreateTopicsReply(NamedTuple):
    """Result of each topic, and the recorded controller mutations."""

    topics: tuple[TopicOutcome, ...]
    mutated: Mutated


def split(ctx: Context, request: CreateTopicsRequest) -> Mapping[Owner, CreateTopicsPart]:
    """Send everything to the controller."""
    requested = tuple(map(_requested_topic, request.topics))
    mutator = ctx.mutator(strict_from=STRICT_FROM)
    return {CONTROLLER: CreateTopicsPart(requested, request.validate_only, mutator)}


def _requested_topic(topic: CreatableTopic) -> NewTopic:
    return NewTopic(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        tuple(
            (assignment.partition_index, tuple(assignment.broker_ids))
            for assignment in topic.assignments
        ),
        tuple((config.name, config.value) for config in topic.configs),
    )


async def execute_at_controller(
    scope: ControllerScope, part: CreateTopicsPart
) -> CreateTopicsReply:
    """Validate, store, and wait until every process has applied the change."""
    mutations = scope.mutations(part.mutator)
    outcome = await scope.cluster.create_topics(
        part.topics, validate_only=part.validate_only, allow=mutations.take
    )
    await scope.publish(outcome.updates)
    return CreateTopicsReply(outcome.topics, mutations.mutated())


def merge(
    ctx: Context, _request: CreateTopicsRequest, replies: Mapping[Owner, CreateTopicsReply]
) -> CreateTopicsResponse:
    """One result per name, in the order of the request."""
    topics, ctx.mutated = replies[CONTROLLER]
    results = {made.name: _result(ctx, made) for made in topics}
    return CreateTopicsResponse(
        throttle_time_ms=ctx.mutated.throttle_ms, topics=list(results.values())
    )


def _result(ctx: Context, made: TopicOutcome) -> CreatableTopicResult:
    if made.rejection is not None:
        code, text = made.rejection
        return CreatableTopicResult(name=made.name, error_code=code, error_message=text)
    assert made.topic is not None
    return CreatableTopicResult(
        name=made.name,
        topic_id=made.topic.topic_id,
        error_message=None,
        num_partitions=len(made.topic.partitions),
        replication_factor=len(made.topic.partitions[0].replicas),
        configs=[
            CreatableTopicConfigs(name=entry.name, value=entry.value, config_source=entry.source)
            for entry in topic_entries(ctx.settings, ctx.image.configs, made.config)
        ],
    )


API: Api[CreateTopicsRequest, CreateTopicsPart, CreateTopicsReply, CreateTopicsResponse] = Api(
    key=ApiKey.CREATE_TOPICS,
    versions=(2, 7),
    split=split,
    execute_at_controller=execute_at_controller,
    merge=merge,
    left_out=("create.topic.policy.class.name: a policy is a Java class",),
)
