"""Common part of LeaderAndIsr, StopReplica, UpdateMetadata and ControlledShutdown.

Validates the epochs of a controller request and reads its partitions in every version. This broker
is its own controller and sends itself no such requests, so each comes from another broker or from
a tool. Invariant: no such request changes the metadata, the leaders or the logs of this broker,
and no response claims that it did. In Kafka: ``ZkBrokerEpochManager`` and ``ReplicaManager``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from minibroker.broker.metadata.image import Image
from minibroker_protocol.errors import ErrorCode
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
