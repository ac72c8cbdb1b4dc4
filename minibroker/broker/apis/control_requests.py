"""LeaderAndIsr, StopReplica, UpdateMetadata and ControlledShutdown, as before Kafka 4.

Validates the epochs of a controller request and reads its partitions in every version. This broker
is its own controller and sends itself no such requests, so each comes from another broker or from
a tool. Invariant: no such request changes the metadata, the leaders or the logs of this broker,
and no response claims that it did. In Kafka: ``ZkBrokerEpochManager`` and ``ReplicaManager``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from minibroker.broker.apis.base import Context, Requires, without_owner
from minibroker.broker.metadata.image import Broker, Image
from minibroker.broker.security.acl import Operation
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.controlled_shutdown import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    RemainingPartition,
)
from minibroker_protocol.messages.leader_and_isr import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
)
from minibroker_protocol.messages.stop_replica import (
    StopReplicaPartitionError,
    StopReplicaRequest,
    StopReplicaResponse,
)
from minibroker_protocol.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.types import ZERO_UUID, Uuid

CONTROL_REQUESTS: Final = frozenset(
    {
        ApiKey.LEADER_AND_ISR,
        ApiKey.STOP_REPLICA,
        ApiKey.UPDATE_METADATA,
        ApiKey.CONTROLLED_SHUTDOWN,
    }
)
"""What controllers and brokers sent to each other before Kafka 4."""

UNKNOWN_BROKER_EPOCH: Final = -1
"""Broker epoch in requests from before KIP-380; it is never stale."""

FOREIGN_CONTROLLER_ERROR: Final = ErrorCode.STALE_CONTROLLER_EPOCH
"""Error for a controller's commands: the controller is this broker itself."""


def broker_epoch_problem(image: Image, broker_epoch: int) -> ErrorCode:
    """Whether the broker epoch of a request is stale.

    With each start the broker registers again and takes a higher controller epoch, which is also
    its broker epoch.
    """
    if UNKNOWN_BROKER_EPOCH < broker_epoch < image.controller_epoch:
        return ErrorCode.STALE_BROKER_EPOCH
    return ErrorCode.NONE


def controller_epoch_problem(image: Image, controller_epoch: int) -> ErrorCode:
    """Whether the controller epoch of a request is stale."""
    if controller_epoch < image.controller_epoch:
        return ErrorCode.STALE_CONTROLLER_EPOCH
    return ErrorCode.NONE


def partition_states(request: Any) -> Iterator[tuple[str, Uuid, Any]]:
    """Topic, topic id and state of each partition in a LeaderAndIsr or UpdateMetadata request.

    Older versions have a flat list, newer ones group the partitions by topic.
    """
    for state in request.ungrouped_partition_states:
        yield state.topic_name, ZERO_UUID, state
    for topic in request.topic_states:
        for state in topic.partition_states:
            yield topic.topic_name, topic.topic_id, state


# LeaderAndIsr (4) ---------------------------------------------------------------------------------
#
# A controller assigns leaders and followers of partitions to the broker. Versions 0-7. This broker
# is its own controller, so no request changes a leader. An unknown partition gets
# UNKNOWN_TOPIC_OR_PARTITION and is not created, a different topic id gets INCONSISTENT_TOPIC_ID,
# and a known partition STALE_CONTROLLER_EPOCH, as in Kafka for a leader epoch that is not newer. A
# KRaft controller may repeat a request, so it gets no error if its state equals that of the image.
# Requests with a stale epoch are rejected as a whole. In Kafka:
# ``ReplicaManager.becomeLeaderOrFollower``.


_Decide = Callable[[str, Uuid, LeaderAndIsrPartitionState], ErrorCode]


