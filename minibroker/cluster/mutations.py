"""Whether partitions may be made or dropped now: what a change of topics asks before it is planned.

Owns the refusal and that a topic is asked about once, however often a change is tried; it must
never know a quota, which is who answers.  The invariant: what was counted for a topic is counted
once.  Echoes ``ControllerMutationQuota`` (KIP-599).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from minibroker.cluster.topics import Refusal
from protocol.errors import ErrorCode

Plan = TypeVar("Plan")

Take = Callable[[int], bool]
"""Asked with a number of partitions; whether so many may be made or dropped."""

TOO_MUCH: Final = Refusal(
    ErrorCode.THROTTLING_QUOTA_EXCEEDED, "The throttling quota has been exceeded."
)


def freely(partitions: int) -> bool:
    """What lets everything be done."""
    del partitions
    return True


class Allowance:
    """What one request may change."""

    def __init__(self, take: Take, *, counts: bool = True) -> None:
        """Without ``counts`` everything may be tried, and nothing is asked."""
        self._take = take if counts else freely
        self._answers: dict[str, bool] = {}

    def check(self, name: str, plan: Plan, partitions: int) -> Plan | Refusal:
        """A plan for a topic, or why it is too much now."""
        if name not in self._answers:
            self._answers[name] = self._take(partitions)
        return plan if self._answers[name] else TOO_MUCH
