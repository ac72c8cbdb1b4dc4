"""Events that a group handles, and the decisions that it returns.

Owns the messages between the rules and the shell around them. The shell carries out decisions in
order. Nothing here waits or reads a clock. Invariant: every ``waiter`` passed to a group in
an event is returned in exactly one ``GroupAnswer``, possibly later; a ``Persist`` is the last
decision of its list, and the next event must be its ``Persisted``. Kafka's counterpart is the
callbacks and purgatories of ``GroupCoordinator``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Protocol

from minibroker.broker.groups.streams_topology import (
    InternalTopic,
    StreamsStatus,
    StreamsTopology,
)
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.streams_group_describe import TopologyDescription
from minibroker_protocol.types import Uuid

Waiter = int
"""Identifies a waiting request. ``GroupAnswer`` contains the same number."""

NO_WAITER: Final[Waiter] = 0
"""The waiter of a request that is answered at once, or has not reached the shell yet."""

Protocols = tuple[tuple[str, bytes], ...]
"""A member's protocols in order of preference, each with the member's metadata."""


class Moment(NamedTuple):
    """The time of an event: monotonic seconds for timeouts, epoch milliseconds for ages."""

    now: float
    wall_ms: int


Task = tuple[str, int]
"""A task of a streams group: a subtopology and a partition of its source topics."""


class Tasks(NamedTuple):
    """Tasks of a member in each role."""

    active: frozenset[Task] = frozenset()
    standby: frozenset[Task] = frozenset()
    warmup: frozenset[Task] = frozenset()


class TaskOffset(NamedTuple):
    """How far the state of a task is restored, or how far it can be."""

    task: Task
    offset: int


class UserEndpoint(NamedTuple):
    """Where an instance of a streams application answers queries of its state."""

    host: str
    port: int


# ------------------------------------------------------------------------------------- events


class JoinRequested(NamedTuple):
    """A client joins or rejoins the group. An empty ``member_id`` requests a new id."""

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
    """The client handles MEMBER_ID_REQUIRED by joining again with its new id (JoinGroup 4+)."""
    can_skip_assignment: bool = False
    """The client supports ``skip_assignment`` (JoinGroup 9+)."""
    waiter: Waiter = NO_WAITER


class SyncRequested(NamedTuple):
    """A member requests its assignment. The leader's request carries all assignments."""

    member_id: str
    generation: int
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()
    waiter: Waiter = NO_WAITER


class HeartbeatReceived(NamedTuple):
    """A member sent a heartbeat."""

    member_id: str
    generation: int
    group_instance_id: str | None = None
    waiter: Waiter = NO_WAITER


class ConsumerHeartbeat(NamedTuple):
    """A member of a consumer group joins, stays or leaves, by its epoch. None means "unchanged"."""

    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topics: tuple[str, ...] | None = None
    regex: str | None = None
    assignor: str | None = None
    owned: tuple[tuple[Uuid, tuple[int, ...]], ...] | None = None
    """The partitions that the member has, by topic."""
    client_id: str = ""
    client_host: str = ""
    described_topics: frozenset[str] | None = None
    """Topics that the client may describe; None if it may describe all."""
    waiter: Waiter = NO_WAITER

    @property
    def is_full(self) -> bool:
        """Whether the member names all topics and partitions, so the response is complete too."""
        has_subscription = self.topics is not None or self.regex is not None
        return self.rebalance_timeout_ms != -1 and has_subscription and self.owned is not None


class ShareHeartbeat(NamedTuple):
    """A member of a share group joins, stays or leaves, by its epoch. None means "unchanged"."""

    member_id: str
    member_epoch: int
    rack_id: str | None = None
    topics: tuple[str, ...] | None = None
    client_id: str = ""
    client_host: str = ""
    assigns_now: bool = False
    """Whether a target is computed even within the assignment interval."""
    waiter: Waiter = NO_WAITER


