"""The interface of a group, whatever its type, and the limits of the group coordinator.

The group manager, the offsets log and the service use groups only through this interface, except in
the requests of one group type, such as JoinGroup. It must never contain a rule of one type. To add
a type, derive a class from ``WrittenGroup``, which has what all types have in common, or from
``EpochGroup``, which has what all types with member epochs have in common, add it to
``group_manager.GROUP_TYPES``, and add the decoders of its records to ``records.RECORD_DECODERS``.
Invariant: a group changes only in ``handle``. Kafka's counterpart is the interface ``Group`` of its
group coordinator.

Limits that are Kafka settings are read from the broker's settings; the others are constants here,
each with its name, unit and reason. Contradictory settings raise an error that names both. In
Kafka, these are in ``GroupCoordinatorConfig`` and the topic configuration of
``__consumer_offsets``.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, NamedTuple, Protocol, Self, TypeAlias, TypeVar

from minibroker.broker.groups.events import (
    NO_WAITER,
    ActionTaken,
    CommitRequested,
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    Decision,
    Event,
    GroupAnswer,
    GroupRecord,
    HoldRebalance,
    JoinRequested,
    LogLine,
    MemberExpired,
    Moment,
    Persist,
    Persisted,
    RebalanceReleased,
    Removed,
    Result,
    ShareHeartbeat,
    ShareHeartbeatResult,
    SharesChanged,
    StreamsHeartbeat,
    StreamsHeartbeatResult,
    TopologyDescribed,
    Waiter,
)
from minibroker.broker.groups.hooks import REBALANCE
from minibroker.broker.groups.offsets import OffsetTable
from minibroker.broker.groups.states import PAST_TRANSITIONS_MAX, StateTransition
from minibroker.broker.metadata.image import EMPTY, GROUP, Image
from minibroker.broker.settings import (
    GROUP_CONSUMER_ASSIGNMENT_INTERVAL_MS,
    GROUP_CONSUMER_ASSIGNORS,
    GROUP_CONSUMER_HEARTBEAT_INTERVAL_MS,
    GROUP_CONSUMER_MAX_SIZE,
    GROUP_CONSUMER_MIGRATION_POLICY,
    GROUP_CONSUMER_REGEX_REFRESH_INTERVAL_MS,
    GROUP_CONSUMER_SESSION_TIMEOUT_MS,
    GROUP_INITIAL_REBALANCE_DELAY_MS,
    GROUP_MAX_SESSION_TIMEOUT_MS,
    GROUP_MAX_SIZE,
    GROUP_MIN_SESSION_TIMEOUT_MS,
    GROUP_SHARE_ASSIGNMENT_INTERVAL_MS,
    GROUP_SHARE_HEARTBEAT_INTERVAL_MS,
    GROUP_SHARE_MAX_SIZE,
    GROUP_SHARE_SESSION_TIMEOUT_MS,
    GROUP_STREAMS_ACCEPTABLE_RECOVERY_LAG,
    GROUP_STREAMS_ASSIGNMENT_INTERVAL_MS,
    GROUP_STREAMS_HEARTBEAT_INTERVAL_MS,
    GROUP_STREAMS_INITIAL_REBALANCE_DELAY_MS,
    GROUP_STREAMS_MAX_SIZE,
    GROUP_STREAMS_NUM_STANDBY_REPLICAS,
    GROUP_STREAMS_RACK_AWARE_ASSIGNMENT_TAGS,
    GROUP_STREAMS_SESSION_TIMEOUT_MS,
    GROUP_STREAMS_TASK_OFFSET_INTERVAL_MS,
    GROUP_STREAMS_TOPOLOGY_DESCRIPTION_PLUGIN_CLASS,
    OFFSET_METADATA_MAX_BYTES,
    OFFSETS_RETENTION_CHECK_INTERVAL_MS,
    OFFSETS_RETENTION_MINUTES,
    Setting,
    Settings,
)
from minibroker.broker.settings.resources import (
    STREAMS_ACCEPTABLE_RECOVERY_LAG,
    STREAMS_INITIAL_REBALANCE_DELAY_MS,
    STREAMS_NUM_STANDBY_REPLICAS,
    STREAMS_RACK_AWARE_ASSIGNMENT_TAGS,
    STREAMS_TASK_OFFSET_INTERVAL_MS,
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


class GroupTimes(NamedTuple):
    """Times of a group with member epochs, which its configs may set, in milliseconds."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 1_000

    def is_target_due(self, last_ms: int, wall_ms: int) -> bool:
        """Whether a target may be computed; the last one was at ``last_ms``, 0 if there is none."""
        interval_ms = self.assignment_interval_ms
        return not last_ms or not interval_ms or wall_ms >= last_ms + interval_ms


