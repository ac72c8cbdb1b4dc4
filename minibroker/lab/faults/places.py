"""Where a fault rule can act, and what it selects by: places, selectors and hold points.

Owns their names, and which selectors and APIs a hold point has. It must never know an action or
which rule matches. Invariant: a hold point that no request passes is one of the coordinators'
``groups.hooks``, or the controller's. Kafka has no equivalent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.registry import ApiKey

FaultPlace: TypeAlias = Literal["before", "after", "middle"]

BEFORE: Final = "before"
AFTER: Final = "after"
MIDDLE: Final = "middle"
WAITING: Final = "waiting"
"""The place in the course of a fetch at which it would wait for records."""
INSIDE: Final = "inside"
"""The place of a hold point that no request passes."""

# What rules select by -----------------------------------------------------------------------------

REQUEST_FIELDS: Final = ("api", "version_min", "version_max", "correlation_id", "request")
CONNECTION_FIELDS: Final = ("connection", "address", "listener")
CLIENT_FIELDS: Final = ("client_id", "principal")

ENTITY_FIELDS: Final = {
    "topic": Meaning.TOPIC,
    "topic_id": Meaning.TOPIC_ID,
    "partition": Meaning.PARTITION,
    "group": Meaning.GROUP,
    "member": Meaning.MEMBER,
    "transactional_id": Meaning.TRANSACTIONAL_ID,
    "resource": Meaning.RESOURCE,
}
"""Selectors that match entities of a request, with their keys."""

NAMESPACE_FIELDS: Final = ("topic", "group", "transactional_id", "resource")
"""Selectors of names that are others in a namespace."""

SELECTORS: Final = (*REQUEST_FIELDS, *CLIENT_FIELDS, *CONNECTION_FIELDS, *ENTITY_FIELDS)

_OF_REQUESTS: Final = (*CLIENT_FIELDS, *CONNECTION_FIELDS, "correlation_id")

# Hold points --------------------------------------------------------------------------------------

FaultPoint: TypeAlias = Literal[
    "produce.appended",
    "fetch.waiting",
    "share.acquired",
    "share.acknowledged",
    "group.preparing_rebalance",
    "group.revoked",
    "transaction.prepared",
    "transaction.completing",
    "controller.applied",
]

APPLIED: Final[FaultPoint] = "controller.applied"


class HoldPoint(NamedTuple):
    """A named place inside of the broker at which a rule can hold what passes."""

    summary: str
    selectors: tuple[str, ...]
    api: ApiKey | None = None
    """The API whose requests pass; None if none does."""
    place: str = INSIDE
    """Where in the course of such a request the point is."""
    is_reached: Callable[[Any], bool] = lambda _: True
    """Whether a request with this response has reached the point."""


def _has_acquired(response: Any) -> bool:
    return any(each.acquired_records for topic in response.responses for each in topic.partitions)


def _has_acknowledged(response: Any) -> bool:
    return any(not each.error_code for topic in response.responses for each in topic.partitions)


POINTS: Final[dict[FaultPoint, HoldPoint]] = {
    "produce.appended": HoldPoint(
        "The records of a Produce request are appended, and its response is not sent.",
        (*_OF_REQUESTS, "topic", "topic_id", "partition", "transactional_id"),
        ApiKey.PRODUCE,
        AFTER,
    ),
    "fetch.waiting": HoldPoint(
        "A Fetch request has found too few bytes and waits. While it is held, records do not end "
        "its wait.",
        (*_OF_REQUESTS, "topic", "topic_id", "partition"),
        ApiKey.FETCH,
        WAITING,
    ),
    "share.acquired": HoldPoint(
        "A ShareFetch has acquired records for a member, and its response is not sent. While it is "
        "held, the locks of the records run.",
        (*_OF_REQUESTS, "topic", "topic_id", "partition", "group", "member"),
        ApiKey.SHARE_FETCH,
        AFTER,
        _has_acquired,
    ),
    "share.acknowledged": HoldPoint(
        "The acknowledgements of a ShareAcknowledge request are stored, and its response is not "
        "sent.",
        (*_OF_REQUESTS, "topic", "topic_id", "partition", "group", "member"),
        ApiKey.SHARE_ACKNOWLEDGE,
        AFTER,
        _has_acknowledged,
    ),
    "group.preparing_rebalance": HoldPoint(
        "A rebalance has started. While it is held, members join, leave and expire, and no "
        "generation starts.",
        ("group",),
    ),
    "group.revoked": HoldPoint(
        "A member of a consumer group (KIP-848) has reported that it has revoked partitions, or a "
        "member of a streams group that it has given up tasks. While it is held, the member stays "
        "in its epoch and no other gets them; its rebalance timeout runs on.",
        ("group",),
    ),
    "transaction.prepared": HoldPoint(
        "The decision to commit or abort is stored and answered, and no marker is written.",
        ("transactional_id",),
    ),
    "transaction.completing": HoldPoint(
        "All markers of a transaction are written, and its completion is not stored.",
        ("transactional_id",),
    ),
    "controller.applied": HoldPoint(
        "A change of metadata is stored, and neither published nor answered. Later changes wait "
        "behind it.",
        ("topic", "resource"),
    ),
}
