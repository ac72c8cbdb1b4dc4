"""Backend of the control API, and the records of requests and responses.

Owns the ``Backend`` protocol, which the controller role implements, and its records, whose
annotations document and validate the API. Must never know HTTP, channels or processes. Invariant:
responses are plain, immutable data, and every error is a ``BackendError``. Kafka's ``Admin``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal, NamedTuple, Protocol, TypeAlias

from minibroker.broker.metrics.metrics import Snapshot
from minibroker.lab.control.compaction import CompactionBackend
from minibroker.lab.control.quota_shapes import QuotaExplanation, QuotaQuery, QuotasView
from minibroker.lab.control.schema import Doc, Length, Range
from minibroker.runtime.clock import ADVANCE_MS_MAX, RATE_MAX, RATE_MIN

TOPIC_NAME_MAX: Final = 249
"""Kafka's limit on the length of a topic name."""

PARTITIONS_MAX: Final = 10_000
"""Maximum number of partitions in one request; the broker may allow fewer."""

CONFIGS_MAX: Final = 100
"""Maximum number of config overrides in one request."""


class BackendError(Exception):
    """The broker rejected a request.

    ``code`` is the name of Kafka's error where there is one, e.g. ``TOPIC_ALREADY_EXISTS``.
    ``status`` is the HTTP status: 400 invalid, 404 not found, 409 conflict, 503 unavailable.
    """

    def __init__(self, code: str, message: str, hint: str = "", *, status: int = 400) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.hint = hint
        self.status = status


class NotFound(BackendError):
    """The resource does not exist."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(code, message, hint, status=404)


class Conflict(BackendError):
    """The request conflicts with the current state, e.g. a topic with the same name."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(code, message, hint, status=409)


class Unavailable(BackendError):
    """A process is restarting, or the broker is stopping; the client can retry."""

    def __init__(self, code: str, message: str, hint: str = "Try again in a moment.") -> None:
        super().__init__(code, message, hint, status=503)


# Health and cluster ---------------------------------------------------------------------------


ProcessState: TypeAlias = Literal["starting", "running", "restarting", "stopping", "failed"]


class ProcessHealth(NamedTuple):
    """One process of the broker."""

    name: Annotated[str, Doc("Role and index, e.g. `processor-0`.")]
    pid: Annotated[int | None, Doc("Process id; null while it is down or in a simulation.")]
    state: ProcessState
    restarts: Annotated[int, Doc("How often it was restarted after it died.")]


class HealthCondition(NamedTuple):
    """A problem in a process of the broker."""

    process: Annotated[str, Doc("Role and index, e.g. `worker-0`.")]
    kind: Annotated[
        Literal[
            "storage_failed",
            "records_truncated",
            "groups_not_loaded",
            "transactions_not_loaded",
            "descriptors_exhausted",
            "not_responding",
        ],
        Doc(
            "`storage_failed` ends when a write succeeds; `records_truncated` ends when the "
            "process restarts; `groups_not_loaded` and `transactions_not_loaded` end when their "
            "logs can be opened; `descriptors_exhausted` ends when connections can be accepted "
            "again; `not_responding` means that the process did not respond within a second."
        ),
    ]
    subject: Annotated[str, Doc("The affected resource, e.g. a path.")]
    text: Annotated[str, Doc("Description of the problem.")]
    since_ms: Annotated[
        int, Doc("When it started, in milliseconds since 1970 on the broker's clock.")
    ]


class Health(NamedTuple):
    """Health of the broker and its processes, with current problems."""

    ready: Annotated[bool, Doc("True if all processes that clients need are running.")]
    status: Annotated[
        Literal["ready", "degraded", "not_ready"],
        Doc("`degraded`: all processes are running, but there are conditions."),
    ]
    conditions: Annotated[tuple[HealthCondition, ...], Doc("For each process, oldest first.")]
    version: Annotated[str, Doc("Version of minibroker.")]
    uptime_ms: Annotated[int, Doc("Time since the broker started, on the broker's clock.")]
    processes: tuple[ProcessHealth, ...]


