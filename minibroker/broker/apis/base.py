"""The three steps of an API, and the process that runs each of them.

``split`` and ``merge`` run at the network processor that read the request; they see the cluster
image but own no state. ``execute`` runs at the owner of the state: at an I/O worker (partitions,
groups, producer ids) or at the controller (topics, configs). An API never knows about sockets,
processes or channels. Invariant: a part and a reply are plain picklable data; record bytes travel
as an ``ArenaRef`` on the way in, unless they stay in this process, and as a ``FileSlice`` on the
way out. Kafka's ``KafkaApis`` is the same thing as one class; here it is one file per API.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeVar, cast

from minibroker.broker.metadata.image import group_owner, partition_owner, transaction_owner
from minibroker.broker.security.acl import CLUSTER_NAME
from minibroker.broker.security.principal import ANONYMOUS, Principal
from minibroker.broker.settings import (
    OFFSETS_TOPIC_NUM_PARTITIONS,
    TRANSACTION_STATE_LOG_NUM_PARTITIONS,
)
from minibroker.broker.settings.setting import INT_MAX
from minibroker_protocol.errors import ErrorCode

if TYPE_CHECKING:
    from pathlib import Path

    from minibroker.broker.apis.fetch_sessions import FetchSessionCache
    from minibroker.broker.apis.fetch_watches import FetchWatches
    from minibroker.broker.apis.unserved import Unserved
    from minibroker.broker.groups.service import GroupService
    from minibroker.broker.log.log import FileSlice
    from minibroker.broker.log.replica_manager import Partition
    from minibroker.broker.metadata.controller import ClusterController
    from minibroker.broker.metadata.image import ChangeRejected, Image, Update
    from minibroker.broker.quotas.manager import ClientQuotaManager, Mutated
    from minibroker.broker.security.acl import Authorizer, Operation, Resource
    from minibroker.broker.settings import Settings
    from minibroker.broker.settings.dynamic import Configs, DynamicSettings
    from minibroker.broker.shares.service import ShareService
    from minibroker.broker.shares.sessions import ShareSessionCache
    from minibroker.broker.shares.state_store import StateOperation, StateReply
    from minibroker.broker.telemetry import ClientInstances
    from minibroker.broker.transactions.service import TransactionService
    from minibroker.runtime.arena import RecordsRef
    from minibroker_protocol.compiler.single import Shape
    from minibroker_protocol.meanings import Meaning
    from minibroker_protocol.registry import ApiKey
    from minibroker_protocol.types import Uuid
    from minibroker_protocol.wire import RequestHeader

Owner = int
"""Index of an I/O worker, or ``CONTROLLER``."""

CONTROLLER: Final[Owner] = -1

Request = TypeVar("Request")
Response = TypeVar("Response")
Part = TypeVar("Part")
Reply = TypeVar("Reply")
T = TypeVar("T")
Key = TypeVar("Key")

ServedVersions = Mapping["ApiKey", tuple[int, int]]


class CloseConnection(Exception):
    """Close the connection instead of responding; the text is the reason in the log."""


class Caller(NamedTuple):
    """The client of a request, as known from its connection."""

    connection_id: str
    listener: str
    client_host: str
    client_port: int
    principal: Principal = ANONYMOUS
    by_token: bool = False
    """Whether the client has authenticated with a delegation token."""
    software: tuple[str, str] = ("", "")
    """Name and version of the client software, from ApiVersions."""
    connected_to: tuple[str, int] | None = None
    """Address of the broker that the client used, if its listener is advertised by connection."""


def _ignore_denial(_operation: Operation, _resource: Resource, _name: str) -> None:
    """Ignore a denied operation; the default where denials are not logged."""


class Denied:
    """The whole request is denied; ``response`` carries the error."""

    def __init__(self, response: Any) -> None:
        self.response = response


@dataclass(slots=True)
class Context:
    """Inputs of ``split``, ``next_round`` and ``merge``.

    ``image`` and ``now`` are updated at the start of each step, so ``merge`` sees the changes that
    ``execute_at_controller`` has made. ``received`` (monotonic seconds) does not change.
    """

    header: RequestHeader
    caller: Caller
    image: Image
    settings: Settings
    """Settings that the broker was started with."""
    dynamic_settings: DynamicSettings
    """Settings after dynamic changes: call it with ``image.configs``."""
    workers: int
    received: float
    now: float
    wall_ms: int
    served: ServedVersions
    reference: Callable[[object], RecordsRef]
    """Turns a records field of the request into a reference that an owner can resolve.

    The request's memory is then kept until all owners have replied.
    """
    fetch_bytes_max: int = INT_MAX
    """Largest fetch that the caller's quota permits."""
    authorizer: Authorizer | None = None
    """None if authorization is off."""
    denied: Callable[[Operation, Resource, str], None] = _ignore_denial
    """Logs a denied operation."""
    fetch_sessions: FetchSessionCache | None = None
    """Fetch sessions of the processor; without them every fetch is a full one."""
    fetch_context: Any = None
    """The fetch session of the request, or an error (`apis.fetch`); what is known of a share fetch
    (`apis.share_fetch`)."""
    share_sessions: ShareSessionCache | None = None
    """Share sessions of the processor."""
    refused_topics: Sequence[Any] = ()
    """Topics that the authorization check has removed from a fetch that starts a session."""
    finish: Any = None
    """Result of the authorization check (`apis.authorization`), which completes the response."""
    mutated: Mutated | None = None
    """Controller mutations of the request, for the activity event."""
    unserved: Unserved | None = None
    """Set by an API that rejects a request because its protocol is not served."""

    @property
    def version(self) -> int:
        return self.header.api_version

    def allows(
        self,
        operation: Operation,
        resource: Resource,
        name: str = CLUSTER_NAME,
        *,
        quietly: bool = False,
    ) -> bool:
        """Whether the caller is authorized for an operation on a resource or the cluster.

        With ``quietly`` a denial is not logged, because the caller did not request the operation.
        """
        if self.authorizer is None:
            return True
        principal, host = self.caller.principal, self.caller.client_host
        if self.authorizer.allows(principal, host, operation, resource, name):
            return True
        if not quietly:
            self.denied(operation, resource, name)
        return False

    def allows_any(self, operation: Operation, resource: Resource) -> bool:
        """Whether the caller is authorized for the operation on any resource of this type."""
        if self.authorizer is None:
            return True
        principal, host = self.caller.principal, self.caller.client_host
        return self.authorizer.allows_any(principal, host, operation, resource)

    def topic_name(self, name: str, topic_id: Uuid, *, ids_since: int) -> str | None:
        """The name of a requested topic, given by its id from a version on; None for no topic."""
        if self.header.api_version >= ids_since:
            return self.image.topic_names.get(topic_id)
        return name if name in self.image.topics else None

    def partition_owner(self, topic: str, partition: int) -> Owner:
        return partition_owner(topic, partition, self.workers)

    def group_owner(self, group_id: str) -> Owner:
        return group_owner(group_id, self.settings[OFFSETS_TOPIC_NUM_PARTITIONS], self.workers)

    def transaction_owner(self, transactional_id: str) -> Owner:
        partitions = self.settings[TRANSACTION_STATE_LOG_NUM_PARTITIONS]
        return transaction_owner(transactional_id, partitions, self.workers)


