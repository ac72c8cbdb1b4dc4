"""What an API is to this broker: three steps, and who runs each of them.

``split`` and ``merge`` run at the network processor that read the request; they see the cluster
image but own no state. ``execute`` runs at the owner of the state: at an I/O worker (partitions,
groups, producer ids) or at the controller (topics, configs). An API never knows about sockets,
processes or channels. Invariant: a part and a reply are plain picklable data; record bytes travel
as an ``ArenaRef`` on the way in and as a ``FileSlice`` on the way out. Kafka's ``KafkaApis`` is
the same thing as one class; here it is one file per API.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeVar

from minibroker.cluster.placement import group_owner, partition_owner
from minibroker.config import OFFSETS_TOPIC_NUM_PARTITIONS
from minibroker.config.types import INT_MAX
from minibroker.security.acl import CLUSTER_NAME
from minibroker.security.principal import ANONYMOUS, Principal

if TYPE_CHECKING:
    from minibroker.apis.unserved import Unserved
    from minibroker.cluster.controller import ClusterController
    from minibroker.cluster.image import Image, Update
    from minibroker.config import Settings
    from minibroker.config.dynamic import Configs, InForce
    from minibroker.coordinator.service import GroupService
    from minibroker.quotas.controller_mutation import Mutated
    from minibroker.quotas.manager import ClientQuotaManager
    from minibroker.runtime.arena import ArenaRef
    from minibroker.security.acl import Authorizer, Operation, Resource
    from minibroker.storage.partition import Partition
    from protocol.headers import RequestHeader
    from protocol.registry import ApiKey

Owner = int
"""Index of an I/O worker, or ``CONTROLLER``."""

CONTROLLER: Final[Owner] = -1

Request = TypeVar("Request")
Response = TypeVar("Response")
Part = TypeVar("Part")
Reply = TypeVar("Reply")
T = TypeVar("T")

ServedVersions = Mapping["ApiKey", tuple[int, int]]


class CloseConnection(Exception):
    """The only honest answer is to hang up; the text says why, for the log."""


class Caller(NamedTuple):
    """Who sent a request, as far as the connection tells."""

    connection_id: str
    listener: str
    client_host: str
    client_port: int
    principal: Principal = ANONYMOUS


def _nobody_asks(_operation: Operation, _resource: Resource, _name: str) -> None:
    """Where there is no log."""


class Denied:
    """The caller may do nothing of what a request asks for; ``response`` says so."""

    def __init__(self, response: Any) -> None:
        self.response = response


@dataclass(slots=True)
class Context:
    """What ``split``, ``again`` and ``merge`` may look at.

    ``image`` and ``now`` are the newest when a step begins, so ``merge`` sees what ``execute`` at
    the controller has changed; ``received`` (monotonic seconds) stays.
    """

    header: RequestHeader
    caller: Caller
    image: Image
    settings: Settings
    """What the broker was started with."""
    in_force: InForce
    """What holds once that was changed while it runs: ask it with ``image.configs``."""
    workers: int
    received: float
    now: float
    wall_ms: int
    served: ServedVersions
    reference: Callable[[object], ArenaRef]
    """Turns a records field of the request into a reference that an owner can resolve.

    The request's memory then stays as it is until all owners have answered.
    """
    fetch_bytes_max: int = INT_MAX
    """The most that a quota lets the caller fetch at once."""
    authorizer: Authorizer | None = None
    """None if authorization is off."""
    denied: Callable[[Operation, Resource, str], None] = _nobody_asks
    """Tells people that the caller was refused something."""
    finish: Any = None
    """Result of the authorization check (`apis.authorization`), which completes the response."""
    mutated: Mutated | None = None
    """What a request has changed of the cluster, for who tells of it."""
    unserved: Unserved | None = None
    """Set by an API that refuses a request because it belongs to a protocol that is not served."""

    @property
    def version(self) -> int:
        return self.header.api_version

    def mutator(self, *, strict_from: int) -> Mutator:
        """The caller; from that version on a client knows what to do when it is refused."""
        strict = self.version >= strict_from
        return Mutator(self.caller.principal.name, self.header.client_id or "", strict)

    def allows(
        self,
        operation: Operation,
        resource: Resource,
        name: str = CLUSTER_NAME,
        *,
        quietly: bool = False,
    ) -> bool:
        """Whether the caller may do something to a resource, or to the cluster.

        With ``quietly`` nobody is told if not: it was not what the caller asked for.
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
        """Whether there could be a resource of this kind to which the caller may do it."""
        if self.authorizer is None:
            return True
        principal, host = self.caller.principal, self.caller.client_host
        return self.authorizer.allows_any(principal, host, operation, resource)

    def partition_owner(self, topic: str, partition: int) -> Owner:
        return partition_owner(topic, partition, self.workers)

    def group_owner(self, group_id: str) -> Owner:
        return group_owner(group_id, self.settings[OFFSETS_TOPIC_NUM_PARTITIONS], self.workers)


