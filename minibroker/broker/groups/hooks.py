"""What is attached to the coordinators of groups and transactions: hold points and state reports.

Owns the names of the places at which a test can hold a coordinator, and the interfaces to what
holds there and to what is told of changed states. It must never know rules or tasks. Invariant:
what was held continues exactly once, and without rules nothing is held. Kafka has no hold points,
and logs transitions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

REBALANCE: Final = "group.preparing_rebalance"
"""A rebalance has started, and does not complete."""

REVOKED: Final = "group.revoked"
"""A member of a consumer or streams group has reported that it has revoked what it must, which is
not taken into account."""

PREPARED: Final = "transaction.prepared"
"""The decision about a transaction is stored, and no marker is sent."""

COMPLETING: Final = "transaction.completing"
"""All markers of a transaction are written, and its completion is not stored."""


OnState = Callable[[str, str, str | None, str | None], object]
"""Takes what has the state, its name, and the states before and after; None if there is none."""


class HoldPoints(Protocol):
    """What a coordinator asks at a place where it can be held."""

    def may_hold(self, point: str, subject: str) -> bool:
        """Whether a rule may hold a group or transactional id at a point."""

    def hold(self, point: str, subject: str, then: Callable[[], object]) -> None:
        """Call ``then`` when no rule holds there, at the earliest after this returns."""


class NoHoldPoints:
    """Nothing is ever held."""

    def may_hold(self, point: str, subject: str) -> bool:
        """Return False."""
        del point, subject
        return False

    def hold(self, point: str, subject: str, then: Callable[[], object]) -> None:
        """Continue."""
        del point, subject
        then()


NO_HOLD_POINTS: Final[HoldPoints] = NoHoldPoints()
