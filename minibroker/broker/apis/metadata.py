"""Metadata (3): the brokers, and the topics with their partitions and leaders.

Versions 0-13. Null selects all topics, in version 0 an empty list. A topic that does not exist is
created if the request (from version 4 on) and ``auto.create.topics.enable`` permit it, and the
response contains it; Kafka first returns an error and the client retries, and so does this broker
with a persona. Its partitions count
against the controller mutation quota as in CreateTopics. If the quota is exceeded, the topic is not
created in any version, and the client is not throttled but retries (KIP-599). From version 12 on
topics may be given by id; if a request has any id, its names are ignored, as in Kafka. Brokers are
listed with their endpoints on the listener of the request. In Kafka:
``KafkaApis.handleTopicMetadataRequest`` and ``AutoTopicCreationManager``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from minibroker.broker.apis.base import (
    CONTROLLER,
    SPECIAL,
    Api,
    Context,
    ControllerScope,
    Mutator,
    Owner,
)
from minibroker.broker.metadata.image import PartitionRegistration, Topic
from minibroker.broker.metadata.topics import INTERNAL_TO_CLIENTS, NewTopic, name_problem
from minibroker.broker.quotas.manager import Mutated
from minibroker.broker.security.acl import (
    CLUSTER_OPERATIONS,
    OPERATIONS_NOT_ASKED,
    TOPIC_OPERATIONS,
)
from minibroker.broker.settings import AUTO_CREATE_TOPICS_ENABLE, PERSONA
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.types import ZERO_UUID


class MetadataPart(NamedTuple):
    """Names of topics to create, and the caller that creates them."""

    names: tuple[str, ...]
    mutator: Mutator


class MetadataReply(NamedTuple):
    """Errors of topics for the response, and the recorded controller mutations.

    A topic that was created has an error if the persona's broker returns one for a new topic.
    """

    creation_errors: Mapping[str, int]
    mutated: Mutated


def split(ctx: Context, request: MetadataRequest) -> Mapping[Owner, MetadataPart]:
    """Send the topics to create, if any, to the controller."""
    if not (request.allow_auto_topic_creation and ctx.settings[AUTO_CREATE_TOPICS_ENABLE]):
        return {}
    if _wants_all(ctx, request) or _is_malformed(ctx, request) or _ids(request):
        return {}
    missing = tuple(
        name for name in _names(request) if name not in ctx.image.topics and not name_problem(name)
    )
    # In Kafka the broker forwards the newest version of CreateTopics to the controller.
    if not missing:
        return {}
    mutator = Mutator(ctx.caller.principal.name, ctx.header.client_id or "", strict=True)
    return {CONTROLLER: MetadataPart(missing, mutator)}


async def execute_at_controller(scope: ControllerScope, part: MetadataPart) -> MetadataReply:
    """Create the topics with the broker's defaults."""
    mutations = scope.mutations(part.mutator)
    wanted = [NewTopic(name) for name in part.names]
    outcome = await scope.cluster.create_topics(wanted, allow=mutations.take)
    await scope.publish(outcome.updates)
    creation_errors = {each.name: each.rejection.code for each in outcome.topics if each.rejection}
    persona = scope.settings[PERSONA]
    if persona is not None and persona.behaviour.new_topic_error:
        new_topic_error = ErrorCode(persona.behaviour.new_topic_error)
        creation_errors = dict.fromkeys(part.names, new_topic_error) | creation_errors
    return MetadataReply(creation_errors, mutations.mutated())


def merge(
    ctx: Context, request: MetadataRequest, replies: Mapping[Owner, MetadataReply]
) -> MetadataResponse:
    """Describe the brokers and topics from the current image."""
    creation_errors: Mapping[str, int] = {}
    if CONTROLLER in replies:
        creation_errors, ctx.mutated = replies[CONTROLLER]
    cluster_operations = OPERATIONS_NOT_ASKED
    if request.include_cluster_authorized_operations:
        cluster_operations = CLUSTER_OPERATIONS
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=broker.broker_id, host=host, port=port, rack=broker.rack)
            for broker, host, port in ctx.image.brokers_at(
                ctx.caller.listener, ctx.caller.connected_to
            )
        ],
        cluster_id=ctx.image.cluster_id,
        controller_id=ctx.image.controller_id,
        topics=list(_topics(ctx, request, creation_errors)),
        cluster_authorized_operations=cluster_operations,
    )


