"""Checks whether partitions may be created or deleted, before a change of topics is planned.

Owns the rejections, and that a topic is recorded once however often a change is tried. It must
never know quota or disk. Invariant: a topic is recorded at most once. Kafka's
``ControllerMutationQuota`` (KIP-599).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from minibroker.broker.metadata.topics import ChangeRejected
from minibroker_protocol.errors import ErrorCode

Plan = TypeVar("Plan")

Allow = Callable[[int], bool]
"""Called with a number of partitions; returns whether they may be created or deleted."""

QUOTA_EXCEEDED: Final = ChangeRejected(
    ErrorCode.THROTTLING_QUOTA_EXCEEDED, "The throttling quota has been exceeded."
)


FreeBytes = Callable[[], int]
"""Returns the free bytes where partitions are stored."""

PARTITION_BYTES: Final = 16 * 1024
"""Size of an empty partition's files, in whole pages."""

RESERVED_BYTES: Final = 256 * 1024
"""Space that must stay free for appends to existing partitions."""


def unlimited() -> int:
    """Return more bytes than are ever needed."""
    return 2**62


def allow_all(partitions: int) -> bool:
    """Accept every mutation."""
    del partitions
    return True


class MutationLimits:
    """Limits on the mutations of one request: quota and disk space."""

    def __init__(
        self, allow: Allow, *, counts: bool = True, free_bytes: FreeBytes = unlimited
    ) -> None:
        """Without ``counts`` nothing is recorded for the quota."""
        self._allow = allow if counts else allow_all
        self._free_bytes = free_bytes
        self._decisions: dict[str, bool] = {}
        self._needed_bytes: dict[str, int] = {}

    def check(self, name: str, plan: Plan, partitions: int) -> Plan | ChangeRejected:
        """Return the plan for a topic, or a rejection if it exceeds a limit."""
        self._needed_bytes[name] = partitions * PARTITION_BYTES
        needed, free = sum(self._needed_bytes.values()) + RESERVED_BYTES, self._free_bytes()
        if 0 <= free < needed:
            del self._needed_bytes[name]
            text = f"{partitions} partitions need {needed} bytes, and {free} are free"
            return ChangeRejected(ErrorCode.KAFKA_STORAGE_ERROR, text)
        if name not in self._decisions:
            self._decisions[name] = self._allow(partitions)
        return plan if self._decisions[name] else QUOTA_EXCEEDED