class Endpoint(NamedTuple):
    """The address that clients of a listener connect to."""

    listener: str
    host: str
    port: int


class BrokerView(NamedTuple):
    """One broker of the cluster."""

    broker_id: int
    rack: str | None
    endpoints: tuple[Endpoint, ...]


class Cluster(NamedTuple):
    """The cluster metadata that every process has."""

    cluster_id: str
    controller_id: int
    controller_epoch: int
    change: Annotated[int, Doc("Number of the last change that all processes have acknowledged.")]
    brokers: tuple[BrokerView, ...]
    topics: Annotated[int, Doc("Number of topics, including internal ones.")]
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
    high_watermark: Annotated[int, Doc("First offset that consumers cannot read yet.")]
    log_end_offset: Annotated[int, Doc("Offset of the next record.")]
    size_bytes: Annotated[int, Doc("Size of the log's segments.")]
    owner: Annotated[str, Doc("Process that owns the partition, e.g. `worker-1`.")]


class TopicView(NamedTuple):
    """A topic with its partitions and configs."""

    name: str
    topic_id: Annotated[str, Doc("Topic id in Kafka's base64url form.")]
    internal: bool
    partitions: tuple[PartitionView, ...]
    configs: Annotated[
        Mapping[str, str], Doc("Configs set on this topic; others have their defaults.")
    ]


class TopicCreation(NamedTuple):
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
    """The partitions of one topic that are assigned to a member."""

    topic: str
    partitions: tuple[int, ...]


class Member(NamedTuple):
    """A member of a group."""

    member_id: str
    group_instance_id: Annotated[str | None, Doc("Set for static members.")]
    client_id: str
    client_host: str
    assignment: Annotated[
        tuple[AssignedTopic, ...], Doc("Empty if the protocol type is not `consumer`.")
    ]


class CommittedOffsetView(NamedTuple):
    """Committed offset and lag of a group in one partition."""

    topic: str
    partition: int
    offset: Annotated[int, Doc("The committed offset: the next record to read.")]
    metadata: str
    log_end_offset: Annotated[int | None, Doc("Null if the partition was deleted.")]
    lag: Annotated[int | None, Doc("Records not consumed yet; null if the partition was deleted.")]


class GroupView(NamedTuple):
    """A group with its members and committed offsets."""

    group_id: str
    state: Annotated[str, Doc("Kafka's name of the state, e.g. `Stable`.")]
    protocol_type: str
    protocol: Annotated[str, Doc("The assignor that the group uses, or empty.")]
    generation: int
    leader: Annotated[str | None, Doc("Member id of the leader.")]
    coordinator: Annotated[str, Doc("Process that owns the group, e.g. `worker-0`.")]
    members: tuple[Member, ...]
    offsets: tuple[CommittedOffsetView, ...]


# Connections ----------------------------------------------------------------------------------


class Connection(NamedTuple):
    """One client connection."""

    number: Annotated[int, Doc("Unique since the broker started.")]
    connection_id: Annotated[str, Doc("Kafka's form: local address, remote address, number.")]
    listener: str
    client_address: Annotated[str, Doc("Address and port of the client.")]
    principal: Annotated[
        str, Doc("The authenticated principal, e.g. `User:alice`, or `User:ANONYMOUS`.")
    ]
    client_id: Annotated[str | None, Doc("From the last request; null before the first.")]
    software_name: Annotated[str | None, Doc("As it said in ApiVersions.")]
    software_version: Annotated[str | None, Doc("As it said in ApiVersions.")]
    age_ms: int
    idle_ms: Annotated[int, Doc("Time since the last request or response.")]
    state: Annotated[str, Doc("State of the connection, e.g. `reading` or `muted`.")]
    in_flight: Annotated[str | None, Doc("API of the current request, e.g. `Fetch`; null if idle.")]


