"""The hold points: named places inside of the broker at which a rule can hold what passes.

Owns one row for each point: where it is, and what can be selected there. It must never know how
anything waits. Invariant: every point of ``faults.fault_rule`` has a row, and a rule with a
point matches nowhere else. Kafka has no equivalent.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from minibroker.lab.faults.actions import AFTER, CLIENT_FIELDS, CONNECTION_FIELDS
from minibroker.lab.faults.fault_rule import FaultPoint, FaultRule
from minibroker_protocol.registry import ApiKey

WAITING: Final = "waiting"
"""The place in the course of a fetch at which it would wait for records."""

INSIDE: Final = "inside"
"""The place of a point that no request passes."""

APPLIED: Final[FaultPoint] = "controller.applied"

_OF_REQUESTS: Final = (*CLIENT_FIELDS, *CONNECTION_FIELDS, "correlation_id")


class HoldPoint(NamedTuple):
    """One point: where it is, and the selectors of what passes there."""

    summary: str
    selectors: tuple[str, ...]
    api: ApiKey | None = None
    """The API whose requests pass; None if none does."""
    place: str = INSIDE
    """Where in the course of such a request the point is."""


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
    "group.preparing_rebalance": HoldPoint(
        "A rebalance has started. While it is held, members join, leave and expire, and no "
        "generation starts.",
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


def selectors_of(rule: FaultRule) -> tuple[str, ...] | None:
    """The selectors that a rule with a point may have; None for a rule without one."""
    return None if rule.point is None else POINTS[rule.point].selectors


def is_inside(rule: FaultRule) -> bool:
    """Whether a rule is about something inside of the broker, instead of requests."""
    return rule.point is not None and POINTS[rule.point].api is None