class WorkerScope(Protocol):
    """What ``execute`` at an I/O worker may use."""

    index: int
    settings: Settings
    groups: GroupService
    random: Random

    @property
    def image(self) -> Image: ...

    def now(self) -> float:
        """Monotonic seconds of the broker's clock."""
        ...

    def wall_ms(self) -> int:
        """Epoch milliseconds of the broker's clock."""
        ...

    def records(self, ref: ArenaRef) -> memoryview:
        """The bytes behind a reference; valid until ``execute`` returns."""
        ...

    def partition(self, topic: str, index: int) -> Partition | None:
        """A partition that this worker owns and that is in the image, else None.

        Raises ``LogError`` if its log cannot be opened.
        """
        ...

    def appended(self, topic: str, partition: int, size_bytes: int, records: int) -> None:
        """Counts what a log has taken and wakes the fetches that wait for it."""
        ...

    async def off_loop(self, work: Callable[[], T]) -> T:
        """Run ``work`` in a thread, one at a time, so that other requests are served meanwhile.

        Its processor time is charged to the request. It must not use anything of the worker's.
        """
        ...

    async def wait_appended(self, partitions: frozenset[tuple[str, int]], deadline: float) -> None:
        """Returns when one of the partitions has grown or the deadline has passed."""
        ...

    async def next_producer_id(self) -> int | None:
        """A unique producer id, from a block that the controller handed out.

        None while no block can be had, because the config store cannot be written.
        """
        ...


class Mutator(NamedTuple):
    """Who changes the cluster, by user and client-id, and whether too much of it is refused."""

    user: str
    client_id: str
    strict: bool


class Mutations(Protocol):
    """How much one request may still change."""

    def take(self, permits: int) -> bool:
        """Counts the partitions of a topic; whether it may be made or dropped."""
        ...

    def mutated(self) -> Mutated:
        """What came of it, and how long the one who asked is to be held."""
        ...


class ControllerScope(Protocol):
    """What ``execute_at_controller`` may use.

    Methods of ``cluster`` return updates; ``publish``, called before anything else is awaited,
    broadcasts them and returns when every process has taken them over, so that any later request
    on any connection sees them.
    """

    cluster: ClusterController

    @property
    def settings(self) -> Settings: ...

    @property
    def image(self) -> Image: ...

    @property
    def quotas(self) -> ClientQuotaManager:
        """Those of users and clients that hold now."""
        ...

    def mutations(self, mutator: Mutator) -> Mutations: ...

    def unusable_keys(self, configs: Configs) -> Sequence[str]:
        """Why listeners can't show what these configs would have them show, a sentence each."""
        ...

    async def publish(self, updates: Sequence[Update]) -> None: ...


class Round(NamedTuple):
    """A further round of parts that a response still needs (a fetch that has to wait).

    With ``first_only`` the first reply ends the round and the other owners are told to stop.
    """

    parts: Mapping[Owner, Any]
    first_only: bool = False


@dataclass(frozen=True, slots=True)
class Api(Generic[Request, Part, Reply, Response]):
    """One API as the registry knows it.

    ``versions`` are advertised and, unless ``served_from`` says more, served. ``merge`` returns
    None where the protocol knows no response (Produce with acks=0). ``again`` may ask for another
    round after looking at the replies so far (newest per owner).
    """

    key: ApiKey
    versions: tuple[int, int]
    split: Callable[[Context, Request], Mapping[Owner, Part]]
    merge: Callable[[Context, Request, Mapping[Owner, Reply]], Response | None]
    execute: Callable[[WorkerScope, Part], Reply | Awaitable[Reply]] | None = None
    execute_at_controller: Callable[[ControllerScope, Part], Awaitable[Reply]] | None = None
    again: Callable[[Context, Request, Mapping[Owner, Reply]], Round | None] | None = None
    served_from: int | None = None
    """Lowest version really served where the advertised minimum is lower (Produce)."""
    may_wait: bool = False
    """Whether ``execute`` may wait for other clients or for time; such a wait is cut short when
    the broker stops. Its requests keep no memory and take no turns from others meanwhile, so it
    has no records that are read in place."""
    cluster_action: bool = False
    """Whether it is for brokers: who may ask for it is not held by quotas of request time."""
    left_out: tuple[str, ...] = ()
    """What is not done, each with its reason; the docs list them."""


ServedApi = Api[Any, Any, Any, Any]
"""Any API, where its messages don't matter."""
