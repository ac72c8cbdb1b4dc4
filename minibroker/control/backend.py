"""What the control API asks of a broker, and the shapes of the answers.

Owns the ``Backend`` protocol, which the controller role implements, and the records that it
takes and gives; their annotations are also the API's documentation and its checks. Must never
know HTTP, channels or processes. The invariant: every answer is plain, immutable data, and every
refusal is a ``BackendError`` that says what, where and how to mend it. Echoes Kafka's ``Admin``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal, NamedTuple, Protocol, TypeAlias

from minibroker.control.quota_shapes import QuotaExplained, QuotaQuestion, Quotas
from minibroker.control.schema import Doc, Length, Range
from minibroker.observability.metrics import Snapshot
from minibroker.runtime.clock import ADVANCE_MS_MAX, RATE_MAX, RATE_MIN

TOPIC_NAME_MAX: Final = 249
"""Kafka's longest topic name."""

PARTITIONS_MAX: Final = 10_000
"""Partitions one request may ask for; the broker may allow fewer."""

CONFIGS_MAX: Final = 100
"""Config overrides one request may carry."""


class BackendError(Exception):
    """A request the broker refuses.

    ``code`` is Kafka's name of the error where it has one, e.g. ``TOPIC_ALREADY_EXISTS``.
    ``status`` is the HTTP status: 400 bad, 404 not there, 409 in the way, 503 not now.
    """

    def __init__(self, code: str, message: str, hint: str = "", *, status: int = 400) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.hint = hint
        self.status = status


class NotFound(BackendError):
    """What the request names isn't there."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(code, message, hint, status=404)


class Conflict(BackendError):
    """Something is in the way of the request, e.g. a topic of the same name."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(code, message, hint, status=409)


class Unavailable(BackendError):
    """Not now: a process is being restarted, or the broker is stopping. Try again."""

    def __init__(self, code: str, message: str, hint: str = "Try again in a moment.") -> None:
        super().__init__(code, message, hint, status=503)


# Health and cluster ---------------------------------------------------------------------------


ProcessState: TypeAlias = Literal["starting", "running", "restarting", "stopping", "failed"]


class ProcessHealth(NamedTuple):
    """One process of the broker."""

    name: Annotated[str, Doc("Role and index, e.g. `processor-0`.")]
    pid: Annotated[int | None, Doc("Process id; null while it is down or in a simulation.")]
    state: ProcessState
    restarts: Annotated[int, Doc("How often it was started again after it died.")]


class HealthCondition(NamedTuple):
    """Something that is wrong in a process of the broker."""

    process: Annotated[str, Doc("Role and index, e.g. `worker-0`.")]
    kind: Annotated[
        Literal[
            "storage_failed",
            "records_truncated",
            "groups_not_loaded",
            "descriptors_exhausted",
            "not_responding",
        ],
        Doc(
            "`storage_failed` ends by itself when a write succeeds; `records_truncated` stays "
            "until the process restarts; `groups_not_loaded` ends when the logs of committed "
            "offsets can be opened; `descriptors_exhausted` ends when connections can be accepted "
            "again; `not_responding` is a process that did not answer in a second."
        ),
    ]
    subject: Annotated[str, Doc("What it is about, e.g. a path.")]
    text: Annotated[str, Doc("What is wrong, in words.")]
    since_ms: Annotated[
        int, Doc("When it began, in milliseconds since 1970 on the broker's clock.")
    ]


class Health(NamedTuple):
    """Whether the broker serves, how its processes are, and what is wrong with them."""

    ready: Annotated[bool, Doc("True when every process runs that clients need.")]
    status: Annotated[
        Literal["ready", "degraded", "not_ready"],
        Doc("`degraded`: every process runs, and there are conditions."),
    ]
    conditions: Annotated[tuple[HealthCondition, ...], Doc("Oldest first for each process.")]
    version: Annotated[str, Doc("minibroker's version.")]
    uptime_ms: Annotated[int, Doc("Time since the broker started, on its own clock.")]
    processes: tuple[ProcessHealth, ...]


class Endpoint(NamedTuple):
    """Where clients of one listener connect."""

    listener: str
    host: str
    port: int


class BrokerView(NamedTuple):
    """One broker of the cluster."""

    broker_id: int
    rack: str | None
    endpoints: tuple[Endpoint, ...]


