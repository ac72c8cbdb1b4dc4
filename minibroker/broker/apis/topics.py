"""The requests about topics: create, grow, delete and describe them.

Changes are made by the controller, and their responses are sent when every process has applied
them. Invariant: each topic of a request has its own result. In Kafka: ``ControllerApis`` and
``ReplicationControlManager``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple

from minibroker.broker.apis.base import (
    SPECIAL,
    Context,
    ControllerRequest,
    ControllerScope,
    MutationResponse,
    ServedApi,
    at_controller,
    error_fields,
    without_owner,
)
from minibroker.broker.apis.configs import topic_entries
from minibroker.broker.metadata.image import ChangeRejected, Image, PartitionRegistration, Topic
from minibroker.broker.metadata.topics import (
    INTERNAL_TO_CLIENTS,
    NewPartitions,
    NewTopic,
    TopicOutcome,
    name_problem,
)
from minibroker.broker.security.acl import TOPIC_OPERATIONS
from minibroker.broker.settings import (
    DELETE_TOPIC_ENABLE,
    MAX_REQUEST_PARTITION_SIZE_LIMIT,
)
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from minibroker_protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from minibroker_protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from minibroker_protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.types import ZERO_UUID

# CreateTopics (19) --------------------------------------------------------------------------------
#
# Create topics, independently of each other, and return their configs. Versions 2-7. Counts of -1
# take the broker's defaults. The request may assign replicas and set configs. ``validate_only``
# changes nothing. From version 5 on the response has the counts and all configs, from 7 on the
# topic id. The response is sent when every process has applied the change, so ``timeout_ms`` is not
# used. In Kafka: ``ControllerApis.createTopics`` and ``ReplicationControlManager``.


CREATE_TOPICS_STRICT_FROM = 6
"""First version whose clients understand THROTTLING_QUOTA_EXCEEDED (KIP-599)."""


async def _create_topics(
    scope: ControllerScope, request: ControllerRequest[CreateTopicsRequest]
) -> MutationResponse:
    """Validate, store, and wait until every process has applied the change.

    There is one result per name, in the order of the request.
    """
    message = request.message
    mutations = scope.mutations(request.mutator(strict_from=CREATE_TOPICS_STRICT_FROM))
    outcome = await scope.cluster.create_topics(
        tuple(map(_new_topic, message.topics)),
        validate_only=message.validate_only,
        allow=mutations.take,
    )
    await scope.publish(outcome.updates)
    results = {made.name: _created_topic(scope, made) for made in outcome.topics}
    response = CreateTopicsResponse(topics=list(results.values()))
    return MutationResponse(response, mutations.mutated())


def _new_topic(topic: CreatableTopic) -> NewTopic:
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


def _created_topic(scope: ControllerScope, made: TopicOutcome) -> CreatableTopicResult:
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


CREATE_TOPICS: ServedApi = at_controller(
    _create_topics,
    key=ApiKey.CREATE_TOPICS,
    versions=(2, 7),
    requires=SPECIAL,
    left_out=("create.topic.policy.class.name: a policy is a Java class",),
)


# CreatePartitions (37) ----------------------------------------------------------------------------
#
# Add partitions to topics, independently for each topic. Versions 0-3. The number of partitions
# cannot decrease. The request may assign the replicas of the new partitions. ``validate_only``
# changes nothing. The response is sent when every process has applied the change. In Kafka:
# ``ReplicationControlManager.createPartitions``.


CREATE_PARTITIONS_STRICT_FROM = 3
"""First version whose clients understand THROTTLING_QUOTA_EXCEEDED (KIP-599)."""


async def _create_partitions(
    scope: ControllerScope, request: ControllerRequest[CreatePartitionsRequest]
) -> MutationResponse:
    """Validate, store, and wait until every process has applied the change.

    There is one result per name, in the order of the request.
    """
    message = request.message
    mutations = scope.mutations(request.mutator(strict_from=CREATE_PARTITIONS_STRICT_FROM))
    outcome = await scope.cluster.create_partitions(
        tuple(map(_new_partitions, message.topics)),
        validate_only=message.validate_only,
        allow=mutations.take,
    )
    await scope.publish(outcome.updates)
    rejections = {grown.name: grown.rejection for grown in outcome.topics}
    response = CreatePartitionsResponse(
        results=[
            CreatePartitionsTopicResult(
                name=name,
                **error_fields(rejection),
            )
            for name, rejection in rejections.items()
        ]
    )
    return MutationResponse(response, mutations.mutated())


def _new_partitions(topic: CreatePartitionsTopic) -> NewPartitions:
    assignments = topic.assignments
    if assignments is None:
        return NewPartitions(topic.name, topic.count)
    return NewPartitions(
        topic.name, topic.count, tuple(tuple(assignment.broker_ids) for assignment in assignments)
    )


CREATE_PARTITIONS: ServedApi = at_controller(
    _create_partitions,
    key=ApiKey.CREATE_PARTITIONS,
    versions=(0, 3),
    requires=SPECIAL,
)


# DeleteTopics (20) --------------------------------------------------------------------------------
#
# Delete topics with all their records, independently of each other. Versions 1-6, by name, and from
# 6 on by id. ``delete.topic.enable=false`` rejects the request. The response is sent when every
# process has released the topic, so a topic of the same name can be created immediately. In Kafka:
# ``ControllerApis.deleteTopics``.


DISABLED_SINCE = 3
"""First version whose clients understand TOPIC_DELETION_DISABLED."""

DELETE_TOPICS_STRICT_FROM = 5
"""First version whose clients understand THROTTLING_QUOTA_EXCEEDED (KIP-599)."""


class _Target(NamedTuple):
    """A topic by name, or by id if the name is None."""

    name: str | None
    topic_id: bytes = ZERO_UUID


class _Result(NamedTuple):
    """Result of deleting a target."""

    target: _Target
    rejection: ChangeRejected | None = None


async def _delete_topics(
    scope: ControllerScope, request: ControllerRequest[DeleteTopicsRequest]
) -> MutationResponse:
    """Find and delete the topics, and wait until every process has released them."""
    results, found = _resolve_targets(scope.image, _targets(request.message))
    mutations = scope.mutations(request.mutator(strict_from=DELETE_TOPICS_STRICT_FROM))
    outcome = await scope.cluster.delete_topics(list(found), allow=mutations.take)
    await scope.publish(outcome.updates)
    for gone in outcome.topics:
        target = found[gone.name]
        if gone.topic is not None:
            target = _Target(gone.name, gone.topic.topic_id)
        results.append(_Result(target, gone.rejection))
    return MutationResponse(_deletion_response(results), mutations.mutated())


def _reject_deletion(ctx: Context, request: DeleteTopicsRequest) -> DeleteTopicsResponse | None:
    """An error for each topic if ``delete.topic.enable`` is false."""
    if ctx.settings[DELETE_TOPIC_ENABLE]:
        return None
    known = ctx.version >= DISABLED_SINCE
    code = ErrorCode.TOPIC_DELETION_DISABLED if known else ErrorCode.INVALID_REQUEST
    disabled = ChangeRejected(code, "Topic deletion is disabled (delete.topic.enable=false).")
    return _deletion_response(_Result(target, disabled) for target in _targets(request))


def _targets(request: DeleteTopicsRequest) -> tuple[_Target, ...]:
    return (
        *(_Target(topic.name, topic.topic_id) for topic in request.topics),
        *map(_Target, request.topic_names),
    )


def _deletion_response(results: Iterable[_Result]) -> DeleteTopicsResponse:
    return DeleteTopicsResponse(
        responses=[
            DeletableTopicResult(
                name=result.target.name,
                topic_id=result.target.topic_id,
                **error_fields(result.rejection),
            )
            for result in results
        ]
    )


def _resolve_targets(
    image: Image, targets: tuple[_Target, ...]
) -> tuple[list[_Result], dict[str, _Target]]:
    """Results of invalid targets, and the valid targets by topic name."""
    results: list[_Result] = []
    found: dict[str, _Target] = {}
    for target, times in Counter(targets).items():
        rejection = _target_problem(image, target, times)
        known = image.topic_by_id(target.topic_id)
        name = target.name or (known.name if known else "")
        if rejection is None and name in found:
            text = "The provided topic name maps to an ID that was already supplied."
            rejection = ChangeRejected(ErrorCode.INVALID_REQUEST, text)
        if rejection is None:
            found[name] = _Target(name, target.topic_id)
        else:
            results.append(_Result(target, rejection))
    return results, found


def _target_problem(image: Image, target: _Target, times: int) -> ChangeRejected | None:
    invalid = ErrorCode.INVALID_REQUEST
    by_id = target.topic_id != ZERO_UUID
    if target.name is None and not by_id:
        return ChangeRejected(invalid, "Neither topic name nor id were specified.")
    if target.name is not None and by_id:
        return ChangeRejected(invalid, "You may not specify both topic name and topic id.")
    if times > 1:
        return ChangeRejected(invalid, f"Duplicate topic {'id' if by_id else 'name'}.")
    if by_id and image.topic_by_id(target.topic_id) is None:
        return ChangeRejected(ErrorCode.UNKNOWN_TOPIC_ID, "There is no topic with this id.")
    return None


DELETE_TOPICS: ServedApi = at_controller(
    _delete_topics,
    key=ApiKey.DELETE_TOPICS,
    versions=(1, 6),
    requires=SPECIAL,
    reject=_reject_deletion,
    left_out=("deleting __consumer_offsets: groups find their offsets in it, so it is refused",),
)


# DescribeTopicPartitions (75) ---------------------------------------------------------------------
#
# Topics and partitions page by page (KIP-966). Version 0. Topics are sorted by name. A page ends at
# the limit of the request or of ``max.request.partition.size.limit``, and its cursor names the
# partition that the next page starts with. Without topics in the request all are described, except
# those that the caller may not describe. A cursor outside of the requested topics or below 0 gets
# INVALID_REQUEST for each topic. There are no eligible leader replicas: one broker has one replica,
# which is in sync. In Kafka: ``DescribeTopicPartitionsRequestHandler``.


NO_LEADER: Final = -1


def _describe_topic_partitions(
    ctx: Context, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    """One page from the current image."""
    if has_invalid_cursor(request):
        return _refused_page(request, ErrorCode.INVALID_REQUEST)
    limit = min(ctx.settings[MAX_REQUEST_PARTITION_SIZE_LIMIT], request.response_partition_limit)
    left = max(limit, 1)
    page = DescribeTopicPartitionsResponse()
    for name in names_from_cursor(ctx, request):
        if left == 0:
            page.next_cursor = Cursor(topic_name=name, partition_index=0)
            break
        topic = ctx.image.topics.get(name)
        if topic is None:
            page.topics.append(_unknown_topic(name))
            continue
        cursor = request.cursor
        first = cursor.partition_index if cursor and cursor.topic_name == name else 0
        described = _described_topic(ctx, topic, topic.partitions[first : first + left])
        page.topics.append(described)
        left -= len(described.partitions)
        if first + len(described.partitions) < len(topic.partitions) and left == 0:
            next_index = first + len(described.partitions)
            page.next_cursor = Cursor(topic_name=name, partition_index=next_index)
            break
    return page


def has_invalid_cursor(request: DescribeTopicPartitionsRequest) -> bool:
    """Whether the cursor is not one that a response of the same request could have had."""
    cursor = request.cursor
    if cursor is None:
        return False
    names = {topic.name for topic in request.topics}
    return cursor.partition_index < 0 or bool(names and cursor.topic_name not in names)


def names_from_cursor(ctx: Context, request: DescribeTopicPartitionsRequest) -> list[str]:
    """The names of the topics to describe, from the topic of the cursor on, sorted."""
    first = request.cursor.topic_name if request.cursor else ""
    names = {topic.name for topic in request.topics} if request.topics else ctx.image.topics.keys()
    return sorted(name for name in names if name >= first)


def _refused_page(
    request: DescribeTopicPartitionsRequest, error: ErrorCode
) -> DescribeTopicPartitionsResponse:
    """The same error for every topic of the request."""
    return DescribeTopicPartitionsResponse(
        topics=[
            DescribeTopicPartitionsResponseTopic(error_code=error, name=topic.name)
            for topic in request.topics
        ]
    )


def _unknown_topic(name: str) -> DescribeTopicPartitionsResponseTopic:
    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if name_problem(name):
        error = ErrorCode.INVALID_TOPIC_EXCEPTION
    return DescribeTopicPartitionsResponseTopic(
        error_code=error, name=name, topic_authorized_operations=TOPIC_OPERATIONS
    )


def _described_topic(
    ctx: Context, topic: Topic, partitions: tuple[PartitionRegistration, ...]
) -> DescribeTopicPartitionsResponseTopic:
    reachable = {broker.broker_id for broker, _, _ in ctx.image.brokers_at(ctx.caller.listener)}
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TO_CLIENTS,
        partitions=[
            DescribeTopicPartitionsResponsePartition(
                partition_index=partition.index,
                leader_id=partition.leader if partition.leader in reachable else NO_LEADER,
                leader_epoch=partition.leader_epoch,
                replica_nodes=list(partition.replicas),
                isr_nodes=list(partition.isr),
                eligible_leader_replicas=[],
                last_known_elr=[],
                offline_replicas=[
                    broker_id for broker_id in partition.replicas if broker_id not in reachable
                ],
            )
            for partition in partitions
        ],
        topic_authorized_operations=TOPIC_OPERATIONS,
    )


DESCRIBE_TOPIC_PARTITIONS = without_owner(
    _describe_topic_partitions,
    key=ApiKey.DESCRIBE_TOPIC_PARTITIONS,
    versions=(0, 0),
    requires=SPECIAL,
)


APIS = (
    CREATE_TOPICS,
    CREATE_PARTITIONS,
    DELETE_TOPICS,
    DESCRIBE_TOPIC_PARTITIONS,
)
