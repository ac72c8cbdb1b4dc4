"""Checks whether partitions may be created or deleted, before a change of topics is planned.

Owns the rejections, and that a topic is recorded once however often a change is tried. It must
never know quota or disk. Invariant: a topic is recorded at most once. Kafka's
``ControllerMutationQuota`` (KIP-599).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from minibroker.cluster.topics import ChangeRejected
from protocol.errors import ErrorCode

Plan = TypeVar("Plan")

Take = Callable[[int], bool]
"""Called with a number of partitions; returns whether they may be created or deleted."""

TOO_MUCH: Final = ChangeRejected(
    ErrorCode.THROTTLING_QUOTA_EXCEEDED, "The throttling quota has been exceeded."
)


FreeBytes = Callable[[], int]
"""Returns the free bytes where partitions are stored."""

PARTITION_BYTES: Final = 16 * 1024
"""Size of an empty partition's files, in whole pages."""

KEPT_FREE_BYTES: Final = 256 * 1024
"""What must be left for appends to the partitions that exist."""


def unlimited() -> int:
    """Return more bytes than are ever needed."""
    return 2**62


def freely(partitions: int) -> bool:
    """What lets everything be done."""
    del partitions
    return True


class Allowance:
    """What one request may change."""

    def __init__(
        self, take: Take, *, counts: bool = True, free_bytes: FreeBytes = unlimited
    ) -> None:
        """Without ``counts`` nothing is recorded for the quota."""
        self._take = take if counts else freely
        self._free_bytes = free_bytes
        self._answers: dict[str, bool] = {}
        self._needed_bytes: dict[str, int] = {}

    def check(self, name: str, plan: Plan, partitions: int) -> Plan | ChangeRejected:
        """A plan for a topic, or why it is too much now."""
        self._needed_bytes[name] = partitions * PARTITION_BYTES
        needed, free = sum(self._needed_bytes.values()) + KEPT_FREE_BYTES, self._free_bytes()
        if 0 <= free < needed:
            del self._needed_bytes[name]
            text = f"{partitions} partitions need {needed} bytes, and {free} are free"
            return ChangeRejected(ErrorCode.KAFKA_STORAGE_ERROR, text)
        if name not in self._answers:
            self._answers[name] = self._take(partitions)
        return plan if self._answers[name] else TOO_MUCH
