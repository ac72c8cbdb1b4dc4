"""ControlledShutdown (7): ask the controller to move the leaders away from a stopping broker.

Versions 0-3; the header of version 0 has no client id. The cluster has one broker, so no leader can
move. As in Kafka, the response lists the partitions with several replicas that the broker still
leads; there usually are none. The request stops nothing: the sender stops itself. The id of another
broker gets BROKER_NOT_AVAILABLE, also with a broker epoch, where Kafka answers
UNKNOWN_SERVER_ERROR. In Kafka: ``KafkaController.doControlledShutdown``.
"""

from __future__ import annotations

from minibroker.broker.apis.base import Context, Requires, without_owner
from minibroker.broker.apis.control_requests import broker_epoch_problem
from minibroker.broker.security.acl import Operation
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.controlled_shutdown import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    RemainingPartition,
)
from minibroker_protocol.registry import ApiKey


def answer(ctx: Context, request: ControlledShutdownRequest) -> ControlledShutdownResponse:
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


API = without_owner(
    answer,
    key=ApiKey.CONTROLLED_SHUTDOWN,
    versions=(0, 3),
    requires=(Requires(Operation.CLUSTER_ACTION, Meaning.CLUSTER),),
    cluster_action=True,
    left_out=("moving leaders: there is no other broker to lead",),
)
