"""Which topics a consumer asks for and what it was given, read from the bytes members exchange.

The coordinator passes them on without understanding them; only the expiry and the deletion of
offsets need to know which topics are still consumed, and people want to see who has what. It must
never refuse a member over bytes that it can't read. Invariant: any bytes give an answer. As Kafka's
``ClassicGroup.computeSubscribedTopics``, it reads version 0, which every later version of
``ConsumerProtocolSubscription`` begins with.
"""

from __future__ import annotations

from typing import Final, TypeVar

from protocol.compiler import decoder
from protocol.errors import DecodeError
from protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)
from protocol.schema import Message

CONSUMER_PROTOCOL_TYPE: Final = "consumer"
_VERSION_BYTES: Final = 2


MessageT = TypeVar("MessageT", bound=Message)


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """Topic names of a subscription, or None if these bytes are not one."""
    subscription = _read(ConsumerProtocolSubscription, metadata)
    return None if subscription is None else frozenset(subscription.topics)


def assigned_partitions(assignment: bytes) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Partitions by topic of an assignment; none if these bytes are not one."""
    found = _read(ConsumerProtocolAssignment, assignment)
    if found is None:
        return ()
    return tuple((each.topic, tuple(each.partitions)) for each in found.assigned_partitions)


def _read(cls: type[MessageT], data: bytes) -> MessageT | None:
    version = int.from_bytes(data[:_VERSION_BYTES], "big", signed=True)
    if len(data) < _VERSION_BYTES or version < 0:
        return None
    try:
        return decoder(cls, 0)(data, _VERSION_BYTES)[0]
    except DecodeError:
        return None