def _topics(
    ctx: Context, request: MetadataRequest, creation_errors: Mapping[str, int]
) -> Iterator[MetadataResponseTopic]:
    operations = (
        TOPIC_OPERATIONS if request.include_topic_authorized_operations else OPERATIONS_NOT_ASKED
    )
    image = ctx.image
    if _wants_all(ctx, request):
        for topic in image.topics.values():
            yield _topic(ctx, topic, operations)
    elif _is_malformed(ctx, request):
        for each in request.topics or ():
            yield _error(ErrorCode.INVALID_REQUEST, each.name or "", each.topic_id)
    elif ids := _ids(request):
        for topic_id in ids:
            known = image.topic_by_id(topic_id)
            if known is None:
                yield _error(ErrorCode.UNKNOWN_TOPIC_ID, None, topic_id)
            else:
                yield _topic(ctx, known, operations)
    else:
        for name in _names(request):
            known = image.topics.get(name)
            if known is None or (name in creation_errors and ctx.settings[PERSONA] is not None):
                yield _error(_missing_error(name, creation_errors), name, operations=operations)
            else:
                yield _topic(ctx, known, operations)


def _wants_all(ctx: Context, request: MetadataRequest) -> bool:
    return request.topics is None or (ctx.version == 0 and not request.topics)


def _is_malformed(ctx: Context, request: MetadataRequest) -> bool:
    """Whether the request has topic ids or null names in a version that does not support them."""
    return ctx.version < 12 and any(
        topic.name is None or topic.topic_id != ZERO_UUID for topic in request.topics or ()
    )


def _ids(request: MetadataRequest) -> list[bytes]:
    ids = (topic.topic_id for topic in request.topics or ())
    return list(dict.fromkeys(topic_id for topic_id in ids if topic_id != ZERO_UUID))


def _names(request: MetadataRequest) -> list[str]:
    return list(
        dict.fromkeys(topic.name for topic in request.topics or () if topic.name is not None)
    )


def _missing_error(name: str, creation_errors: Mapping[str, int]) -> int:
    if name_problem(name):
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    error = creation_errors.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if error == ErrorCode.TOPIC_ALREADY_EXISTS:
        # Another request has just created it and this process has not applied it yet.
        return ErrorCode.LEADER_NOT_AVAILABLE
    if error == ErrorCode.THROTTLING_QUOTA_EXCEEDED:
        # Clients do not expect a quota error here; with this one they retry.
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return error


def _error(
    code: int,
    name: str | None,
    topic_id: bytes = ZERO_UUID,
    *,
    operations: int = OPERATIONS_NOT_ASKED,
) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=code, name=name, topic_id=topic_id, topic_authorized_operations=operations
    )


def _topic(ctx: Context, topic: Topic, operations: int) -> MetadataResponseTopic:
    listener = ctx.caller.listener
    brokers = ctx.image.brokers
    reachable = {key for key, broker in brokers.items() if listener in broker.endpoints}
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TO_CLIENTS,
        partitions=[_partition(ctx, partition, reachable) for partition in topic.partitions],
        topic_authorized_operations=operations,
    )


def _partition(
    ctx: Context, partition: PartitionRegistration, reachable: set[int]
) -> MetadataResponsePartition:
    offline = [broker_id for broker_id in partition.replicas if broker_id not in reachable]
    replicas, isr = list(partition.replicas), list(partition.isr)
    error, leader = ErrorCode.NONE, partition.leader
    if ctx.version == 0 and offline:
        # Version 0 has no field for offline replicas, so it omits them and returns an error.
        replicas = [broker_id for broker_id in replicas if broker_id in reachable]
        isr = [broker_id for broker_id in isr if broker_id in reachable]
        error = ErrorCode.REPLICA_NOT_AVAILABLE
    if leader not in reachable:
        known = leader in ctx.image.brokers and ctx.version >= 6
        error = ErrorCode.LISTENER_NOT_FOUND if known else ErrorCode.LEADER_NOT_AVAILABLE
        leader = -1
    return MetadataResponsePartition(
        error_code=error,
        partition_index=partition.index,
        leader_id=leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=replicas,
        isr_nodes=isr,
        offline_replicas=offline,
    )


API = Api(
    key=ApiKey.METADATA,
    versions=(0, 13),
    requires=SPECIAL,
    split=split,
    execute_at_controller=execute_at_controller,
    merge=merge,
    is_cacheable=True,
)
