"""StopReplica (5): a controller stops or deletes replicas of the broker.

Versions 0-4. This broker has the only replica and is its own controller, so the request stops and
deletes nothing; DeleteTopics deletes topics. An unknown partition gets no error, as in Kafka. A
known one gets FENCED_LEADER_EPOCH for an old leader epoch, else STALE_CONTROLLER_EPOCH. Requests
with a stale epoch are rejected as a whole, without results per partition. In Kafka:
``ReplicaManager.stopReplicas``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from minibroker.broker.apis.base import Context, Requires, without_owner
from minibroker.broker.apis.control_requests import (
    FOREIGN_CONTROLLER_ERROR,
    broker_epoch_problem,
    controller_epoch_problem,
)
from minibroker.broker.metadata.image import Image
from minibroker.broker.security.acl import Operation
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.stop_replica import (
    StopReplicaPartitionError,
    StopReplicaRequest,
    StopReplicaResponse,
)
from minibroker_protocol.registry import ApiKey

NO_LEADER_EPOCH: Final = -1
DURING_DELETION: Final = -2
"""Leader epochs with a special meaning; requests before version 3 have no leader epoch."""


def answer(ctx: Context, request: StopReplicaRequest) -> StopReplicaResponse:
    """One error per partition, or one for the whole request."""
    image = ctx.image
    stale = broker_epoch_problem(image, request.broker_epoch)
    stale = stale or controller_epoch_problem(image, request.controller_epoch)
    if stale:
        return StopReplicaResponse(error_code=stale)
    return _response({
        (name, index): _decision(image, name, index, leader_epoch)
        for name, index, leader_epoch in _partitions(request)
    })  # fmt: skip


def error_response(request: StopReplicaRequest, error: ErrorCode) -> StopReplicaResponse:
    """The same error at the top level and for each partition."""
    response = _response({(name, index): error for name, index, _ in _partitions(request)})
    response.error_code = error
    return response


def _decision(image: Image, name: str, index: int, leader_epoch: int) -> ErrorCode:
    partition = image.partition(name, index)
    if partition is None:
        return ErrorCode.NONE
    if leader_epoch in (NO_LEADER_EPOCH, DURING_DELETION):
        return FOREIGN_CONTROLLER_ERROR
    is_old = leader_epoch < partition.leader_epoch
    return ErrorCode.FENCED_LEADER_EPOCH if is_old else FOREIGN_CONTROLLER_ERROR


def _partitions(request: StopReplicaRequest) -> Iterator[tuple[str, int, int]]:
    """Topic, index and leader epoch of each partition, in every version of the request."""
    for one in request.ungrouped_partitions:
        yield one.topic_name, one.partition_index, NO_LEADER_EPOCH
    for topic in request.topics:
        for index in topic.partition_indexes:
            yield topic.name, index, NO_LEADER_EPOCH
    for newer in request.topic_states:
        for state in newer.partition_states:
            yield newer.topic_name, state.partition_index, state.leader_epoch


def _response(errors: Mapping[tuple[str, int], ErrorCode]) -> StopReplicaResponse:
    return StopReplicaResponse(
        error_code=ErrorCode.NONE,
        partition_errors=[
            StopReplicaPartitionError(topic_name=name, partition_index=index, error_code=error)
            for (name, index), error in errors.items()
        ],
    )


API = without_owner(
    answer,
    key=ApiKey.STOP_REPLICA,
    versions=(0, 4),
    requires=(Requires(Operation.CLUSTER_ACTION, Meaning.CLUSTER, refusal=error_response),),
    cluster_action=True,
    left_out=(
        (
            "stopping and deleting: here is the only copy, and only this broker's own controller "
            "deletes, when DeleteTopics requests it; other requests get STALE_CONTROLLER_EPOCH"
        ),
    ),
)