class ProcessorView(NamedTuple):
    """The connections of a network processor and its queue of new connections."""

    processor: Annotated[str, Doc("E.g. `processor-0`.")]
    slots_total: Annotated[
        int, Doc("Capacity of the queue of new connections; 0 if there is no queue.")
    ]
    slots_used: Annotated[int, Doc("New connections in the queue.")]
    connections_total: Annotated[int, Doc("Number of connections, including those not listed.")]
    connections: Annotated[tuple[Connection, ...], Doc("The 1,000 oldest connections.")]


class ListenerView(NamedTuple):
    """A listener with its connections and limits.

    The inter-broker listener has the limits of the broker unless it has its own.
    """

    listener: str
    host: str
    port: int
    connections: Annotated[int, Doc("Number of connections that count against limits.")]
    limit: Annotated[int | None, Doc("`max.connections`; null for none.")]
    rate: Annotated[float, Doc("New connections a second, as the limit measures them.")]
    rate_limit: Annotated[float | None, Doc("`max.connection.creation.rate`; null for none.")]
    blocked_share: Annotated[
        float, Doc("Share, 0 to 1, of the last ten seconds in which connections had to wait.")
    ]
    waiting: Annotated[
        int, Doc("Accepted connections that wait for a limit, a rate or a processor.")
    ]
    held: Annotated[int, Doc("Accepted connections that are delayed by their per-IP rate.")]
    protected: Annotated[
        bool, Doc("True for the inter-broker listener, which the total limit does not affect.")
    ]


class AddressView(NamedTuple):
    """The connections of one IP address."""

    ip: str
    connections: int
    limit: Annotated[int | None, Doc("The lowest limit that applies to it; null if there is none.")]
    rate: Annotated[float | None, Doc("New connections per second; null if no rate is limited.")]
    rate_limit: Annotated[
        float | None,
        Doc("Its quota `connection_creation_rate`, or the default quota; null if there is none."),
    ]


class RejectionView(NamedTuple):
    """A rejected connection with the reason."""

    ago_ms: int
    listener: str
    client_address: str
    reason: Annotated[str, Doc("As the label `reason` of `minibroker_connections_closed_total`.")]
    text: Annotated[str, Doc("Description: which limit, its value, how to change it.")]


class ConnectionEventView(NamedTuple):
    """An event of a connection."""

    seq: Annotated[int, Doc("Sequence number, for finding new events after another request.")]
    ago_ms: int
    kind: Annotated[
        Literal["accepted", "waiting", "held", "handed", "refused", "closed"],
        Doc("In the order in which they can occur; `held` means delayed by a per-IP rate."),
    ]
    number: Annotated[int, Doc("The number of the connection.")]
    listener: str
    client_address: str
    processor: Annotated[
        str | None, Doc("The processor of the connection; null if none is assigned yet.")
    ]
    reason: Annotated[
        str | None,
        Doc(
            "Why it was rejected or closed, or what it waits for: a setting, `processors` that are "
            "full, or `tokens` of other processors. Otherwise null."
        ),
    ]


class UnservedClientView(NamedTuple):
    """A client that requested a protocol which the broker does not support."""

    ago_ms: Annotated[int, Doc("Time since the last request.")]
    client_host: str
    client_id: str | None
    software_name: Annotated[str | None, Doc("As it said in ApiVersions.")]
    software_version: Annotated[str | None, Doc("As it said in ApiVersions.")]
    protocol: Annotated[str, Doc("The requested protocol, e.g. `share groups (KIP-932)`.")]
    advice: Annotated[str, Doc("What to change in the client.")]
    requests: Annotated[int, Doc("Number of requests.")]