class Cluster(NamedTuple):
    """The cluster image that every process holds."""

    cluster_id: str
    controller_id: int
    controller_epoch: int
    change: Annotated[int, Doc("Number of the last change every process has acknowledged.")]
    brokers: tuple[BrokerView, ...]
    topics: Annotated[int, Doc("Number of topics, internal ones included.")]
    partitions: Annotated[int, Doc("Number of partitions of all topics.")]


# Topics ---------------------------------------------------------------------------------------


class TopicSummary(NamedTuple):
    """A topic in a list."""

    name: str
    topic_id: Annotated[str, Doc("Topic id in Kafka's base64url form.")]
    internal: bool
    partitions: Annotated[int, Doc("Number of partitions.")]


class TopicList(NamedTuple):
    """All topics, by name."""

    topics: tuple[TopicSummary, ...]


class PartitionView(NamedTuple):
    """A partition and its log."""

    partition: int
    leader: Annotated[int, Doc("Broker id, or -1 if there is none.")]
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    log_start_offset: Annotated[int, Doc("First offset that can be read.")]
    high_watermark: Annotated[int, Doc("First offset that consumers don't see yet.")]
    log_end_offset: Annotated[int, Doc("Offset that the next record gets.")]
    size_bytes: Annotated[int, Doc("Size of the log's segments.")]
    owner: Annotated[str, Doc("Process that owns the partition, e.g. `worker-1`.")]


class Topic(NamedTuple):
    """A topic with its partitions and the configs set on it."""

    name: str
    topic_id: Annotated[str, Doc("Topic id in Kafka's base64url form.")]
    internal: bool
    partitions: tuple[PartitionView, ...]
    configs: Annotated[Mapping[str, str], Doc("Configs set on this topic; the rest are defaults.")]


class NewTopic(NamedTuple):
    """A topic to create."""

    name: Annotated[str, Length(1, TOPIC_NAME_MAX), Doc("Letters, digits, `.`, `_` and `-`.")]
    partitions: Annotated[
        int | None, Range(1, PARTITIONS_MAX), Doc("Default: the setting `num.partitions`.")
    ] = None
    configs: Annotated[
        Mapping[str, str],
        Length(0, CONFIGS_MAX),
        Doc("Topic configs as in Kafka, each value as text, e.g. `retention.ms`."),
    ] = {}


# Groups ---------------------------------------------------------------------------------------


class GroupSummary(NamedTuple):
    """A consumer group in a list."""

    group_id: str
    state: Annotated[str, Doc("Kafka's name of the state, e.g. `Stable`.")]
    protocol_type: str
    members: Annotated[int, Doc("Number of members.")]


class GroupList(NamedTuple):
    """All groups, by id."""

    groups: tuple[GroupSummary, ...]


class AssignedTopic(NamedTuple):
    """The partitions of one topic that a member was given."""

    topic: str
    partitions: tuple[int, ...]


class Member(NamedTuple):
    """A member of a group."""

    member_id: str
    group_instance_id: Annotated[str | None, Doc("Set for static members.")]
    client_id: str
    client_host: str
    assignment: Annotated[
        tuple[AssignedTopic, ...], Doc("Empty where the protocol isn't the consumer's.")
    ]


class CommittedOffset(NamedTuple):
    """How far a group has come in one partition."""

    topic: str
    partition: int
    offset: Annotated[int, Doc("The committed offset: the next record to read.")]
    metadata: str
    log_end_offset: Annotated[int | None, Doc("Null where the partition is gone.")]
    lag: Annotated[int | None, Doc("Records not read yet; null where the partition is gone.")]


class Group(NamedTuple):
    """A group with its members and committed offsets."""

    group_id: str
    state: Annotated[str, Doc("Kafka's name of the state, e.g. `Stable`.")]
    protocol_type: str
    protocol: Annotated[str, Doc("The assignor the members agreed on, or empty.")]
    generation: int
    leader: Annotated[str | None, Doc("Member id of the leader.")]
    coordinator: Annotated[str, Doc("Process that owns the group, e.g. `worker-0`.")]
    members: tuple[Member, ...]
    offsets: tuple[CommittedOffset, ...]


# Connections ----------------------------------------------------------------------------------