class WorkerScope(Protocol):
    """Interface to the I/O worker that runs ``execute``."""

    index: int
    settings: Settings
    groups: GroupService
    transactions: TransactionService
    shares: ShareService
    random: Random

    @property
    def image(self) -> Image: ...

    def now(self) -> float:
        """Monotonic seconds of the broker's clock."""
        ...

    def wall_ms(self) -> int:
        """Epoch milliseconds of the broker's clock."""
        ...

    def records(self, ref: RecordsRef) -> memoryview:
        """The bytes behind a reference; valid until ``execute`` returns."""
        ...

    def open_partition(self, topic: str, index: int) -> Partition | None:
        """A partition that this worker owns and whose log is open, else None."""
        ...

    def partition(self, topic: str, index: int) -> Partition | None:
        """A partition that this worker owns and that is in the image, else None.

        Raises ``LogError`` if its log cannot be opened.
        """
        ...

    @property
    def data_dir(self) -> Path:
        """The directory of the logs."""
        ...

    def log_size(self, topic: str, index: int) -> int:
        """Bytes of a partition's log; 0 if no log was created yet."""
        ...

    def appended(self, topic: str, partition: int, size_bytes: int, records: int) -> None:
        """Count the appended records and wake the fetches that wait for them."""
        ...

    def partition_owner(self, topic: str, partition: int) -> Owner:
        """The I/O worker that owns a partition now."""
        ...

    async def request_owner(self, owner: Owner, key: ApiKey, part: Any) -> Any:
        """The reply of another API to a part, executed by the I/O worker ``owner``.

        Raises ``PeerLost`` if the owner dies before it answers, and ``PeerFailed`` if it cannot
        execute the part.
        """
        ...

    def handle_state(self, operation: StateOperation) -> StateReply:
        """Carry out an operation on the state of a share partition that this worker keeps."""
        ...

    async def request_state(self, operation: StateOperation) -> StateReply:
        """Carry out an operation at the worker that keeps the state, which is awaited."""
        ...

    async def sleep_real(self, seconds: float) -> None:
        """Sleep in real time, also while the broker's clock is frozen."""
        ...

    async def run_in_thread(self, work: Callable[[], T]) -> T:
        """Run ``work`` in a thread, one at a time, while the worker serves other requests.

        Its processor time is charged to the request. It must not use the state of the worker.
        """
        ...

    @property
    def fetch_watches(self) -> FetchWatches:
        """The partitions that fetch sessions watch here."""
        ...

    async def wait_fetch_watch(self, session_id: int, deadline: float) -> None:
        """Return when a partition of the session has changed or the deadline has passed."""
        ...

    async def wait_appended(self, partitions: frozenset[tuple[str, int]], deadline: float) -> None:
        """Return when one of the partitions has grown or the deadline has passed."""
        ...

    def watch_appended(self, partitions: Collection[tuple[str, int]], waiter: Waiter) -> None:
        """Wake a waiter whenever one of the partitions may have grown, until `unwatch_appended`."""
        ...

    def unwatch_appended(self, partitions: Collection[tuple[str, int]], waiter: Waiter) -> None:
        """Remove a waiter that was added with these partitions."""
        ...

    async def next_producer_id(self) -> int | None:
        """A unique producer id, from a block that the controller handed out.

        None while the controller has no block to give, because it is being restarted or the config
        store rejects writes.
        """
        ...


