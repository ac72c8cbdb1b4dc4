"""CreatePartitions (37): add partitions to topics, independently for each topic.

Versions 0-3. The number of partitions cannot decrease. The request may assign the replicas of the
new partitions. ``validate_only`` changes nothing. The response is sent when every process has
applied the change. In Kafka: ``ReplicationControlManager.createPartitions``.
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
from minibroker.broker.metadata.topics import NewPartitions
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


async def execute(
    scope: ControllerScope, request: ControllerRequest[CreatePartitionsRequest]
) -> MutationResponse:
    """Validate, store, and wait until every process has applied the change.

    There is one result per name, in the order of the request.
    """
    message = request.message
    mutations = scope.mutations(request.mutator(strict_from=STRICT_FROM))
    outcome = await scope.cluster.create_partitions(
        tuple(map(_requested_topic, message.topics)),
        validate_only=message.validate_only,
        allow=mutations.take,
    )
    await scope.publish(outcome.updates)
    rejections = {grown.name: grown.rejection for grown in outcome.topics}
    response = CreatePartitionsResponse(
        results=[
            CreatePartitionsTopicResult(
                name=name,
                error_code=rejection.code if rejection else ErrorCode.NONE,
                error_message=rejection.text if rejection else None,
            )
            for name, rejection in rejections.items()
        ]
    )
    return MutationResponse(response, mutations.mutated())


def _requested_topic(topic: CreatePartitionsTopic) -> NewPartitions:
    assignments = topic.assignments
    if assignments is None:
        return NewPartitions(topic.name, topic.count)
    return NewPartitions(
        topic.name, topic.count, tuple(tuple(assignment.broker_ids) for assignment in assignments)
    )


API: ServedApi = at_controller(
    execute,
    key=ApiKey.CREATE_PARTITIONS,
    versions=(0, 3),
    requires=SPECIAL,
)
