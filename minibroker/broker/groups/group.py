"""The interface of a group, whatever its type.

The group manager, the offsets log and the service use groups only through this interface, except in
the requests of one group type, such as JoinGroup. It must never contain a rule of one type. To add
a type, implement this class, add it to ``group_manager.GROUP_TYPES``, and add the decoders of its
records to ``records.RECORD_DECODERS``. Invariant: a group changes only in ``handle``. Kafka's
counterpart is the interface ``Group`` of its group coordinator.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import ClassVar

from minibroker.broker.groups.events import Decision, Event, GroupRecord, Moment
from minibroker.broker.groups.limits import GroupLimits
from minibroker.broker.groups.offsets import OffsetTable
from minibroker.broker.groups.states import PAST_TRANSITIONS_MAX, StateTransition
from minibroker_protocol.errors import ErrorCode


class Group(ABC):
    """One group. The service adds and removes committed ``offsets`` of any group.

    Commits are events (``CommitRequested``), because a commit may also extend a session.
    """

    type: ClassVar[str]
    """Kafka's name of the group type, as in ListGroups."""

    def __init__(
        self, group_id: str, limits: GroupLimits, make_id: Callable[[], str], time: Moment
    ) -> None:
        """Create an empty group."""
        del time
        self.group_id = group_id
        self.limits = limits
        self.make_id = make_id
        self.holds_rebalances = False
        """Whether a rebalance that starts now is held."""
        self.offsets = OffsetTable()
        self.past_transitions: deque[StateTransition] = deque(maxlen=PAST_TRANSITIONS_MAX)

    @classmethod
    @abstractmethod
    def restore(
        cls,
        group_id: str,
        records: Sequence[GroupRecord],
        limits: GroupLimits,
        make_id: Callable[[], str],
        time: Moment,
    ) -> Group:
        """Create a group from its one or more records. Its first event must be ``Restored``."""

    @abstractmethod
    def handle(self, event: Event, time: Moment) -> list[Decision]:
        """Handle an event and return the decisions, in the order in which to carry them out."""

    @property
    @abstractmethod
    def state_name(self) -> str:
        """Kafka's name of the state."""

    @property
    @abstractmethod
    def protocol_type_name(self) -> str:
        """The protocol type in ListGroups; empty if there is none yet."""

    @property
    @abstractmethod
    def epoch(self) -> int:
        """The generation of a classic group, or the group epoch."""

    @property
    @abstractmethod
    def members_count(self) -> int:
        """Number of members."""

    @property
    @abstractmethod
    def is_idle(self) -> bool:
        """Whether the group has no members and no member is about to join."""

    @property
    @abstractmethod
    def next_deadline(self) -> float | None:
        """The latest time for the next ``TimePassed``; never after the earliest deadline."""

    @abstractmethod
    def is_subscribed(self, topic: str) -> bool:
        """Whether a member may consume the topic."""

    @abstractmethod
    def validate_offset_fetch(self, member_id: str | None, member_epoch: int, /) -> ErrorCode:
        """The error for a client that fetches the offsets of the group."""

    @abstractmethod
    def validate_offset_delete(self) -> ErrorCode:
        """The error for a client that deletes offsets of the group."""

    @abstractmethod
    def validate_delete(self) -> ErrorCode:
        """The error for a client that deletes the group."""

    @abstractmethod
    def expired_offsets(self, wall_ms: int) -> list[tuple[str, int]]:
        """Topic and partition of each expired offset."""
