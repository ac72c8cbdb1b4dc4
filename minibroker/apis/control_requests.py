"""What LeaderAndIsr, StopReplica, UpdateMetadata and ControlledShutdown have in common.

Owns whether a request of a controller comes too late, and how versions group the partitions that it
names; it must never know what it asks for.  This broker is its own controller and tells itself
nothing over the wire, so whoever sends such a request is another one, or a tool.  The invariant:
nothing that such a request says changes what this broker knows, leads or keeps, and no answer says
that it did.  Echoes ``ZkBrokerEpochManager`` and the first lines of ``ReplicaManager``'s methods.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from minibroker.cluster.image import Image
from protocol.errors import ErrorCode
from protocol.types import ZERO_UUID, Uuid

UNKNOWN_BROKER_EPOCH: Final = -1
"""What senders say that are older than broker epochs (KIP-380): it is never stale."""

NOT_FROM_HERE: Final = ErrorCode.STALE_CONTROLLER_EPOCH
"""What is answered to orders: "the controller moved", namely to this broker itself."""


def broker_epoch_problem(image: Image, broker_epoch: int) -> ErrorCode:
    """Whether a request is meant for an earlier life of this broker.

    With each start the broker registers anew and takes a higher controller epoch, which is its
    broker epoch, too.
    """
    if UNKNOWN_BROKER_EPOCH < broker_epoch < image.controller_epoch:
        return ErrorCode.STALE_BROKER_EPOCH
    return ErrorCode.NONE


def controller_epoch_problem(image: Image, controller_epoch: int) -> ErrorCode:
    """Whether a request comes from a controller that is none any more."""
    if controller_epoch < image.controller_epoch:
        return ErrorCode.STALE_CONTROLLER_EPOCH
    return ErrorCode.NONE


def partition_states(request: Any) -> Iterator[tuple[str, Uuid, Any]]:
    """The partitions of a LeaderAndIsr or UpdateMetadata, as old and as newer versions have them:
    topic, its id, and the state of one.
    """
    for state in request.ungrouped_partition_states:
        yield state.topic_name, ZERO_UUID, state
    for topic in request.topic_states:
        for state in topic.partition_states:
            yield topic.topic_name, topic.topic_id, state