def _leader_and_isr(ctx: Context, request: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
    """One error per partition, or one for the whole request."""
    image = ctx.image
    stale = broker_epoch_problem(image, request.broker_epoch)
    stale = stale or controller_epoch_problem(image, request.controller_epoch)
    if stale:
        return refuse_leader_and_isr(request, stale)

    def decide(name: str, topic_id: Uuid, state: LeaderAndIsrPartitionState) -> ErrorCode:
        return _leader_and_isr_error(
            image, name, topic_id, state, may_repeat=request.is_kraft_controller
        )

    return _leader_and_isr_response(request, ErrorCode.NONE, decide)


def refuse_leader_and_isr(request: LeaderAndIsrRequest, error: ErrorCode) -> LeaderAndIsrResponse:
    """The same error at the top level and for each partition."""
    return _leader_and_isr_response(request, error, lambda _name, _id, _state: error)


def _leader_and_isr_error(
    image: Image,
    name: str,
    topic_id: Uuid,
    state: LeaderAndIsrPartitionState,
    *,
    may_repeat: bool,
) -> ErrorCode:
    partition = image.partition(name, state.partition_index)
    if partition is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if topic_id not in (ZERO_UUID, image.topics[name].topic_id):
        return ErrorCode.INCONSISTENT_TOPIC_ID
    is_newer = state.leader_epoch > partition.leader_epoch
    if is_newer and image.controller_id not in state.replicas:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    requested = state.leader, state.leader_epoch, tuple(state.isr), tuple(state.replicas)
    known = partition.leader, partition.leader_epoch, partition.isr, partition.replicas
    return ErrorCode.NONE if may_repeat and requested == known else FOREIGN_CONTROLLER_ERROR


def _leader_and_isr_response(
    request: LeaderAndIsrRequest, error: ErrorCode, decide: _Decide
) -> LeaderAndIsrResponse:
    errors = dict[tuple[str, Uuid], dict[int, ErrorCode]]()
    for name, topic_id, state in partition_states(request):
        of_topic = errors.setdefault((name, topic_id), {})
        of_topic[state.partition_index] = decide(name, topic_id, state)
    topics = [
        LeaderAndIsrTopicError(
            topic_id=topic_id,
            partition_errors=[
                LeaderAndIsrPartitionError(topic_name=name, partition_index=index, error_code=code)
                for index, code in of_topic.items()
            ],
        )
        for (name, topic_id), of_topic in errors.items()
    ]
    flat = [one for topic in topics for one in topic.partition_errors]
    return LeaderAndIsrResponse(error_code=error, partition_errors=flat, topics=topics)


LEADER_AND_ISR = without_owner(
    _leader_and_isr,
    key=ApiKey.LEADER_AND_ISR,
    versions=(0, 7),
    requires=(Requires(Operation.CLUSTER_ACTION, Meaning.CLUSTER, refusal=refuse_leader_and_isr),),
    cluster_action=True,
    left_out=(
        (
            "becoming leader or follower: this broker is its own controller, rejects requests of "
            "others with STALE_CONTROLLER_EPOCH, and creates no partitions"
        ),
        "broker epochs of ZooKeeper: with each start the controller's epoch is the broker's, too",
    ),
)


# StopReplica (5) ----------------------------------------------------------------------------------
#
# A controller stops or deletes replicas of the broker. Versions 0-4. This broker has the only
# replica and is its own controller, so the request stops and deletes nothing; DeleteTopics deletes
# topics. An unknown partition gets no error, as in Kafka. A known one gets FENCED_LEADER_EPOCH for
# an old leader epoch, else STALE_CONTROLLER_EPOCH. Requests with a stale epoch are rejected as a
# whole, without results per partition. In Kafka: ``ReplicaManager.stopReplicas``.


NO_LEADER_EPOCH: Final = -1
DURING_DELETION: Final = -2
"""Leader epochs with a special meaning; requests before version 3 have no leader epoch."""


def _stop_replica(ctx: Context, request: StopReplicaRequest) -> StopReplicaResponse:
    """One error per partition, or one for the whole request."""
    image = ctx.image
    stale = broker_epoch_problem(image, request.broker_epoch)
    stale = stale or controller_epoch_problem(image, request.controller_epoch)
    if stale:
        return StopReplicaResponse(error_code=stale)
    return _stop_replica_response({
        (name, index): _stop_replica_error(image, name, index, leader_epoch)
        for name, index, leader_epoch in _stopped_partitions(request)
    })  # fmt: skip


def refuse_stop_replica(request: StopReplicaRequest, error: ErrorCode) -> StopReplicaResponse:
    """The same error at the top level and for each partition."""
    response = _stop_replica_response(
        {(name, index): error for name, index, _ in _stopped_partitions(request)}
    )
    response.error_code = error
    return response


def _stop_replica_error(image: Image, name: str, index: int, leader_epoch: int) -> ErrorCode:
    partition = image.partition(name, index)
    if partition is None:
        return ErrorCode.NONE
    if leader_epoch in (NO_LEADER_EPOCH, DURING_DELETION):
        return FOREIGN_CONTROLLER_ERROR
    is_old = leader_epoch < partition.leader_epoch
    return ErrorCode.FENCED_LEADER_EPOCH if is_old else FOREIGN_CONTROLLER_ERROR


def _stopped_partitions(request: StopReplicaRequest) -> Iterator[tuple[str, int, int]]:
    """Topic, index and leader epoch of each partition, in every version of the request."""
    for one in request.ungrouped_partitions:
        yield one.topic_name, one.partition_index, NO_LEADER_EPOCH
    for topic in request.topics:
        for index in topic.partition_indexes:
            yield topic.name, index, NO_LEADER_EPOCH
    for newer in request.topic_states:
        for state in newer.partition_states:
            yield newer.topic_name, state.partition_index, state.leader_epoch


def _stop_replica_response(errors: Mapping[tuple[str, int], ErrorCode]) -> StopReplicaResponse:
    return StopReplicaResponse(
        error_code=ErrorCode.NONE,
        partition_errors=[
            StopReplicaPartitionError(topic_name=name, partition_index=index, error_code=error)
            for (name, index), error in errors.items()
        ],
    )


STOP_REPLICA = without_owner(
    _stop_replica,
    key=ApiKey.STOP_REPLICA,
    versions=(0, 4),
    requires=(Requires(Operation.CLUSTER_ACTION, Meaning.CLUSTER, refusal=refuse_stop_replica),),
    cluster_action=True,
    left_out=(
        (
            "stopping and deleting: here is the only copy, and only this broker's own controller "
            "deletes, when DeleteTopics requests it; other requests get STALE_CONTROLLER_EPOCH"
        ),
    ),
)


# UpdateMetadata (6) -------------------------------------------------------------------------------
#
# A controller sends the brokers and the changed partitions. Versions 0-8. This broker is its own
# controller and applies no update. An update that equals the image gets no error; any other gets
# UNKNOWN_TOPIC_OR_PARTITION, INCONSISTENT_TOPIC_ID, or else STALE_CONTROLLER_EPOCH. The list of
# brokers is complete, that of partitions has changes only. A deleted partition equals the image if
# the image does not have it. In Kafka: ``ReplicaManager.maybeUpdateMetadataCache`` and
# ``ZkMetadataCache``.


GONE: Final = -2
"""The leader of a partition whose topic is deleted."""


def _update_metadata(ctx: Context, request: UpdateMetadataRequest) -> UpdateMetadataResponse:
    """Return the first error found, for the whole request."""
    image = ctx.image
    error = broker_epoch_problem(image, request.broker_epoch)
    error = error or controller_epoch_problem(image, request.controller_epoch)
    for name, topic_id, state in partition_states(request):
        error = error or _partition_problem(image, name, topic_id, state)
    if not error and not _are_known(image, request.live_brokers, ctx.version):
        error = FOREIGN_CONTROLLER_ERROR
    return UpdateMetadataResponse(error_code=error)


def _partition_problem(
    image: Image, name: str, topic_id: Uuid, state: UpdateMetadataPartitionState
) -> ErrorCode:
    partition = image.partition(name, state.partition_index)
    if partition is None:
        gone = state.leader == GONE
        return ErrorCode.NONE if gone else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if topic_id not in (ZERO_UUID, image.topics[name].topic_id):
        return ErrorCode.INCONSISTENT_TOPIC_ID
    requested = state.leader, state.leader_epoch, tuple(state.isr), tuple(state.replicas)
    known = partition.leader, partition.leader_epoch, partition.isr, partition.replicas
    return ErrorCode.NONE if requested == known else FOREIGN_CONTROLLER_ERROR


def _are_known(image: Image, sent: list[UpdateMetadataBroker], version: int) -> bool:
    """Whether the brokers equal those of the image, in the fields that this version has."""
    if {one.id for one in sent} != set(image.brokers):
        return False
    return all(_is_known(image.brokers[one.id], one, version) for one in sent)


def _is_known(broker: Broker, sent: UpdateMetadataBroker, version: int) -> bool:
    if version == 0:
        return (sent.v0_host, sent.v0_port) in broker.endpoints.values()
    if version >= 2 and sent.rack != broker.rack:
        return False
    if version < 3:
        requested = {(endpoint.host, endpoint.port) for endpoint in sent.endpoints}
        return requested == set(broker.endpoints.values())
    named = {endpoint.listener: (endpoint.host, endpoint.port) for endpoint in sent.endpoints}
    return named == dict(broker.endpoints)


UPDATE_METADATA = without_owner(
    _update_metadata,
    key=ApiKey.UPDATE_METADATA,
    versions=(0, 8),
    requires=(Requires(Operation.CLUSTER_ACTION, Meaning.CLUSTER),),
    cluster_action=True,
    left_out=(
        (
            "applying the metadata of another controller: this broker is its own, and rejects what "
            "differs from what it knows"
        ),
    ),
)


# ControlledShutdown (7) ---------------------------------------------------------------------------
#
# Ask the controller to move the leaders away from a stopping broker. Versions 0-3; the header of
# version 0 has no client id. The cluster has one broker, so no leader can move. As in Kafka, the
# response lists the partitions with several replicas that the broker still leads; there usually are
# none. The request stops nothing: the sender stops itself. The id of another broker gets
# BROKER_NOT_AVAILABLE, also with a broker epoch, where Kafka answers UNKNOWN_SERVER_ERROR. In
# Kafka: ``KafkaController.doControlledShutdown``.


def _controlled_shutdown(
    ctx: Context, request: ControlledShutdownRequest
) -> ControlledShutdownResponse:
    """List the partitions that the broker still leads."""
    image = ctx.image
    if request.broker_id not in image.brokers:
        return ControlledShutdownResponse(error_code=ErrorCode.BROKER_NOT_AVAILABLE)
    stale = broker_epoch_problem(image, request.broker_epoch)
    if stale:
        return ControlledShutdownResponse(error_code=stale)
    return ControlledShutdownResponse(
        error_code=ErrorCode.NONE,
        remaining_partitions=[
            RemainingPartition(topic_name=topic.name, partition_index=partition.index)
            for topic in image.topics.values()
            for partition in topic.partitions
            if partition.leader == request.broker_id and len(partition.replicas) > 1
        ],
    )


CONTROLLED_SHUTDOWN = without_owner(
    _controlled_shutdown,
    key=ApiKey.CONTROLLED_SHUTDOWN,
    versions=(0, 3),
    requires=(Requires(Operation.CLUSTER_ACTION, Meaning.CLUSTER),),
    cluster_action=True,
    left_out=("moving leaders: there is no other broker to lead",),
)


APIS = (
    LEADER_AND_ISR,
    STOP_REPLICA,
    UPDATE_METADATA,
    CONTROLLED_SHUTDOWN,
)
