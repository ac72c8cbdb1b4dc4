"""The whole vocabulary between a group's rules and the shell around them.

Events tell a group what happened; decisions tell the shell what to do about it, in order. Nothing
here acts, waits or looks at a clock. Invariant: every ``waiter`` that goes into a group in an
event comes out in exactly one ``Answer``, sooner or later; a ``Persist`` is the last decision of
its list, and the next event must be its ``Persisted``. Kafka's counterpart is the callbacks and
purgatories of ``GroupCoordinator``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from protocol.errors import ErrorCode

Waiter = int
"""Whoever asked: a number that the shell gives out and finds again in ``Answer``."""

NOBODY: Final[Waiter] = 0
"""The waiter of a request that the shell has not seen yet."""

Protocols = tuple[tuple[str, bytes], ...]
"""Names of a member's protocols, the preferred first, each with the member's metadata."""


class Moment(NamedTuple):
    """When something happens: monotonic seconds for timeouts, epoch milliseconds for ages."""

    now: float
    wall_ms: int


# ------------------------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequested:
    """A client wants to be, or to stay, a member. An empty ``member_id`` asks for a new one."""

    waiter: Waiter = NOBODY
    member_id: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    group_instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    reason: str | None = None
    require_known_member_id: bool = False
    """The client can be told to come back with the id it is given (JoinGroup 4 and later)."""
    can_skip_assignment: bool = False
    """The client knows ``skip_assignment`` (JoinGroup 9 and later)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequested:
    """A member asks for its assignment; the leader brings everybody's."""

    waiter: Waiter = NOBODY
    member_id: str
    generation: int
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatReceived:
    """A member says that it is alive."""

    waiter: Waiter = NOBODY
    member_id: str
    generation: int
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRequested:
    """Somebody wants to commit offsets; ``generation`` is negative outside group management."""

    waiter: Waiter = NOBODY
    member_id: str
    generation: int
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class Leaver:
    """One member that leaves; by instance id alone when an administrator removes it."""

    member_id: str
    group_instance_id: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveRequested:
    """One or more members leave."""

    waiter: Waiter = NOBODY
    members: tuple[Leaver, ...]


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Nothing happened but time; deadlines are looked at after every event anyway."""


@dataclass(frozen=True, slots=True)
class Persisted:
    """What became of the last ``Persist``."""

    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class Restored:
    """The group was just read back from the log; its members get a fresh session each."""


@dataclass(frozen=True, slots=True)
class Removed:
    """The group is deleted, or its owner lets go of it: whoever waits is sent away."""


Event = (
    JoinRequested
    | SyncRequested
    | HeartbeatReceived
    | CommitRequested
    | LeaveRequested
    | TimePassed
    | Persisted
    | Restored
    | Removed
)

# ---------------------------------------------------------------------------------- decisions


class JoinedMember(NamedTuple):
    """What the leader is told about a member of the new generation."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinResult:
    """Answer to ``JoinRequested``; ``members`` only for the leader."""

    error: ErrorCode = ErrorCode.NONE
    member_id: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResult:
    """Answer to ``SyncRequested``."""

    error: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class HeartbeatResult:
    """Answer to ``HeartbeatReceived``."""

    error: ErrorCode


@dataclass(frozen=True, slots=True)
class CommitResult:
    """Answer to ``CommitRequested``: whether the offsets may be written."""

    error: ErrorCode


@dataclass(frozen=True, slots=True)
class LeaveResult:
    """Answer to ``LeaveRequested``: one error per leaver, in the order asked."""

    error: ErrorCode
    members: tuple[tuple[Leaver, ErrorCode], ...] = ()


Result = JoinResult | SyncResult | HeartbeatResult | CommitResult | LeaveResult


class MemberImage(NamedTuple):
    """A member as the log keeps it."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class GroupImage(NamedTuple):
    """A group as the log keeps it: what survives a killed worker."""

    protocol_type: str
    generation: int
    protocol_name: str | None
    leader: str | None
    state_since_ms: int
    members: tuple[MemberImage, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """Tell a waiter its result; each waiter is answered once."""

    waiter: Waiter
    result: Result


@dataclass(frozen=True, slots=True)
class Persist:
    """Write the group to its log, then hand in ``Persisted``."""

    image: GroupImage


@dataclass(frozen=True, slots=True)
class Note:
    """Something that a person reading the log will want to know."""

    text: str


Decision = Answer | Persist | Note