class StreamsHeartbeat(NamedTuple):
    """A member of a streams group joins, stays or leaves, by its epoch. None means "unchanged"."""

    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topology: StreamsTopology | None = None
    """The topology of the application; only a member that joins sends it."""
    owned: Tasks | None = None
    """The tasks that the member has."""
    task_offsets: tuple[TaskOffset, ...] | None = None
    task_end_offsets: tuple[TaskOffset, ...] | None = None
    process_id: str | None = None
    endpoint: UserEndpoint | None = None
    client_tags: Mapping[str, str] | None = None
    shuts_down: bool = False
    """Whether the whole application is to end."""
    endpoint_epoch: int = -1
    """The epoch of the endpoints that the member knows."""
    client_id: str = ""
    client_host: str = ""
    knows_description: bool = True
    """Whether the version of the request has descriptions of topologies."""
    knows_tags: bool = True
    """Whether the version of the request has the status of missing tags."""
    waiter: Waiter = NO_WAITER


class TopologyDescribed(NamedTuple):
    """A member of a streams group sends the description of its topology."""

    member_id: str
    topology_epoch: int
    description: TopologyDescription
    waiter: Waiter = NO_WAITER


class SharesChanged(NamedTuple):
    """The state of partitions was created for a share group, is to be deleted, or was deleted."""

    initialized: Mapping[Uuid, frozenset[int]] = {}
    deleting: frozenset[Uuid] = frozenset()
    deleted: frozenset[Uuid] = frozenset()
    waiter: Waiter = NO_WAITER


class CommitRequested(NamedTuple):
    """A client commits offsets. ``generation`` is negative outside group management."""

    member_id: str
    generation: int
    group_instance_id: str | None = None
    transactional: bool = False
    knows_epochs: bool = True
    """Whether the version of the request has member epochs (OffsetCommit 9+)."""
    partitions: tuple[tuple[str, int], ...] = ()
    """What is committed; only for consumer groups, where partitions have epochs."""
    waiter: Waiter = NO_WAITER


class LeavingMember(NamedTuple):
    """A member that leaves. An administrator may identify it by instance id alone."""

    member_id: str
    group_instance_id: str | None = None
    reason: str | None = None


class LeaveRequested(NamedTuple):
    """One or more members leave."""

    members: tuple[LeavingMember, ...]
    waiter: Waiter = NO_WAITER


class TimePassed(NamedTuple):
    """A deadline may have passed. Deadlines are also checked after every other event."""


class Persisted(NamedTuple):
    """The result of the last ``Persist``."""

    error: ErrorCode = ErrorCode.NONE


class RebalanceReleased(NamedTuple):
    """A rebalance that was held may complete, or one member of a group that follows its target."""

    member_id: str = ""


class RebalanceRequested(NamedTuple):
    """A test requests a rebalance, or a new target for a consumer group."""


class AssignmentPlanned(NamedTuple):
    """A test sets the assignment of members in the next generation, or their targets."""

    assignment: Mapping[str, bytes]
    """Encoded as classic consumers do."""


class MemberExpired(NamedTuple):
    """A test ends the session of a member."""

    member_id: str


class MemberFenced(NamedTuple):
    """A test gives the place of a static member to another id, or raises the epoch of a member."""

    member_id: str


class Restored(NamedTuple):
    """The group was loaded from the log, or made from one of another type.

    Each member's session timeout restarts. A reason makes the members of a classic group rejoin.
    """

    rebalance_reason: str = ""


class Removed(NamedTuple):
    """The group was deleted, unloaded or replaced. Waiting requests are answered with an error."""

    error: ErrorCode = ErrorCode.NOT_COORDINATOR


Event = (
    JoinRequested
    | SyncRequested
    | HeartbeatReceived
    | ConsumerHeartbeat
    | ShareHeartbeat
    | SharesChanged
    | TopologyDescribed
    | StreamsHeartbeat
    | CommitRequested
    | LeaveRequested
    | TimePassed
    | Persisted
    | RebalanceReleased
    | RebalanceRequested
    | AssignmentPlanned
    | MemberExpired
    | MemberFenced
    | Restored
    | Removed
)