class Mutator(NamedTuple):
    """User and client-id that change the cluster; ``strict`` if excess changes are rejected."""

    user: str
    client_id: str
    strict: bool


class Mutations(Protocol):
    """Controller mutation quota of one request."""

    def take(self, permits: int) -> bool:
        """Record the partitions of a topic; return False if the quota rejects its change."""
        ...

    def mutated(self) -> Mutated:
        """The recorded mutations and the throttle time of the caller."""
        ...


class ControllerScope(Protocol):
    """Interface to the controller that runs ``execute_at_controller``.

    Methods of ``cluster`` return updates. ``publish`` must be called before anything else is
    awaited. It broadcasts the updates and returns when every process has applied them, so any later
    request on any connection sees them.
    """

    cluster: ClusterController
    directory_id: Uuid
    """Id of the data directory; zero if it is not known."""

    @property
    def settings(self) -> Settings: ...

    @property
    def image(self) -> Image: ...

    @property
    def quotas(self) -> ClientQuotaManager:
        """Current quotas of users and clients."""
        ...

    @property
    def telemetry(self) -> ClientInstances:
        """Clients that push metrics."""
        ...

    async def run_in_thread(self, work: Callable[[], T]) -> T:
        """Run ``work``, which must not use the state of the controller, in a thread."""
        ...

    def mutations(self, mutator: Mutator) -> Mutations: ...

    def unusable_keys(self, configs: Configs) -> Sequence[str]:
        """Reasons why listeners cannot load the keys or certificates of these configs."""
        ...

    async def publish(self, updates: Sequence[Update]) -> None: ...

    def refuse(self, reason: str) -> None:
        """End the controller, because the broker can't work; the reason is printed."""


class Round(NamedTuple):
    """A further round of parts that a response needs, such as a fetch that has to wait.

    With ``first_only`` the first reply ends the round and the other parts are cancelled.
    """

    parts: Mapping[Owner, Any]
    first_only: bool = False


class SingleScope(Protocol):
    """What a request about one partition or group may use in its single step."""

    @property
    def image(self) -> Image: ...

    @property
    def worker(self) -> WorkerScope:
        """The I/O worker in this process."""
        ...

    @property
    def caller(self) -> Caller:
        """The client of the request."""
        ...

    @property
    def client_id(self) -> str | None:
        """The client id in the header of the request."""
        ...

    def fetch_bytes_max(self) -> int:
        """The largest fetch that the client's quota permits."""
        ...

    def read(self, records: FileSlice) -> bytes | None:
        """The bytes of records in a file; None if it cannot be read."""
        ...

    def repeat_by(self, repeat: Repeat) -> None:
        """Let a function execute the request when this host sends it again.

        Only for APIs with ``SingleForm.repeats``.
        """
        ...


