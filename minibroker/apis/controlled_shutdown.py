"""ControlledShutdown (7): a broker that is to stop asks the controller to move its partitions.

Versions 0-3; before version 0 stands a header without a client id.  The only broker here is this
one, and there is nobody to take over: the answer names the partitions that it still leads and of
which there should be other copies, as Kafka does, none as a rule.  It stops nothing: who asks does
that.  Another broker's id gets BROKER_NOT_AVAILABLE, also with a broker epoch, where Kafka stumbles
(UNKNOWN_SERVER_ERROR).  Echoes ``KafkaController.doControlledShutdown``.
"""

from __future__ import annotations

from collections.abc import Mapping

from minibroker.apis.base import Api, Context, Owner
from minibroker.apis.control_requests import broker_epoch_problem
from protocol.errors import ErrorCode
from protocol.messages.controlled_shutdown import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    RemainingPartition,
)
from protocol.registry import ApiKey


def split(_ctx: Context, _request: ControlledShutdownRequest) -> Mapping[Owner, None]:
    """Nobody needs to be asked."""
    return {}


def merge(
    ctx: Context, request: ControlledShutdownRequest, _replies: Mapping[Owner, None]
) -> ControlledShutdownResponse:
    """What would be without a leader."""
    image = ctx.image
    if request.broker_id not in image.brokers:
        return refusal(request, ErrorCode.BROKER_NOT_AVAILABLE)
    stale = broker_epoch_problem(image, request.broker_epoch)
    if stale:
        return refusal(request, stale)
    return ControlledShutdownResponse(
        error_code=ErrorCode.NONE,
        remaining_partitions=[
            RemainingPartition(topic_name=topic.name, partition_index=partition.index)
            for topic in image.topics.values()
            for partition in topic.partitions
            if partition.leader == request.broker_id and len(partition.replicas) > 1
        ],
    )


def refusal(_request: ControlledShutdownRequest, error: ErrorCode) -> ControlledShutdownResponse:
    """An error, and no partitions."""
    return ControlledShutdownResponse(error_code=error)


API: Api[ControlledShutdownRequest, None, None, ControlledShutdownResponse] = Api(
    key=ApiKey.CONTROLLED_SHUTDOWN,
    versions=(0, 3),
    split=split,
    merge=merge,
    cluster_action=True,
    left_out=("moving leaders: there is no other broker to lead",),
)
