"""Limits of the group coordinator, each with its name, unit and reason.

Limits that are Kafka settings are read from the broker's settings; the others are constants here.
No other module of this package may define a limit. Invariant: contradictory settings raise an error
that names both. In Kafka, these are in ``GroupCoordinatorConfig`` and the topic configuration of
``__consumer_offsets``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from minibroker.broker.groups.events import JoinRequested
from minibroker.broker.settings import (
    GROUP_INITIAL_REBALANCE_DELAY_MS,
    GROUP_MAX_SESSION_TIMEOUT_MS,
    GROUP_MAX_SIZE,
    GROUP_MIN_SESSION_TIMEOUT_MS,
    OFFSET_METADATA_MAX_BYTES,
    OFFSETS_RETENTION_CHECK_INTERVAL_MS,
    OFFSETS_RETENTION_MINUTES,
    Settings,
)
from minibroker_protocol.errors import ErrorCode

NEW_MEMBER_JOIN_TIMEOUT_S: Final = 300.0
"""A member that does not know its id yet can't send heartbeats. It is removed if its first join
waits longer than this (5 minutes, as in Kafka)."""

RETRY_JOIN_PHASE_S_MIN: Final = 0.1
"""A rebalance that no member rejoined is repeated after the rebalance timeout, but not sooner than
this: with a timeout of 0 it would loop."""

GROUPS_MAX: Final = 10_000
"""Groups that one I/O worker coordinates."""

MEMBERS_MAX: Final = 5_000
"""Members of one group, even if ``group.max.size`` is larger: the leader's join response lists all
of them."""

PENDING_MEMBERS_MAX: Final = 5_000
"""Member ids of one group that were assigned but have not joined yet."""

OFFSETS_PER_GROUP_MAX: Final = 100_000
"""Committed offsets of one group."""

MEMBER_METADATA_BYTES_MAX: Final = 1024 * 1024
"""Metadata of one member over all its protocols: it is stored in the group's record and sent to the
leader."""

STATE_LOG_SEGMENT_BYTES: Final = 1024 * 1024
"""Size at which a partition of an internal topic starts a new segment, even if ``segment.bytes`` is
larger: the log cleaner cleans all but the active segment, and a restart reads what remains."""

LOG_LINE_CHARACTERS_MAX: Final = 1_000
"""Length at which log lines are cut, because they contain names and reasons chosen by clients."""

TIMERS_PER_GROUP_MAX: Final = 4
EXTRA_TIMERS_MAX: Final = 64
"""An earlier deadline leaves the group's previous entry in the timer queue. The queue is rebuilt
when it has more than ``TIMERS_PER_GROUP_MAX`` entries per group plus ``EXTRA_TIMERS_MAX``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """Settings of the group rules. Raises ``ValueError`` if two of them contradict each other."""

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

    def join_error(self, group_id: str, event: JoinRequested) -> ErrorCode:
        """The error of a join independently of the group's state, before a group is created."""
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        timeout = event.session_timeout_ms
        if not self.session_timeout_ms_min <= timeout <= self.session_timeout_ms_max:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if sum(len(metadata) for _, metadata in event.protocols) > MEMBER_METADATA_BYTES_MAX:
            return ErrorCode.POLICY_VIOLATION
        return ErrorCode.NONE
