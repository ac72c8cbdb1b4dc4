"""CreateTopics (19): create topics, independently of each other, and return their configs.

Versions 2-7. Counts of -1 take the broker's defaults. The request may assign replicas and set
configs. ``validate_only`` changes nothing. From version 5 on the response has the counts and all
configs, from 7 on the topic id. The response is sent when every process has applied the change, so
``timeout_ms`` is not used. In Kafka: ``ControllerApis.createTopics`` and
``ReplicationControlManager``.
"""

from __future__ import annotations

from minibroker.broker.apis.base import (
    SPECIAL,
    ControllerRequest,
    ControllerScope,
    MutationResponse,
    ServedApi,
    at_controller,
)
from minibroker.broker.apis.config_entries import topic_entries
from minibroker.broker.metadata.topics import NewTopic, TopicOutcome
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


async def execute(
    scope: ControllerScope, request: ControllerRequest[CreateTopicsRequest]
) -> MutationResponse:
    """Validate, store, and wait until every process has applied the change.

    There is one result per name, in the order of the request.
    """
    message = request.message
    mutations = scope.mutations(request.mutator(strict_from=STRICT_FROM))
    outcome = await scope.cluster.create_topics(
        tuple(map(_requested_topic, message.topics)),
        validate_only=message.validate_only,
        allow=mutations.take,
    )
    await scope.publish(outcome.updates)
    results = {made.name: _result(scope, made) for made in outcome.topics}
    response = CreateTopicsResponse(topics=list(results.values()))
    return MutationResponse(response, mutations.mutated())


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


def _result(scope: ControllerScope, made: TopicOutcome) -> CreatableTopicResult:
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
            for entry in topic_entries(scope.settings, scope.image.configs, made.config)
        ],
    )


API: ServedApi = at_controller(
    execute,
    key=ApiKey.CREATE_TOPICS,
    versions=(2, 7),
    requires=SPECIAL,
    left_out=("create.topic.policy.class.name: a policy is a Java class",),
)
