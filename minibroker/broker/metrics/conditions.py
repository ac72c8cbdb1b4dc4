"""Current problems of a process, for the health page and the metrics.

Owns the set of conditions of one process, bounded in number and length. It must never know how a
condition is detected or shown. Invariant: a condition is there from the moment it is raised until
it is cleared, under one kind and subject only once. Kafka has no equivalent; its nearest are the
``OfflineLogDirectoryCount`` and ``FencedBrokerCount`` gauges.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

CONDITIONS_MAX: Final = 32
"""Conditions of one process; further ones are only logged."""

TEXT_MAX: Final = 300
"""Characters of a condition's text."""


class ConditionKind(StrEnum):
    """Kinds of problems: the complete set, so that the metric's label stays bounded."""

    STORAGE_FAILED = "storage_failed"
    RECORDS_TRUNCATED = "records_truncated"
    LOG_UNCLEANABLE = "log_uncleanable"
    GROUPS_NOT_LOADED = "groups_not_loaded"
    TRANSACTIONS_NOT_LOADED = "transactions_not_loaded"
    SHARE_PARTITIONS_NOT_LOADED = "share_partitions_not_loaded"
    DESCRIPTORS_EXHAUSTED = "descriptors_exhausted"
    NOT_RESPONDING = "not_responding"


class Condition(NamedTuple):
    """One condition: ``subject`` is what it is about, e.g. a path; ``since_ms`` is wall time."""

    kind: ConditionKind
    subject: str
    text: str
    since_ms: int


class Conditions:
    """The conditions of one process."""

    def __init__(self) -> None:
        self._found: dict[tuple[ConditionKind, str], Condition] = {}

    def set(self, kind: ConditionKind, subject: str, text: str, now_ms: int) -> bool:
        """Raise a condition, or change its text; returns whether anything changed."""
        known = self._found.get((kind, subject))
        text = text[:TEXT_MAX]
        if known is not None and known.text == text:
            return False
        if known is None and len(self._found) >= CONDITIONS_MAX:
            return False
        since_ms = now_ms if known is None else known.since_ms
        self._found[kind, subject] = Condition(kind, subject, text, since_ms)
        return True

    def clear(self, kind: ConditionKind, subject: str) -> bool:
        """End a condition; returns whether it was there."""
        return self._found.pop((kind, subject), None) is not None

    def has(self, kind: ConditionKind) -> bool:
        """Whether there is a condition of this kind."""
        return any(found == kind for found, _ in self._found)

    def all(self) -> tuple[Condition, ...]:
        """The conditions, oldest first."""
        return tuple(self._found.values())

    def counts(self) -> dict[ConditionKind, int]:
        """Return the number of conditions of each kind that occurs."""
        counts: dict[ConditionKind, int] = {}
        for kind, _ in self._found:
            counts[kind] = counts.get(kind, 0) + 1
        return counts
