"""Decodes the subscriptions and assignments that consumers exchange, and encodes assignments.

The coordinator forwards them as opaque bytes. They are decoded only to find the topics that are
still consumed, for the expiry and deletion of offsets, and to show assignments to users. It must
never reject a member because of bytes that can't be decoded. Invariant: no input raises an error.
Like Kafka's ``ClassicGroup.computeSubscribedTopics``, it reads version 0, because every later
version of ``ConsumerProtocolSubscription`` starts with the same fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

from minibroker_protocol.compiler import decoder, encode
from minibroker_protocol.errors import DecodeError
from minibroker_protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
)
from minibroker_protocol.schema import Message

CONSUMER_PROTOCOL_TYPE: Final = "consumer"
_VERSION_BYTES: Final = 2


MessageT = TypeVar("MessageT", bound=Message)


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """Topic names of a subscription, or None if the bytes can't be decoded."""
    subscription = _read(ConsumerProtocolSubscription, metadata)
    return None if subscription is None else frozenset(subscription.topics)


def assigned_partitions(assignment: bytes) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Partitions of an assignment by topic; empty if the bytes can't be decoded."""
    decoded = _read(ConsumerProtocolAssignment, assignment)
    if decoded is None:
        return ()
    return tuple(
        (assigned.topic, tuple(assigned.partitions)) for assigned in decoded.assigned_partitions
    )


def encode_assignment(topics: Mapping[str, Sequence[int]]) -> bytes:
    """An assignment of version 0 with its version, from partitions by topic."""
    assigned = [TopicPartition(topic=name, partitions=list(at)) for name, at in topics.items()]
    message = ConsumerProtocolAssignment(assigned_partitions=assigned)
    return bytes(_VERSION_BYTES) + encode(message, 0)


def _read(cls: type[MessageT], data: bytes) -> MessageT | None:
    version = int.from_bytes(data[:_VERSION_BYTES], "big", signed=True)
    if len(data) < _VERSION_BYTES or version < 0:
        return None
    try:
        return decoder(cls, 0)(data, _VERSION_BYTES)[0]
    except DecodeError:
        return None