class Connection(NamedTuple):
    """One client connection."""

    number: Annotated[int, Doc("Unique among all connections of this run.")]
    connection_id: Annotated[str, Doc("Kafka's form: local address, remote address, number.")]
    listener: str
    client_address: Annotated[str, Doc("Address and port of the client.")]
    principal: Annotated[
        str, Doc("Who it has proven to be, e.g. `User:alice`; `User:ANONYMOUS` as long as nobody.")
    ]
    client_id: Annotated[str | None, Doc("As in its last request; null before the first.")]
    software_name: Annotated[str | None, Doc("As it said in ApiVersions.")]
    software_version: Annotated[str | None, Doc("As it said in ApiVersions.")]
    age_ms: int
    idle_ms: Annotated[int, Doc("Time since its last request or answer.")]
    state: Annotated[str, Doc("State of the connection, e.g. `reading` or `muted`.")]
    in_flight: Annotated[str | None, Doc("API being answered, e.g. `Fetch`; null when idle.")]


class ProcessorConnections(NamedTuple):
    """The connections of one network processor and its queue of new ones."""

    processor: Annotated[str, Doc("E.g. `processor-0`.")]
    slots_total: Annotated[
        int, Doc("New connections that fit into its queue; 0 where there is none.")
    ]
    slots_used: Annotated[int, Doc("New connections waiting in its queue.")]
    connections_total: Annotated[int, Doc("How many it has, those that are not shown included.")]
    connections: Annotated[tuple[Connection, ...], Doc("The thousand oldest.")]


class ListenerView(NamedTuple):
    """A listener, its connections and the limits that bound it alone: its own, or the broker's
    where the inter-broker listener has none.
    """

    listener: str
    host: str
    port: int
    connections: Annotated[int, Doc("Those that count against limits.")]
    limit: Annotated[int | None, Doc("`max.connections`; null for none.")]
    rate: Annotated[float, Doc("New connections a second, as the limit measures them.")]
    rate_limit: Annotated[float | None, Doc("`max.connection.creation.rate`; null for none.")]
    blocked_share: Annotated[
        float, Doc("The share, 0 to 1, of the last ten seconds in which one had to wait here.")
    ]
    waiting: Annotated[int, Doc("Accepted, and waiting: for a slot, a rate or a processor.")]
    held: Annotated[int, Doc("Accepted, and held because their addresses came too fast.")]
    protected: Annotated[bool, Doc("The inter-broker listener, which the total does not bound.")]


class AddressView(NamedTuple):
    """The connections of one address."""

    ip: str
    connections: int
    limit: Annotated[int | None, Doc("The smallest that holds for it; null for none.")]
    rate: Annotated[float | None, Doc("New connections a second; null where none is limited.")]
    rate_limit: Annotated[
        float | None, Doc("Its quota `connection_creation_rate`, or that of all; null for none.")
    ]


class RefusalView(NamedTuple):
    """Somebody who was turned away, and why."""

    ago_ms: int
    listener: str
    client_address: str
    reason: Annotated[str, Doc("As the label `reason` of `minibroker_connections_closed_total`.")]
    text: Annotated[str, Doc("The same in words: which limit, its value, what to do.")]


class HappeningView(NamedTuple):
    """Something that happened to a connection."""

    seq: Annotated[int, Doc("One more than that of the one before; ask again and see what is new.")]
    ago_ms: int
    kind: Annotated[
        Literal["accepted", "waiting", "held", "handed", "refused", "closed"],
        Doc("In the order in which they may follow each other."),
    ]
    number: Annotated[int, Doc("The connection's.")]
    listener: str
    client_address: str
    processor: Annotated[str | None, Doc("Whose it is or was; null before it is anybody's.")]
    reason: Annotated[
        str | None,
        Doc(
            "Why it was refused or closed, or what it waits for: a setting, `processors` that are "
            "full, or `tokens` of other processors; else null."
        ),
    ]


class UnservedClientView(NamedTuple):
    """A client that asked for a protocol which the broker does not serve."""

    ago_ms: Annotated[int, Doc("Time since it asked last.")]
    client_host: str
    client_id: str | None
    software_name: Annotated[str | None, Doc("As it said in ApiVersions.")]
    software_version: Annotated[str | None, Doc("As it said in ApiVersions.")]
    protocol: Annotated[str, Doc("What it asked for, e.g. `transactions`.")]
    advice: Annotated[str, Doc("What to change in the client.")]
    requests: Annotated[int, Doc("How often it asked.")]


