"""Which topics a consumer asks for, read from what it sends along with its protocol.

The coordinator passes members' metadata on without understanding it; only the expiry and the
deletion of offsets need to know which topics are still consumed. It must never refuse a member
over metadata that it can't read. Invariant: any bytes give a set of names or None. As Kafka's
``ClassicGroup.computeSubscribedTopics``, it reads version 0, which every later version of
``ConsumerProtocolSubscription`` begins with.
"""

from __future__ import annotations

from typing import Final

from protocol.compiler import decoder
from protocol.errors import DecodeError
from protocol.messages.consumer_protocol import ConsumerProtocolSubscription

CONSUMER_PROTOCOL_TYPE: Final = "consumer"
_VERSION_BYTES: Final = 2


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """Topic names of a subscription, or None if these bytes are not one."""
    version = int.from_bytes(metadata[:_VERSION_BYTES], "big", signed=True)
    if len(metadata) < _VERSION_BYTES or version < 0:
        return None
    try:
        subscription, _ = decoder(ConsumerProtocolSubscription, 0)(metadata, _VERSION_BYTES)
    except DecodeError:
        return None
    return frozenset(subscription.topics)
