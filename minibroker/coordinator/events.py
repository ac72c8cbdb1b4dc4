"""The whole vocabulary between a group's rules and the shell around them.

Events tell a group what happened; decisions tell the shell what to do about it, in order. Nothing
here acts, waits or looks at a clock. Invariant: every ``waiter`` that goes into a group in an
event comes out in exactly one ``Answer``, sooner or later; a ``Persist`` is the last decision of
its list, and the next event must be its ``Persisted``. Kafka's counterpart is the callbacks and
purgatories of ``GroupCoordinator``.
"""

from __future__ import annotations

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


class JoinRequested(NamedTuple):
    """A client wants to be, or to stay, a member. An empty ``member_id`` asks for a new one."""

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
    waiter: Waiter = NOBODY


class SyncRequested(NamedTuple):
    """A member asks for its assignment; the leader brings everybody's."""

    member_id: str
    generation: int
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()
    waiter: Waiter = NOBODY


class HeartbeatReceived(NamedTuple):
    """A member says that it is alive."""

    member_id: str
    generation: int
    group_instance_id: str | None = None
    waiter: Waiter = NOBODY


class CommitRequested(NamedTuple):
    """Somebody wants to commit offsets; ``generation`` is negative outside group management."""

    member_id: str
    generation: int
    group_instance_id: str | None = None
    waiter: Waiter = NOBODY


class Leaver(NamedTuple):
    """One member that leaves; by instance id alone when an administrator removes it."""

    member_id: str
    group_instance_id: str | None = None
    reason: str | None = None


class LeaveRequested(NamedTuple):
    """One or more members leave."""

    members: tuple[Leaver, ...]
    waiter: Waiter = NOBODY


class TimePassed(NamedTuple):
    """Nothing happened but time; deadlines are looked at after every event anyway."""


class Persisted(NamedTuple):
    """What became of the last ``Persist``."""

    error: ErrorCode = ErrorCode.NONE


class Restored(NamedTuple):
    """The group was just read back from the log; its members get a fresh session each."""


class Removed(NamedTuple):
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


class JoinResult(NamedTuple):
    """Answer to ``JoinRequested``; ``members`` only for the leader."""

    error: ErrorCode = ErrorCode.NONE
    member_id: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


class SyncResult(NamedTuple):
    """Answer to ``SyncRequested``."""

    error: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class HeartbeatResult(NamedTuple):
    """Answer to ``HeartbeatReceived``."""

    error: ErrorCode


class CommitResult(NamedTuple):
    """Answer to ``CommitRequested``: whether the offsets may be written."""

    error: ErrorCode


class LeaveResult(NamedTuple):
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


class Answer(NamedTuple):
    """Tell a waiter its result; each waiter is answered once."""

    waiter: Waiter
    result: Result


class Persist(NamedTuple):
    """Write the group to its log, then hand in ``Persisted``."""

    image: GroupImage


class Note(NamedTuple):
    """Something that a person reading the log will want to know."""

    text: str


Decision = Answer | Persist | Note