# ---------------------------------------------------------------------------------- decisions


class JoinedMember(NamedTuple):
    """A member of the new generation, as listed in the leader's join response."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


class JoinResult(NamedTuple):
    """Answer to ``JoinRequested``. ``members`` is empty except for the leader."""

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


class AssignedPartitions(NamedTuple):
    """Partitions of one topic."""

    topic_id: Uuid
    partitions: tuple[int, ...]


class ConsumerHeartbeatResult(NamedTuple):
    """Answer to ``ConsumerHeartbeat``. The assignment is None if the member knows it."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: tuple[AssignedPartitions, ...] | None = None


class ShareHeartbeatResult(NamedTuple):
    """Answer to ``ShareHeartbeat``. The assignment is None if the member knows it."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: tuple[AssignedPartitions, ...] | None = None


class EndpointPartitions(NamedTuple):
    """Source partitions of the tasks of a member whose instance answers queries."""

    endpoint: UserEndpoint
    active: tuple[tuple[str, tuple[int, ...]], ...]
    standby: tuple[tuple[str, tuple[int, ...]], ...]


class StreamsHeartbeatResult(NamedTuple):
    """Answer to ``StreamsHeartbeat``. Tasks and endpoints are None if the member knows them."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    member_id: str = ""
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    acceptable_recovery_lag: int = -1
    task_offset_interval_ms: int = 0
    statuses: tuple[StreamsStatus, ...] = ()
    tasks: Tasks | None = None
    endpoint_epoch: int = 0
    endpoints: tuple[EndpointPartitions, ...] | None = None
    description_required: bool = False
    """Whether the member is to send the description of its topology."""
    missing_topics: tuple[InternalTopic, ...] = ()
    """Internal topics that are to be created."""


class CommitResult(NamedTuple):
    """Answer to ``CommitRequested``: whether the offsets may be written."""

    error: ErrorCode


class LeaveResult(NamedTuple):
    """Answer to ``LeaveRequested``: one error per member, in the order of the request."""

    error: ErrorCode
    members: tuple[tuple[LeavingMember, ErrorCode], ...] = ()


class ActionTaken(NamedTuple):
    """Answer to what a test requests; ``affected`` is the number of members."""

    error: ErrorCode = ErrorCode.NONE
    text: str = ""
    affected: int = 0


Result = (
    JoinResult
    | SyncResult
    | HeartbeatResult
    | ConsumerHeartbeatResult
    | ShareHeartbeatResult
    | StreamsHeartbeatResult
    | CommitResult
    | LeaveResult
    | ActionTaken
)

GroupAction = RebalanceRequested | AssignmentPlanned | MemberExpired | MemberFenced


class GroupAnswer(NamedTuple):
    """Send a result to a waiter. Each waiter is answered once."""

    waiter: Waiter
    result: Result


class GroupRecord(Protocol):
    """A record of a group in the log, other than an offset. A record replaces the earlier records
    with the same key; a tombstone has no value.
    """

    @property
    def group_id(self) -> str: ...

    @property
    def group_type(self) -> str: ...

    @property
    def is_tombstone(self) -> bool: ...

    def encode_key(self) -> bytes: ...

    def encode_value(self) -> bytes | None: ...

    def tombstone(self) -> GroupRecord: ...


class Persist(NamedTuple):
    """Write records of the group to its log, then pass ``Persisted`` to the group."""

    records: tuple[GroupRecord, ...]


class GroupReplaced(NamedTuple):
    """The group is of another type from now on: ``group``, a ``Group``, takes its place, and
    ``event`` is the first event of that group.
    """

    group: Any
    event: Restored


class LogLine(NamedTuple):
    """Write a line to the broker's own log."""

    text: str


class HoldRebalance(NamedTuple):
    """A rebalance has started that is held, or a member of a consumer or streams group has revoked
    what it must: pass ``RebalanceReleased`` when it may go on.
    """

    member_id: str = ""


Decision = GroupAnswer | Persist | GroupReplaced | LogLine | HoldRebalance