class ConnectionsView(NamedTuple):
    """Client connections, their limits and recent events."""

    mode: Annotated[Literal["single", "sharded"], Doc("The setting `acceptor.mode`.")]
    now: Annotated[float, Doc("The broker's clock in seconds.")]
    total: Annotated[int, Doc("Number of connections that count against limits.")]
    limit: Annotated[
        int | None, Doc("The smaller of `max.connections` and `kafka_connections_max`, or null.")
    ]
    rate: Annotated[float, Doc("New connections a second, as the limit measures them.")]
    rate_limit: Annotated[
        float | None, Doc("`max.connection.creation.rate` of the broker; null for none.")
    ]
    listeners: tuple[ListenerView, ...]
    processors: tuple[ProcessorView, ...]
    addresses: Annotated[
        tuple[AddressView, ...],
        Doc("The 100 addresses with most connections, or with the latest ones."),
    ]
    addresses_total: Annotated[int, Doc("Number of addresses that have connections.")]
    refusals: Annotated[tuple[RejectionView, ...], Doc("The last 100, newest first.")]
    happenings: Annotated[tuple[ConnectionEventView, ...], Doc("The last 500, newest last.")]
    unserved: Annotated[
        tuple[UnservedClientView, ...],
        Doc(
            "Clients that requested a protocol which is not supported: the last 100, newest first."
        ),
    ]


# Clock and reset ------------------------------------------------------------------------------


class ClockView(NamedTuple):
    """The clock that all processes of the broker share."""

    now: Annotated[float, Doc("Monotonic seconds from an arbitrary start.")]
    wall_ms: Annotated[int, Doc("Milliseconds since 1970, as in record timestamps.")]
    offset_ms: Annotated[float, Doc("How far the broker's clock is ahead of the system clock.")]
    rate: Annotated[float, Doc("Broker seconds a real second.")]
    frozen: Annotated[bool, Doc("True if the clock is stopped.")]


class ClockChange(NamedTuple):
    """A change of the clock, with at least one of the fields.

    `freeze` and `rate` take effect first, then `advance_ms`.
    """

    advance_ms: Annotated[
        int | None, Range(0, ADVANCE_MS_MAX), Doc("Advance the clock by this time.")
    ] = None
    freeze: Annotated[bool | None, Doc("Stop the clock, or let it continue.")] = None
    rate: Annotated[
        float | None, Range(RATE_MIN, RATE_MAX), Doc("Broker seconds a real second.")
    ] = None


class ResetResult(NamedTuple):
    """The result of a reset."""

    topics: Annotated[int, Doc("Number of deleted topics.")]
    groups: Annotated[int, Doc("Number of deleted groups, with their offsets.")]


class Backend(CompactionBackend, Protocol):
    """A running broker. Every method can raise ``BackendError``."""

    async def health(self) -> Health:
        """Return the state of the processes at once, even if some are down."""

    async def cluster(self) -> Cluster:
        """Return the cluster metadata of this process."""

    async def topics(self) -> TopicList:
        """Return all topics, including internal ones."""

    async def topic(self, name: str) -> TopicView:
        """Return a topic; raise ``NotFound`` if it does not exist."""

    async def create_topic(self, new: TopicCreation) -> TopicView:
        """Create a topic and publish it to all processes; raise ``Conflict`` if it exists."""

    async def delete_topic(self, name: str) -> None:
        """Delete a topic from all processes; raise ``NotFound`` if it does not exist."""

    async def groups(self) -> GroupList:
        """Return all groups."""

    async def group(self, group_id: str) -> GroupView:
        """Return a group; raise ``NotFound`` if it does not exist."""

    async def connections(self) -> ConnectionsView:
        """Return all client connections."""

    async def quotas(self) -> QuotasView:
        """Return usage and quotas of clients."""

    async def explain_quota(self, question: QuotaQuery) -> QuotaExplanation:
        """Explain why a client is or is not throttled."""

    async def clock(self) -> ClockView:
        """Return the clock."""

    async def turn_clock(self, change: ClockChange) -> ClockView:
        """Change the clock of all processes and return it; at least one field is set."""

    async def reset(self) -> ResetResult:
        """Delete all topics, groups and offsets in all processes."""

    async def metrics(self) -> Sequence[Snapshot]:
        """Return a current snapshot of each process that responds."""