Repeat = Callable[[], bool]
"""Does again what a request has done, while the image of the worker is the same. Returns False, and
does nothing, if the request would now do anything else or have another response."""


class Waiter(Protocol):
    """Something that is woken, such as an event of the loop; waking it again is harmless."""

    def set(self) -> object:
        """Wake it."""
        ...

    def __hash__(self) -> int: ...


class Delayed(Protocol):
    """A single step that waits until a partition has grown, or for its deadline.

    ``deadline`` is in seconds of the broker's clock. Kafka's ``DelayedOperation``.
    """

    partitions: Collection[tuple[str, int]]
    deadline: float

    def attempt(self, *, is_over: bool) -> tuple[Any, ...] | Delayed | None:
        """Try again, when a partition may have grown and when the wait ``is_over``.

        Return this object to wait longer, otherwise what ``SingleForm.execute`` returns.
        """


class SingleForm(NamedTuple):
    """The single step of an API: for a request about one partition or group of this process.

    ``shape`` are the arrays that such a request and its response have, and their sizes. ``execute``
    gets the version and the leaves of the request (`minibroker_protocol.compiler.single`) and
    returns those of the response, whose throttle time is 0 and which has no error, or says what it
    waits for. They are None, and there was no effect, if the request is another one: then the three
    steps are taken.
    """

    shape: Shape
    execute: Callable[[SingleScope, int, tuple[Any, ...]], tuple[Any, ...] | Delayed | None]
    repeats: bool = False
    """Whether clients repeat such requests, so that ``execute`` may call ``repeat_by``."""


class Requires(NamedTuple):
    """An operation that the caller of an API must be authorized for.

    ``on`` says what for: the names with that meaning in the request. A denied element of an array
    is removed from the request and gets an error of its own in the response; a denied name outside
    of arrays, and the cluster, denies the whole request. A name of a config resource is a topic, a
    group or else the cluster; a topic may be named by its id, and one that is null or unknown
    requires nothing.
    """

    operation: Operation
    on: Meaning
    or_cluster: Operation | None = None
    """An operation on the cluster that suffices, too."""
    text: str | None = None
    """The message of the error."""
    refusal: Callable[[Any, ErrorCode], Any] | None = None
    """Builds the response to a denied request where it has more than the error."""


CLUSTER_DENIED_TEXT: Final = "Cluster authorization failed."


class Special(enum.Enum):
    """The requirements of an API that `Requires` cannot state."""

    SPECIAL = enum.auto()


SPECIAL: Final = Special.SPECIAL
"""The API has a function in `apis.authorization.special_checks`."""


@dataclass(frozen=True, slots=True)
class Api(Generic[Request, Part, Reply, Response]):
    """One API as registered.

    ``versions`` are advertised, and served from ``served_from`` on if that is set. ``requires`` are
    checked in their order; an empty tuple allows every caller. ``merge`` returns None where the
    protocol has no response (Produce with acks=0). ``next_round`` may return another round, given
    the newest reply of each owner.
    """

    key: ApiKey
    versions: tuple[int, int]
    requires: tuple[Requires, ...] | Special
    split: Callable[[Context, Request], Mapping[Owner, Part]]
    merge: Callable[[Context, Request, Mapping[Owner, Reply]], Response | None]
    execute: Callable[[WorkerScope, Part], Reply | Awaitable[Reply]] | None = None
    execute_at_controller: Callable[[ControllerScope, Part], Awaitable[Reply]] | None = None
    next_round: Callable[[Context, Request, Mapping[Owner, Reply]], Round | None] | None = None
    served_from: int | None = None
    """Lowest served version where the lowest advertised version is not served (Produce)."""
    may_wait: bool = False
    """Whether ``execute`` may wait for other clients or for a deadline. The wait is cancelled when
    the broker stops. A waiting request holds neither memory nor a request handler, so its API must
    not read records in place."""
    cluster_action: bool = False
    """Whether brokers send it: authorized callers are exempt from the request quota."""
    is_cacheable: bool = False
    """Whether a response depends only on the image, the listener and the request if no owner was
    asked and authorization is off.
    """
    single: SingleForm | None = None
    """The single step for the requests that make up most of the traffic."""
    left_out: tuple[str, ...] = ()
    """Parts of the API that are not served, each with its reason; listed in the reference."""

    @property
    def served(self) -> tuple[int, int]:
        """The lowest and the highest version of requests that are answered."""
        low, high = self.versions
        return (low if self.served_from is None else self.served_from), high

    def serves(self, version: int) -> bool:
        """Whether requests of a version are answered."""
        low, high = self.served
        return low <= version <= high


