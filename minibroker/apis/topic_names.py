"""Topics by name or by id: which of the two a request's version means, and what a miss is called.

Owns the one rule that requests share; it must never know any of them. Invariant: a name that is
returned stands for a topic of the image. Echoes what ``KafkaApis`` does with ``MetadataCache``.
"""

from __future__ import annotations

from minibroker.apis.base import Context
from protocol.errors import ErrorCode
from protocol.types import Uuid


def asked_name(ctx: Context, name: str, topic_id: Uuid, *, by_id: bool) -> str | None:
    """The name of the topic that is meant, or None if there is none."""
    if by_id:
        return ctx.image.topic_names.get(topic_id)
    return name if name in ctx.image.topics else None


def unknown_topic(name: str | None, *, by_id: bool) -> ErrorCode:
    """What to answer for a partition that is not there; ``name`` is None without its topic."""
    if by_id and name is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