DEFAULT_TIMES: Final = GroupTimes()


def times_of(
    image: Image, group_id: str, declared: Sequence[Setting[int]], defaults: GroupTimes
) -> GroupTimes:
    """The times of a group: its configs of these names, or the settings of the broker."""
    overrides = image.configs.get((GROUP, group_id), EMPTY)
    return GroupTimes(
        *(
            each.parse(overrides[each.name]) if each.name in overrides else default
            for each, default in zip(declared, defaults, strict=True)
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerLimits:
    """Settings of consumer groups."""

    members_max: int = MEMBERS_MAX
    times: GroupTimes = DEFAULT_TIMES
    assignors: tuple[str, ...] = ("uniform", "range")
    """The first is the default."""
    regex_refresh_interval_ms: int = 600_000
    may_upgrade: bool = True
    """Whether a member may turn a classic group into a consumer group."""
    may_downgrade: bool = True
    """Whether a consumer group becomes a classic one when only classic members are left."""

    @classmethod
    def from_settings(cls, settings: Settings) -> ConsumerLimits:
        policy = settings[GROUP_CONSUMER_MIGRATION_POLICY].lower()
        return cls(
            members_max=min(settings[GROUP_CONSUMER_MAX_SIZE], MEMBERS_MAX),
            times=GroupTimes(
                settings[GROUP_CONSUMER_SESSION_TIMEOUT_MS],
                settings[GROUP_CONSUMER_HEARTBEAT_INTERVAL_MS],
                settings[GROUP_CONSUMER_ASSIGNMENT_INTERVAL_MS],
            ),
            assignors=settings[GROUP_CONSUMER_ASSIGNORS],
            regex_refresh_interval_ms=settings[GROUP_CONSUMER_REGEX_REFRESH_INTERVAL_MS],
            may_upgrade=policy in ("bidirectional", "upgrade"),
            may_downgrade=policy in ("bidirectional", "downgrade"),
        )


class StreamsConfig(NamedTuple):
    """What the configs of a streams group may set, besides its times."""

    standby_replicas: int = 0
    initial_rebalance_delay_ms: int = 3_000
    rack_aware_tags: tuple[str, ...] = ()
    task_offset_interval_ms: int = 60_000
    acceptable_recovery_lag: int = 10_000

    @property
    def assignment_configs(self) -> dict[str, str]:
        """Kafka's names of the configs that targets follow from, with their values as text."""
        configs = {"num.standby.replicas": str(self.standby_replicas)}
        if self.rack_aware_tags:
            configs["rack.aware.assignment.tags"] = ",".join(self.rack_aware_tags)
        return configs


DEFAULT_STREAMS_CONFIG: Final = StreamsConfig()

_STREAMS_CONFIGS: Final[tuple[Setting[Any], ...]] = (
    STREAMS_NUM_STANDBY_REPLICAS,
    STREAMS_INITIAL_REBALANCE_DELAY_MS,
    STREAMS_RACK_AWARE_ASSIGNMENT_TAGS,
    STREAMS_TASK_OFFSET_INTERVAL_MS,
    STREAMS_ACCEPTABLE_RECOVERY_LAG,
)


def streams_config_of(image: Image, group_id: str, defaults: StreamsConfig) -> StreamsConfig:
    """The configs of a streams group, or the settings of the broker."""
    overrides = image.configs.get((GROUP, group_id), EMPTY)
    return StreamsConfig._make(
        each.parse(overrides[each.name]) if each.name in overrides else default
        for each, default in zip(_STREAMS_CONFIGS, defaults, strict=True)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsLimits:
    """Settings of streams groups."""

    members_max: int = MEMBERS_MAX
    times: GroupTimes = DEFAULT_TIMES
    config: StreamsConfig = DEFAULT_STREAMS_CONFIG
    keeps_descriptions: bool = False
    """Whether members are asked for descriptions of their topologies."""

    @classmethod
    def from_settings(cls, settings: Settings) -> StreamsLimits:
        return cls(
            keeps_descriptions=bool(settings[GROUP_STREAMS_TOPOLOGY_DESCRIPTION_PLUGIN_CLASS]),
            members_max=min(settings[GROUP_STREAMS_MAX_SIZE], MEMBERS_MAX),
            times=GroupTimes(
                settings[GROUP_STREAMS_SESSION_TIMEOUT_MS],
                settings[GROUP_STREAMS_HEARTBEAT_INTERVAL_MS],
                settings[GROUP_STREAMS_ASSIGNMENT_INTERVAL_MS],
            ),
            config=StreamsConfig(
                settings[GROUP_STREAMS_NUM_STANDBY_REPLICAS],
                settings[GROUP_STREAMS_INITIAL_REBALANCE_DELAY_MS],
                settings[GROUP_STREAMS_RACK_AWARE_ASSIGNMENT_TAGS],
                settings[GROUP_STREAMS_TASK_OFFSET_INTERVAL_MS],
                settings[GROUP_STREAMS_ACCEPTABLE_RECOVERY_LAG],
            ),
        )


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
    consumer: ConsumerLimits = ConsumerLimits()
    share_members_max: int = 200
    share_times: GroupTimes = DEFAULT_TIMES
    streams: StreamsLimits = StreamsLimits()

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
            consumer=ConsumerLimits.from_settings(settings),
            share_members_max=settings[GROUP_SHARE_MAX_SIZE],
            share_times=GroupTimes(
                settings[GROUP_SHARE_SESSION_TIMEOUT_MS],
                settings[GROUP_SHARE_HEARTBEAT_INTERVAL_MS],
                settings[GROUP_SHARE_ASSIGNMENT_INTERVAL_MS],
            ),
            streams=StreamsLimits.from_settings(settings),
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


class Group(ABC):
    """One group. The service adds and removes committed ``offsets`` of any group.

    Commits are events (``CommitRequested``), because a commit may also extend a session.
    """

    type: ClassVar[str]
    """Kafka's name of the group type, as in ListGroups."""

    takes_classic_requests: ClassVar[bool] = False
    """Whether members with classic requests, such as JoinGroup, may be in the group."""

    hold_point: ClassVar[str] = REBALANCE
    """Where a test can hold a rebalance of the group."""

    def __init__(
        self, group_id: str, limits: GroupLimits, make_id: Callable[[], str], time: Moment
    ) -> None:
        """Create an empty group."""
        del time
        self.group_id = group_id
        self.limits = limits
        self.make_id = make_id
        self.holds_rebalances = False
        """Whether a rebalance that comes to the hold point now is held."""
        self.image = Image()
        """The cluster metadata at the current event."""
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


# What all types have in common --------------------------------------------------------------------

BY_TEST: Final = "by request of a test"

Handlers: TypeAlias = Mapping[type[Event], Callable[[Any, Any], None]]

AfterWrite: TypeAlias = Callable[[ErrorCode], None]
"""What follows when records are written, or are not."""


class PendingWrite(NamedTuple):
    """Records that must be written before the next event."""

    records: tuple[GroupRecord, ...]
    then: AfterWrite


class WrittenGroup(Group):
    """A group whose events go to ``HANDLERS``, and whose changes are written before answers.

    Times of deadlines are monotonic seconds.
    """

    HANDLERS: ClassVar[Handlers]
    """How each event is handled."""

    def __init__(
        self, group_id: str, limits: GroupLimits, make_id: Callable[[], str], time: Moment
    ) -> None:
        super().__init__(group_id, limits, make_id, time)
        self.time = time
        """The time of the current event."""
        self._decisions: list[Decision] = []
        self._write: PendingWrite | None = None
        self._wake_at: float | None = None

    def handle(self, event: Event, time: Moment) -> list[Decision]:
        """Handle an event and return the decisions, in the order in which to carry them out.

        Raises ``RuntimeError`` for any event other than ``Persisted`` while a ``Persist`` is
        outstanding, and for a ``Persisted`` without a ``Persist``.
        """
        if isinstance(event, Persisted) != (self._write is not None):
            raise RuntimeError(
                f"group {self.group_id!r}: {type(event).__name__} was passed while "
                f"{'a' if self._write else 'no'} write was outstanding"
            )
        self.time = time
        self.HANDLERS[type(event)](self, event)
        if self._write is None:
            self._run_due()
        decisions, self._decisions = self._decisions, []
        if self._write is not None:  # It is the last decision.
            decisions.append(Persist(self._write.records))
        return decisions

    @property
    def next_deadline(self) -> float | None:
        return self._wake_at

    @abstractmethod
    def _run_due(self) -> None:
        """Handle expired deadlines, earliest first. Stop when the group must be written."""

    def _wake_by(self, deadline: float) -> None:
        if self._wake_at is None or deadline < self._wake_at:
            self._wake_at = deadline

    def finish_write(self, event: Persisted) -> None:
        """Handle the result of a write."""
        write, self._write = self._write, None
        assert write is not None
        write.then(event.error)

    def _answer(self, waiter: Waiter | None, result: Result) -> None:
        """Answer a waiter, if there is one."""
        if waiter is not None:
            self._decisions.append(GroupAnswer(waiter, result))

    def refuse_share_heartbeat(self, event: ShareHeartbeat) -> None:
        """Reject a member of a share group: the group is of another type."""
        text = f"Group {self.group_id} is not a share group."
        self._answer(event.waiter, ShareHeartbeatResult(ErrorCode.GROUP_ID_NOT_FOUND, text))

    def refuse_streams_heartbeat(self, event: StreamsHeartbeat) -> None:
        """Reject a member of a streams group: the group is of another type."""
        text = f"Group {self.group_id} is not a streams group."
        self._answer(event.waiter, StreamsHeartbeatResult(ErrorCode.GROUP_ID_NOT_FOUND, text))

    def refuse_consumer_heartbeat(self, event: ConsumerHeartbeat) -> None:
        """Reject a member of a consumer group: the group is of another type."""
        text = f"Group {self.group_id} is not a consumer group."
        self._answer(event.waiter, ConsumerHeartbeatResult(ErrorCode.GROUP_ID_NOT_FOUND, text))

    def refuse_shares(self, event: SharesChanged) -> None:
        """Reject a change of the states of a share group: the group is of another type."""
        self._answer(event.waiter, ActionTaken(ErrorCode.GROUP_ID_NOT_FOUND))

    def refuse_description(self, _event: TopologyDescribed) -> None:
        """Reject the description of a topology: the group is of another type."""
        error = ErrorCode.GROUP_ID_NOT_FOUND
        self._reject(error, f"Group {self.group_id} is not a streams group.")

    def _reject(self, error: ErrorCode, text: str) -> None:
        """Reject an action of a test."""
        self._answer(NO_WAITER, ActionTaken(error, text))

    def _log(self, text: str) -> None:
        self._decisions.append(LogLine(f"group {self.group_id!r} {text}"))


# What all types with member epochs have in common -------------------------------------------------


class RequestRejected(Exception):
    """A request is answered with an error."""

    def __init__(self, error: ErrorCode, text: str = "") -> None:
        super().__init__(text)
        self.error = error
        self.text = text


class PlannedAction(NamedTuple):
    """The records of an action of a test, and a line for the log."""

    records: Sequence[GroupRecord]
    note: str
    affected: int = 1


class ChangeCause(enum.Enum):
    """Why the state changes."""

    RECORDS = "records were written"
    REMOVED = "the group was deleted, unloaded or replaced"


class Deadline(enum.Enum):
    """What ends at a deadline of a member or of the group."""

    SESSION = "its session expired"
    REVOCATION = "it has not revoked its partitions within the rebalance timeout"
    JOIN = "the classic member has not joined again within the rebalance timeout"
    SYNC = "the classic member has not requested its assignment within the rebalance timeout"
    REGEX = "regular expressions are to be matched"
    INITIAL = "the first target of a group is due"


class EpochMember(Protocol):
    """A member with an epoch."""

    @property
    def member_id(self) -> str: ...

    @property
    def member_epoch(self) -> int: ...


M = TypeVar("M", bound=EpochMember)


def unknown_member(group_id: str, member_id: str) -> RequestRejected:
    """The rejection of a request of a member that the group does not have."""
    text = f"Member {member_id} is not a member of group {group_id}."
    return RequestRejected(ErrorCode.UNKNOWN_MEMBER_ID, text)


def check_instance(existing: M | None, member_id: str, instance_id: str) -> M:
    """Check that the static member with an instance id has this id. Raises RequestRejected."""
    if existing is None:
        text = f"Instance id {instance_id} is unknown."
        raise RequestRejected(ErrorCode.UNKNOWN_MEMBER_ID, text)
    if existing.member_id != member_id:
        raise RequestRejected(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member "
            f"{existing.member_id}.",
        )
    return existing


def commit_error(
    event: CommitRequested,
    members: Mapping[str, M],
    held_since: Callable[[M, str, int], int | None],
    is_classic: Callable[[M], bool] = lambda _member: False,
) -> ErrorCode:
    """The error of offsets that a member commits, or of a client that is no member.

    A smaller epoch is accepted for partitions that the member has had since then: ``held_since``
    returns the epoch in which it was given a partition of a topic, or None.
    """
    if event.generation < 0 and not members:
        return ErrorCode.NONE
    is_anonymous = event.member_id == "" and event.group_instance_id is None
    if event.transactional and event.generation == -1 and is_anonymous:
        return ErrorCode.NONE
    member = members.get(event.member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if not event.transactional and not is_classic(member) and not event.knows_epochs:
        return ErrorCode.UNSUPPORTED_VERSION
    if event.generation == member.member_epoch:
        return ErrorCode.NONE
    stale = ErrorCode.ILLEGAL_GENERATION if is_classic(member) else ErrorCode.STALE_MEMBER_EPOCH
    if event.generation > member.member_epoch:
        return stale
    for topic, partition in event.partitions:
        since = held_since(member, topic, partition)
        if since is None or event.generation < since:
            return stale
    return ErrorCode.NONE


class EpochData(Protocol):
    """What the records of a group say."""

    group_epoch: int
    assignment_timestamp: int

    @property
    def members(self) -> MutableMapping[str, Any]: ...

    def apply(self, record: Any) -> None: ...

    def current_state(self) -> enum.Enum: ...

    def tombstones(self) -> Sequence[GroupRecord]: ...


D = TypeVar("D", bound=EpochData)
T = TypeVar("T")


class EpochGroup(WrittenGroup, Generic[D]):
    """A group whose members follow a target that the coordinator computes, from epoch to epoch.

    The state changes only by records: when they are written, they are applied as they are when a
    log is loaded.
    """

    data_type: ClassVar[type[Any]]
    declared_times: ClassVar[Sequence[Setting[int]]]
    """The configs of a group that replace the fields of ``GroupTimes``."""
    dead_state: ClassVar[enum.Enum]

    def __init__(
        self, group_id: str, limits: GroupLimits, make_id: Callable[[], str], time: Moment
    ) -> None:
        super().__init__(group_id, limits, make_id, time)
        self.data: D = self.data_type(group_id)
        self.unwritten: tuple[GroupRecord, ...] = ()
        """Records to write before the first others, because they made this group."""
        self.held_revocations: dict[str, Any] = {}
        """What members have that have revoked the rest, while a test holds that."""
        self._released_revocations: dict[str, Any] = {}
        """The same, when no test holds it any more, until the next heartbeat of the member."""
        self.state = self.data.current_state()
        self._overrides: Mapping[str, str] = EMPTY
        self._times = self.default_times
        self._deadlines: dict[tuple[Deadline, str], float] = {}

    @classmethod
    def restore(
        cls,
        group_id: str,
        records: Sequence[GroupRecord],
        limits: GroupLimits,
        make_id: Callable[[], str],
        time: Moment,
    ) -> Self:
        """Create a group from its records."""
        group = cls(group_id, limits, make_id, time)
        for record in records:
            group.data.apply(record)
        group.state = group.data.current_state()
        return group

    @property
    @abstractmethod
    def default_times(self) -> GroupTimes:
        """The settings of the broker."""

    @property
    def times(self) -> GroupTimes:
        """The group's times: its configs, or the settings of the broker."""
        overrides = self.image.configs.get((GROUP, self.group_id), EMPTY)
        if overrides is not self._overrides:
            self._overrides = overrides
            self._times = times_of(
                self.image, self.group_id, self.declared_times, self.default_times
            )
        return self._times

    @property
    def state_name(self) -> str:
        return str(self.state.value)

    @property
    def epoch(self) -> int:
        return self.data.group_epoch

    @property
    def members_count(self) -> int:
        return len(self.data.members)

    def validate_delete(self) -> ErrorCode:
        return ErrorCode.NON_EMPTY_GROUP if self.data.members else ErrorCode.NONE

    def only_extends_session(self, event: Any, /) -> bool:
        """Whether a heartbeat extends the session of its member and has no other effect.

        If it does, `extend_session` does all, and the answer has neither an error nor an
        assignment. The group has the current image and time.
        """
        member = self.data.members.get(event.member_id)
        return (
            member is not None
            and self.expects_only(member, event)
            and self._states_nothing_new(member, event)
        )

    @abstractmethod
    def expects_only(self, member: Any, event: Any, /) -> bool:
        """Whether nothing is due for a member with a heartbeat that states nothing new.

        Depends on the group, the image and the time, and is cheap: it is checked each time that a
        member repeats a heartbeat.
        """

    def _is_target_due(self) -> bool:
        return self.times.is_target_due(self.data.assignment_timestamp, self.time.wall_ms)

    @abstractmethod
    def _states_nothing_new(self, member: Any, event: Any, /) -> bool:
        """Whether a heartbeat states only what is known of its member. Depends on nothing else."""

    def extend_session(self, member_id: str) -> None:
        """Do what a heartbeat does that has no other effect."""
        self._set_deadline(Deadline.SESSION, member_id, self.times.session_timeout_ms)

    @abstractmethod
    def _remove_members(self, members: Sequence[Any], reason: str, then: AfterWrite) -> None:
        """Remove members."""

    def nothing(self, _event: Event) -> None:
        """Do nothing: ``handle`` checks the deadlines after every event."""

    def removed(self, _event: Removed) -> None:
        """End the group; what it has is of no use any more."""
        self.data.members.clear()
        self._deadlines.clear()
        self._wake_at = None
        self._note_state(ChangeCause.REMOVED)

    def _note_state(self, cause: ChangeCause) -> None:
        before = self.state
        is_removed = cause is ChangeCause.REMOVED
        self.state = self.dead_state if is_removed else self.data.current_state()
        if self.state is not before:
            self.past_transitions.append(StateTransition(self.time.now, before, cause, self.state))

    def expire_member(self, event: MemberExpired) -> None:
        """Remove a member by request of a test."""
        member = self.data.members.get(event.member_id)
        if member is None:
            self._reject(ErrorCode.UNKNOWN_MEMBER_ID, f"there is no member {event.member_id!r}")
            return

        def then(error: ErrorCode) -> None:
            self._answer(NO_WAITER, ActionTaken(error, affected=int(error is ErrorCode.NONE)))

        self._remove_members([member], BY_TEST, then)

    def _carry_out(self, action: PlannedAction, done: Callable[[], None] | None = None) -> None:
        """Write what a test has requested, and answer it; ``done`` is called when it is written."""

        def then(error: ErrorCode) -> None:
            failed = error is not ErrorCode.NONE
            if done is not None and not failed:
                done()
            self._answer(NO_WAITER, ActionTaken(error, affected=0 if failed else action.affected))

        self._log(action.note)
        self._persist(action.records, then)

    def _persist(self, records: Sequence[GroupRecord], then: AfterWrite) -> None:
        """Write records; ``then`` is called with the result, at once if there are none."""
        if records or self.unwritten:
            self._write = PendingWrite((*self.unwritten, *records), then)
        else:
            then(ErrorCode.NONE)

    def finish_write(self, event: Persisted) -> None:
        """Apply the records that were written."""
        assert self._write is not None
        if event.error is ErrorCode.NONE:
            made, self.unwritten = len(self.unwritten), ()
            for record in self._write.records[made:]:
                self._apply(record)
            self._note_state(ChangeCause.RECORDS)
        super().finish_write(event)

    def _apply(self, record: Any) -> None:
        """Change the state as a written record says, and the timers with it."""
        self.data.apply(record)
        if record.name is not None and record.name not in self.data.members:
            self._forget_deadlines(record.name)
            self._forget_revocation(record.name)

    def _log_notes(self, notes: Sequence[str]) -> None:
        if notes:
            self._log("; ".join(notes))

    def _note_failure(self, error: ErrorCode) -> None:
        if error is not ErrorCode.NONE:
            self._log(f"could not be written: {error.name}")

    def _hold_revocation(
        self, member_id: str, owned: T | None, *, joins: bool, has_revoked: bool
    ) -> T | None:
        """What a member has according to its heartbeat.

        It is None, so that nothing follows from it, while a test holds that the member has revoked
        the rest.
        """
        if joins:
            self._forget_revocation(member_id)
        elif member_id in self.held_revocations:
            return None
        elif member_id in self._released_revocations:
            released: T = self._released_revocations.pop(member_id)
            return released if owned is None else owned
        elif self.holds_rebalances and has_revoked:
            self.held_revocations[member_id] = owned
            self._decisions.append(HoldRebalance(member_id))
            return None
        return owned

    def release_revocation(self, event: RebalanceReleased) -> None:
        """Let a member go on that has revoked what it must, with its next heartbeat."""
        if event.member_id in self.held_revocations:
            owned = self.held_revocations.pop(event.member_id)
            self._released_revocations[event.member_id] = owned

    def _forget_revocation(self, member_id: str) -> None:
        self.held_revocations.pop(member_id, None)
        self._released_revocations.pop(member_id, None)

    def _set_deadline(self, kind: Deadline, member_id: str, after_ms: int) -> None:
        deadline = self.time.now + after_ms / 1000
        self._deadlines[kind, member_id] = deadline
        self._wake_by(deadline)

    def _forget_deadlines(self, member_id: str) -> None:
        for kind in Deadline:
            self._deadlines.pop((kind, member_id), None)

    def _run_due(self) -> None:
        while self._write is None and self._wake_at is not None and self._wake_at <= self.time.now:
            earliest = min(self._deadlines, key=self._deadlines.__getitem__, default=None)
            if earliest is None:
                self._wake_at = None
                return
            self._wake_at = self._deadlines[earliest]
            if self._wake_at > self.time.now:
                return
            del self._deadlines[earliest]
            self._reach(*earliest)

    def _reach(self, kind: Deadline, member_id: str) -> None:
        """Remove the member whose deadline is over, if there still is one."""
        if member_id in self.data.members:
            text = f"member {member_id} is fenced because {kind.value}"
            self._remove_members([self.data.members[member_id]], text, self._note_failure)
