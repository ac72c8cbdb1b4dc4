"""LeaderAndIsr (4): a controller assigns leaders and followers of partitions to the broker.

Versions 0-7. This broker is its own controller, so no request changes a leader. An unknown
partition gets UNKNOWN_TOPIC_OR_PARTITION and is not created, a different topic id gets
INCONSISTENT_TOPIC_ID, and a known partition STALE_CONTROLLER_EPOCH, as in Kafka for a leader epoch
that is not newer. A KRaft controller may repeat a request, so it gets no error if its state equals
that of the image. Requests with a stale epoch are rejected as a whole. In Kafka:
``ReplicaManager.becomeLeaderOrFollower``.
"""

from __future__ import annotations

from collections.abc import Callable

from minibroker.broker.apis.base import Context, Requires, without_owner
from minibroker.broker.apis.control_requests import (
    FOREIGN_CONTROLLER_ERROR,
    broker_epoch_problem,
    controller_epoch_problem,
    partition_states,
)
from minibroker.broker.metadata.image import Image
from minibroker.broker.security.acl import Operation
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.leader_and_isr import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
)
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.types import ZERO_UUID, Uuid

Decide = Callable[[str, Uuid, LeaderAndIsrPartitionState], ErrorCode]


def answer(ctx: Context, request: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
    """One error per partition, or one for the whole request."""
    image = ctx.image
    stale = broker_epoch_problem(image, request.broker_epoch)
    stale = stale or controller_epoch_problem(image, request.controller_epoch)
    if stale:
        return error_response(request, stale)

    def decide(name: str, topic_id: Uuid, state: LeaderAndIsrPartitionState) -> ErrorCode:
        return _decision(image, name, topic_id, state, may_repeat=request.is_kraft_controller)

    return _response(request, ErrorCode.NONE, decide)


def error_response(request: LeaderAndIsrRequest, error: ErrorCode) -> LeaderAndIsrResponse:
    """The same error at the top level and for each partition."""
    return _response(request, error, lambda _name, _id, _state: error)


def _decision(
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


def _response(
    request: LeaderAndIsrRequest, error: ErrorCode, decide: Decide
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


API = without_owner(
    answer,
    key=ApiKey.LEADER_AND_ISR,
    versions=(0, 7),
    requires=(Requires(Operation.CLUSTER_ACTION, Meaning.CLUSTER, refusal=error_response),),
    cluster_action=True,
    left_out=(
        (
            "becoming leader or follower: this broker is its own controller, rejects requests of "
            "others with STALE_CONTROLLER_EPOCH, and creates no partitions"
        ),
        "broker epochs of ZooKeeper: with each start the controller's epoch is the broker's, too",
    ),
)