class Connections(NamedTuple):
    """All client connections, with the limits that hold for them and what happened lately."""

    mode: Annotated[
        Literal["single", "sharded"], Doc("The setting `acceptor.mode`: who accepts them.")
    ]
    now: Annotated[float, Doc("The broker's clock in seconds.")]
    total: Annotated[int, Doc("Connections that count against limits.")]
    limit: Annotated[
        int | None, Doc("The smaller of `max.connections` and `kafka_connections_max`, or null.")
    ]
    rate: Annotated[float, Doc("New connections a second, as the limit measures them.")]
    rate_limit: Annotated[
        float | None, Doc("`max.connection.creation.rate` of the broker; null for none.")
    ]
    listeners: tuple[ListenerView, ...]
    processors: tuple[ProcessorConnections, ...]
    addresses: Annotated[
        tuple[AddressView, ...], Doc("The hundred that have most connections, or came last.")
    ]
    addresses_total: Annotated[int, Doc("How many addresses have connections.")]
    refusals: Annotated[tuple[RefusalView, ...], Doc("The last hundred, newest first.")]
    happenings: Annotated[tuple[HappeningView, ...], Doc("The last five hundred, newest last.")]
    unserved: Annotated[
        tuple[UnservedClientView, ...],
        Doc(
            "Clients that asked for a protocol that is not served: the last hundred, newest first."
        ),
    ]


# Clock and reset ------------------------------------------------------------------------------


class ClockView(NamedTuple):
    """The clock that every process of the broker wears."""

    now: Annotated[float, Doc("Monotonic seconds; the beginning is arbitrary.")]
    wall_ms: Annotated[int, Doc("Milliseconds since 1970, as in record timestamps.")]
    offset_ms: Annotated[float, Doc("How far the broker's time is ahead of the machine's.")]
    rate: Annotated[float, Doc("Broker seconds a real second.")]
    frozen: Annotated[bool, Doc("True while time stands still.")]


class ClockChange(NamedTuple):
    """A turn of the clock, one of the fields at least.

    `freeze` and `rate` take effect first, then `advance_ms`.
    """

    advance_ms: Annotated[int | None, Range(0, ADVANCE_MS_MAX), Doc("Let this much time pass.")] = (
        None
    )
    freeze: Annotated[bool | None, Doc("Stop time, or let it go on.")] = None
    rate: Annotated[
        float | None, Range(RATE_MIN, RATE_MAX), Doc("Broker seconds a real second.")
    ] = None


class ResetDone(NamedTuple):
    """What a reset dropped."""

    topics: Annotated[int, Doc("Topics deleted.")]
    groups: Annotated[int, Doc("Groups deleted, with their offsets.")]


class Backend(Protocol):
    """A running broker. Every method may raise ``BackendError``."""

    async def health(self) -> Health:
        """The broker's processes; answers at once, also when some are down."""

    async def cluster(self) -> Cluster:
        """The cluster as this process sees it."""

    async def topics(self) -> TopicList:
        """All topics, internal ones included."""

    async def topic(self, name: str) -> Topic:
        """One topic; ``NotFound`` if there is none of that name."""

    async def create_topic(self, new: NewTopic) -> Topic:
        """Create it and answer when every process knows it; ``Conflict`` if it exists."""

    async def delete_topic(self, name: str) -> None:
        """Delete it and answer when no process knows it any more; ``NotFound`` if none."""

    async def groups(self) -> GroupList:
        """All groups."""

    async def group(self, group_id: str) -> Group:
        """One group; ``NotFound`` if there is none of that id."""

    async def connections(self) -> Connections:
        """All client connections."""

    async def quotas(self) -> Quotas:
        """Who uses what against which quota."""

    async def explain_quota(self, question: QuotaQuestion) -> QuotaExplained:
        """Why somebody is throttled, or isn't."""

    async def clock(self) -> ClockView:
        """The clock now."""

    async def turn_clock(self, change: ClockChange) -> ClockView:
        """Turn the clock of every process, at least one field being set; the clock afterwards."""

    async def reset(self) -> ResetDone:
        """Drop all topics, groups and offsets; answers when every process has."""

    async def metrics(self) -> Sequence[Snapshot]:
        """A fresh snapshot of every process that answers; those that are down are left out."""
