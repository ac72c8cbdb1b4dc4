"""Every bound that the coordinator keeps, with its name, unit and reason.

Settings that Kafka has come from the broker's settings; the others are constants here. Nothing
else in this package may hold a bare number that bounds something. Invariant: the relations below
hold, or construction fails with a text that names both sides. Kafka spreads these over
``GroupCoordinatorConfig`` and the topic configuration of ``__consumer_offsets``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from minibroker.config import (
    GROUP_INITIAL_REBALANCE_DELAY_MS,
    GROUP_MAX_SESSION_TIMEOUT_MS,
    GROUP_MAX_SIZE,
    GROUP_MIN_SESSION_TIMEOUT_MS,
    OFFSET_METADATA_MAX_BYTES,
    OFFSETS_RETENTION_CHECK_INTERVAL_MS,
    OFFSETS_RETENTION_MINUTES,
    Settings,
)

NEW_MEMBER_JOIN_TIMEOUT_S: Final = 300.0
"""A member that has never been told its id can't send heartbeats, so its first join may wait
this long at most before it is dropped (Kafka's 5 minutes)."""

RETRY_JOIN_PHASE_S_MIN: Final = 0.1
"""A rebalance that nobody rejoined is tried again after the members' rebalance timeout, but not
sooner than this: a timeout of 0 would spin."""

GROUPS_MAX: Final = 10_000
"""Groups that one I/O worker coordinates."""

MEMBERS_MAX: Final = 5_000
"""Members of one group, however large ``group.max.size`` is; a join answer carries them all."""

PENDING_MEMBERS_MAX: Final = 5_000
"""Member ids of one group that were handed out and have not joined yet."""

OFFSETS_PER_GROUP_MAX: Final = 100_000
"""Committed offsets that one group may hold."""

MEMBER_METADATA_BYTES_MAX: Final = 1024 * 1024
"""All protocols of one member together; the group's record holds it and the leader gets it."""

JOURNAL_BYTES_MAX: Final = 1024 * 1024
"""Size at which a partition of ``__consumer_offsets`` is rewritten as what still holds."""

JOURNAL_GROWTH: Final = 4
"""...but not before it is this many times larger than what still held when last rewritten, so
that a large live state isn't copied again and again."""

JOURNAL_BATCH_BYTES: Final = 256 * 1024
"""A rewritten journal is written in batches of about this size."""

NOTE_CHARACTERS_MAX: Final = 1_000
"""How much of a line for the log is written: clients choose names and reasons in it."""

TIMERS_PER_GROUP_MAX: Final = 4
TIMERS_SPARE: Final = 64
"""A group whose next deadline moves nearer leaves an entry behind in the queue of timers; with
more than so many for each group, and some to spare, the queue is made anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """The settings that the group rules need. Times in seconds, ages in milliseconds.

    Raises ``ValueError`` where two of them contradict each other.
    """

    session_timeout_ms_min: int = 6_000
    session_timeout_ms_max: int = 1_800_000
    members_max: int = MEMBERS_MAX
    initial_rebalance_delay_s: float = 3.0
    offset_metadata_bytes_max: int = 4_096
    offsets_retention_ms: int = 7 * 24 * 3_600_000
    retention_check_interval_s: float = 600.0

    @classmethod
    def from_settings(cls, settings: Settings) -> GroupLimits:
        return cls(
            session_timeout_ms_min=settings[GROUP_MIN_SESSION_TIMEOUT_MS],
            session_timeout_ms_max=settings[GROUP_MAX_SESSION_TIMEOUT_MS],
            members_max=min(settings[GROUP_MAX_SIZE], MEMBERS_MAX),
            initial_rebalance_delay_s=settings[GROUP_INITIAL_REBALANCE_DELAY_MS] / 1000,
            offset_metadata_bytes_max=settings[OFFSET_METADATA_MAX_BYTES],
            offsets_retention_ms=settings[OFFSETS_RETENTION_MINUTES] * 60_000,
            retention_check_interval_s=settings[OFFSETS_RETENTION_CHECK_INTERVAL_MS] / 1000,
        )

    def __post_init__(self) -> None:
        if self.session_timeout_ms_min > self.session_timeout_ms_max:
            raise ValueError(
                f"group.min.session.timeout.ms={self.session_timeout_ms_min} is above "
                f"group.max.session.timeout.ms={self.session_timeout_ms_max}: "
                "lower the first or raise the second"
            )
        if self.members_max < 1 or self.retention_check_interval_s <= 0:
            raise ValueError(
                f"group.max.size={self.members_max} and offsets.retention.check.interval.ms="
                f"{self.retention_check_interval_s * 1000:.0f} must be above 0"
            )
