"""UpdateMetadata (6): a controller sends the brokers and the changed partitions.

Versions 0-8. This broker is its own controller and applies no update. An update that equals the
image gets no error; any other gets UNKNOWN_TOPIC_OR_PARTITION, INCONSISTENT_TOPIC_ID, or else
STALE_CONTROLLER_EPOCH. The list of brokers is complete, that of partitions has changes only. A
deleted partition equals the image if the image does not have it. In Kafka:
``ReplicaManager.maybeUpdateMetadataCache`` and ``ZkMetadataCache``.
"""

from __future__ import annotations

from typing import Final

from minibroker.broker.apis.base import Context, Requires, without_owner
from minibroker.broker.apis.control_requests import (
    FOREIGN_CONTROLLER_ERROR,
    broker_epoch_problem,
    controller_epoch_problem,
    partition_states,
)
from minibroker.broker.metadata.image import Broker, Image
from minibroker.broker.security.acl import Operation
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.types import ZERO_UUID, Uuid

GONE: Final = -2
"""The leader of a partition whose topic is deleted."""


def answer(ctx: Context, request: UpdateMetadataRequest) -> UpdateMetadataResponse:
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


API = without_owner(
    answer,
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
