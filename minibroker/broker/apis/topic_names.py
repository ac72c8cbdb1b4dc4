"""Resolve topics that a request gives by name or, in newer versions, by id.

Several APIs share this rule. Invariant: a returned name is that of a topic in the image. In Kafka:
``KafkaApis`` with ``MetadataCache``.
"""

from __future__ import annotations

from minibroker.broker.apis.base import Context
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.types import Uuid


def requested_name(ctx: Context, name: str, topic_id: Uuid, *, by_id: bool) -> str | None:
    """Name of the requested topic, or None if it does not exist."""
    if by_id:
        return ctx.image.topic_names.get(topic_id)
    return name if name in ctx.image.topics else None


def unknown_topic(name: str | None, *, by_id: bool) -> ErrorCode:
    """Error of a partition that does not exist; ``name`` is None if its topic does not either."""
    if by_id and name is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