ServedApi = Api[Any, Any, Any, Any]
"""An API with messages of any type."""


# What many APIs need ------------------------------------------------------------------------------


def parts_by_owner(items: Iterable[tuple[Owner, T]]) -> dict[Owner, tuple[T, ...]]:
    """Return a part for each owner, with its items in their order."""
    parts: dict[Owner, list[T]] = {}
    for owner, item in items:
        parts.setdefault(owner, []).append(item)
    return {owner: tuple(part) for owner, part in parts.items()}


def all_results(replies: Mapping[Owner, Mapping[Key, T]]) -> dict[Key, T]:
    """Return the results in the replies of all owners."""
    return {key: result for reply in replies.values() for key, result in reply.items()}


def error_fields(rejection: ChangeRejected | None) -> dict[str, Any]:
    """Return the error code and the message of what was rejected, or of no error."""
    if rejection is None:
        return {"error_code": ErrorCode.NONE, "error_message": None}
    return {"error_code": rejection.code, "error_message": rejection.text}


# APIs that need one function ----------------------------------------------------------------------


def without_owner(
    answer: Callable[[Context, Request], Response],
    *,
    key: ApiKey,
    versions: tuple[int, int],
    requires: tuple[Requires, ...] | Special,
    cluster_action: bool = False,
    is_cacheable: bool = False,
    left_out: tuple[str, ...] = (),
) -> Api[Request, None, None, Response]:
    """Return an API whose response follows from the request and the image.

    Every process has the image, so no owner is involved.
    """

    def split(_ctx: Context, _request: Request) -> Mapping[Owner, None]:
        return {}

    def merge(ctx: Context, request: Request, _replies: Mapping[Owner, None]) -> Response:
        return answer(ctx, request)

    return Api(
        key=key,
        versions=versions,
        requires=requires,
        split=split,
        merge=merge,
        cluster_action=cluster_action,
        is_cacheable=is_cacheable,
        left_out=left_out,
    )


@dataclass(frozen=True, slots=True)
class ControllerRequest(Generic[Request]):
    """A decoded request on its way to the controller, and what is known about its client."""

    message: Request
    version: int
    caller: Caller
    client_id: str
    wall_ms: int
    """When it was received, in epoch milliseconds."""

    def mutator(self, *, strict_from: int) -> Mutator:
        """The caller; clients understand a quota error from version ``strict_from`` on."""
        return Mutator(self.caller.principal.name, self.client_id, self.version >= strict_from)


class MutationResponse(NamedTuple):
    """A response whose request counts towards the controller mutation quota."""

    response: Any
    mutated: Mutated


def at_controller(
    execute: Callable[
        [ControllerScope, ControllerRequest[Request]],
        Awaitable[Response | MutationResponse],
    ],
    *,
    key: ApiKey,
    versions: tuple[int, int],
    requires: tuple[Requires, ...] | Special,
    reject: Callable[[Context, Request], Response | None] | None = None,
    left_out: tuple[str, ...] = (),
) -> Api[Request, ControllerRequest[Request], Response | MutationResponse, Response]:
    """Return an API that the controller executes.

    The decoded request is sent to it, and the response comes back, unless ``reject`` has a response
    to a request that the controller need not see.
    """

    def split(ctx: Context, request: Request) -> Mapping[Owner, ControllerRequest[Request]]:
        if reject is not None and reject(ctx, request) is not None:
            return {}
        client_id = ctx.header.client_id or ""
        part = ControllerRequest(request, ctx.version, ctx.caller, client_id, ctx.wall_ms)
        return {CONTROLLER: part}

    def merge(
        ctx: Context, request: Request, replies: Mapping[Owner, Response | MutationResponse]
    ) -> Response:
        if CONTROLLER not in replies and reject is not None:
            return cast("Response", reject(ctx, request))
        reply = replies[CONTROLLER]
        if not isinstance(reply, MutationResponse):
            return reply
        ctx.mutated = reply.mutated
        response: Any = reply.response
        response.throttle_time_ms = reply.mutated.throttle_ms
        return cast("Response", response)

    return Api(
        key=key,
        versions=versions,
        requires=requires,
        split=split,
        execute_at_controller=execute,
        merge=merge,
        left_out=left_out,
    )
