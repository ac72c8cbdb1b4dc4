"""Changes of the metadata: what other programs write to the store, and how every process gets it.

Owns the watches of the store with their renewal, the removal of expired notifications, and the log
lines about nodes that cannot be applied; and the conversations with all roles, the order of
updates, and the numbers that roles have acknowledged. It must never know what a node or an update
means, nor create the nodes that register a broker and elect the controller. Invariants: everything
that was written without a watch is applied when the watch starts and every later event is handled,
so no change depends on a notification; a problem of a node is logged once; a controller that was
replaced, or whose node was deleted, ends instead of writing. Updates are sent one at a time, in
order, and ``publish`` returns when every connected process has applied the last one; a process that
reconnects starts with the complete image, so a dead one blocks nothing. A process that has not
applied an image of this incarnation of the controller may still serve with that of the previous
one, so nothing counts as published before. Like Kafka's controller, which waits for
``UpdateMetadata`` responses; the handlers of Kafka's ``KafkaController`` and ``ZooKeeperClient``,
``ZkNodeChangeNotificationListener`` and ``ZkConfigManager``.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Final

import trio

from minibroker.broker.metadata import layout
from minibroker.broker.metadata.acls import ACL_CHANGES, ACL_PATHS, decode_acl_change
from minibroker.broker.metadata.controller import ClusterController
from minibroker.broker.metadata.image import Image, Update
from minibroker.broker.metadata.layout import (
    CONFIG_CHANGES,
    DELETE_TOPICS,
    TOPICS,
    LayoutError,
    decode_config_change,
    topic_in,
)
from minibroker.broker.metadata.store.tree import (
    EventsLostError,
    NoNodeError,
    Store,
    StoreError,
    StoreEvent,
    StoreEventKind,
    UnavailableError,
)
from minibroker.broker.metadata.stored_topics import AppliedTopics
from minibroker.broker.metrics.definitions import (
    CLIENT_INSTANCES,
    CLIENT_METRIC,
    QUOTA_BOUND,
    QUOTA_COUNTERS_SHOWN_MAX,
    QUOTA_EXEMPT_TIME,
    QUOTA_THROTTLE,
    QUOTA_TOKENS,
)
from minibroker.broker.metrics.log import EventLog
from minibroker.broker.metrics.metrics import Series
from minibroker.broker.process.environment import role_name
from minibroker.broker.process.messages import (
    ImageApplied,
    RegisterRole,
    RoleRegistered,
)
from minibroker.broker.quotas.ledger import QuotaLedger, QuotaUsage
from minibroker.broker.quotas.manager import EXEMPT
from minibroker.broker.quotas.types import BY_NAME, QuotaTable, bound_of
from minibroker.broker.security.acl import PatternType
from minibroker.broker.telemetry import SERIES_MAX, ClientInstance, ClientInstances, MetricPoint
from minibroker.runtime.rpc import Channel, PeerFailed, PeerLost, RpcConnection


class Publisher:
    """Numbers published by one controller, and what each subscriber has acknowledged."""

    def __init__(self, number: int = 0) -> None:
        """Begin after update ``number``, with no subscriber."""
        self.newest = number
        """The number of the newest update that was published."""
        self.acknowledged: dict[str, int] = {}
        """The number of the newest update that each subscriber has applied."""

    @property
    def complete(self) -> int:
        """The number up to which every subscriber has applied all updates. Never decreases."""
        return min(self.acknowledged.values(), default=self.newest)

    def join(self, subscriber: str) -> None:
        """Add a subscriber that gets the newest image, which counts as acknowledged."""
        self.acknowledged[subscriber] = self.newest

    def leave(self, subscriber: str) -> None:
        """Remove a subscriber, if it exists; nothing waits for it any more."""
        self.acknowledged.pop(subscriber, None)

    def publish(self, update: Update) -> tuple[str, ...]:
        """Count an update and return its recipients; updates must come in order."""
        if update.number != self.newest + 1:
            raise ValueError(f"update {update.number} cannot follow update {self.newest}")
        self.newest = update.number
        return tuple(self.acknowledged)

    def acknowledge(self, subscriber: str, number: int) -> None:
        """Note that a subscriber has the image of ``number`` or a later one."""
        known = self.acknowledged.get(subscriber)
        if known is None:
            return  # It left before its response arrived.
        if number > self.newest:
            raise ValueError(f"{subscriber} acknowledged {number}, the newest is {self.newest}")
        self.acknowledged[subscriber] = max(known, number)


RequestHandlerFunction = Callable[[Any], Any]


class MetadataPublisher:
    """The roles that are connected to the controller."""

    def __init__(
        self,
        image: Callable[[], Image],
        answer: RequestHandlerFunction,
        number: int,
        expected: Iterable[str] = (),
    ) -> None:
        """``answer`` handles requests that have no handler; ``number`` is that of the first image.

        ``expected`` are the names of all roles that subscribe.
        """
        self._image = image
        self._answer = answer
        self._publisher = Publisher(number)
        self._connections: dict[str, RpcConnection] = {}
        # Bounded by the requests that processors may have in flight, each with few updates.
        self._pending: deque[Update] = deque()
        self._more = trio.Event()
        self._completed = trio.Event()
        self._not_current = set(expected)
        """Roles that may serve with an image of another incarnation, or that missed an update."""
        self.further: list[Callable[[str], object | None]] = []
        """Return a request that a role must handle when it registers, or None; by the role."""
        self.handlers: dict[type, RequestHandlerFunction] = {}
        """Handle requests of roles, by their types."""
        self.observers: list[Callable[[Image], object]] = []
        """Are called with the new image before an update of it is sent."""
        self.before_sending: Callable[[Update], Awaitable[None]] | None = None
        """Awaited before an update is sent; the later ones wait behind it."""
        self._log = EventLog("controller")

    @property
    def complete(self) -> int:
        """Number of the last update that every role has applied."""
        return self._publisher.complete

    def names(self) -> list[str]:
        """Names of the connected roles, sorted."""
        return sorted(self._connections)

    async def serve_role(self, channel: Channel) -> None:
        """Serve the conversation with one role until it ends."""
        names: list[str] = []

        def answer(request: Any) -> Any:
            if isinstance(request, RegisterRole):
                name = role_name(request.role, request.number)
                names.append(name)
                return self._register(name, rpc, request.role)
            if isinstance(request, ImageApplied):
                self._not_current.difference_update(names)
                self._wake_publishers()
                return None
            return self.handlers.get(type(request), self._answer)(request)

        rpc = RpcConnection(channel, answer)
        try:
            await rpc.run()
        finally:
            for name in names:
                if self._connections.get(name) is rpc:
                    del self._connections[name]
                    self._publisher.leave(name)
                    self._wake_publishers()

    def _register(self, name: str, rpc: RpcConnection, role: str) -> RoleRegistered:
        former = self._connections.get(name)
        if former is not None:
            former.close()
        self._connections[name] = rpc
        self._publisher.join(name)
        further = [request for ask in self.further if (request := ask(role)) is not None]
        return RoleRegistered(self._image(), tuple(further))

    async def request(self, name: str, request: object) -> Any:
        """The answer of one role. Raises ``PeerLost``, also if it is not connected."""
        rpc = self._connections.get(name)
        if rpc is None:
            raise PeerLost(f"{name} is not connected")
        return await rpc.request(request)

    async def request_all(self, request: object, names: Sequence[str] = ()) -> dict[str, Any]:
        """The answers of all roles, or of ``names``; roles that disconnect are omitted."""
        answers: dict[str, Any] = {}

        async def request_one(name: str) -> None:
            try:
                answers[name] = await self.request(name, request)
            except PeerLost:
                return
            except PeerFailed as failed:
                self._log.error("a process could not answer", process=name, reason=failed)

        async with trio.open_nursery() as nursery:
            for name in names or self.names():
                nursery.start_soon(request_one, name)
        return {name: answers[name] for name in sorted(answers)}

    async def request_all_within(
        self, request: object, bound: Callable[[], Awaitable[None]]
    ) -> tuple[dict[str, Any], list[str]]:
        """The answers that arrive before ``bound`` returns, and the names of those missing."""
        answers: dict[str, Any] = {}
        names = self.names()
        async with trio.open_nursery() as nursery:

            async def cancel_at_bound() -> None:
                await bound()
                nursery.cancel_scope.cancel()

            async def request_each() -> None:
                async with trio.open_nursery() as requesting:
                    for name in names:
                        requesting.start_soon(request_one, name)
                nursery.cancel_scope.cancel()

            async def request_one(name: str) -> None:
                answers.update(await self.request_all(request, [name]))

            nursery.start_soon(cancel_at_bound)
            nursery.start_soon(request_each)
        missing = [name for name in names if name not in answers and name in self._connections]
        return {name: answers[name] for name in sorted(answers)}, missing

    async def publish(self, updates: Sequence[Update]) -> None:
        """Send updates; returns when every role has applied them."""
        if not updates:
            return
        for observe in self.observers:
            observe(self._image())
        self._pending.extend(updates)
        self._more.set()
        while self._not_current or self._publisher.complete < updates[-1].number:
            await self._completed.wait()

    async def run(self) -> None:
        """Send updates one after the other, until cancelled."""
        while True:
            while self._pending:
                update = self._pending.popleft()
                if self.before_sending is not None:
                    await self.before_sending(update)
                await self._send(update)
            self._more = trio.Event()
            await self._more.wait()

    async def _send(self, update: Update) -> None:
        async with trio.open_nursery() as nursery:
            for name in self._publisher.publish(update):
                nursery.start_soon(self._send_update, name, update)
        self._wake_publishers()

    async def _send_update(self, name: str, update: Update) -> None:
        rpc = self._connections.get(name)
        if rpc is None:
            return  # It has just disconnected; ``serve_role`` has removed it.
        try:
            await rpc.request(update)
        except PeerLost:
            return  # As above, or ``serve_role`` soon will.
        except PeerFailed as failed:
            # It may have applied a part of it: let it reconnect and get the complete image.
            self._log.error("an update was not applied", process=name, reason=failed)
            self._not_current.add(name)
            rpc.close()
            return
        if self._connections.get(name) is rpc:
            self._publisher.acknowledge(name, update.number)

    def _wake_publishers(self) -> None:
        self._completed.set()
        self._completed = trio.Event()


PAUSE_S: Final = 1.0
"""Pause before an unavailable store is watched again."""

Pause = Callable[[float], Awaitable[None]]
"""Waits for a number of seconds."""


async def follow(
    store: Store,
    path: str,
    apply_all: Callable[[], Awaitable[None]],
    on_event: Callable[[StoreEvent], Awaitable[None]],
    *,
    pause: Pause,
    log: EventLog,
) -> None:
    """Call ``apply_all`` and then ``on_event`` for each event, until the store is closed.

    Starts again when events were lost or the store is unavailable. The same error is logged once.
    """
    logged = ""
    while True:
        try:
            with store.watch(path) as events:
                await apply_all()
                logged = ""
                async for event in events:
                    await on_event(event)
                return
        except EventsLostError:
            continue
        except StoreError as error:
            if str(error) != logged:
                log.warning("the config store could not be watched", path=path, reason=error)
            logged = str(error)
            await pause(PAUSE_S)


BATCH_MAX: Final = 50
"""Topics that are applied in one batch when a watch starts."""

Publish = Callable[[Sequence[Update]], Awaitable[None]]


class TopicChanges:
    """Applies changed topics for one controller."""

    def __init__(
        self,
        store: Store,
        cluster: ClusterController,
        publish: Publish,
        pause: Pause = trio.sleep,
        *,
        writes_leaders: bool = False,
    ) -> None:
        """With ``writes_leaders``, partition leaders are stored for other programs."""
        self._store = store
        self._cluster = cluster
        self._publish = publish
        self._pause = pause
        self._write_leaders = writes_leaders
        self._log = EventLog("controller")
        self._logged: dict[str, str] = {}
        """The last logged problem of each topic, until it is solved."""

    async def run(self) -> None:
        """Apply changes until the store is closed or the task is cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow, TOPICS, self._apply_all, self._on_topic_event)
            nursery.start_soon(
                self._follow, DELETE_TOPICS, self._delete_all, self._on_deletion_event
            )

    async def _follow(
        self,
        path: str,
        apply_all: Callable[[], Awaitable[None]],
        on_event: Callable[[StoreEvent], Awaitable[None]],
    ) -> None:
        await follow(self._store, path, apply_all, on_event, pause=self._pause, log=self._log)

    async def _apply_all(self) -> None:
        stored = await self._store.children(TOPICS)
        names = list(dict.fromkeys([*stored, *self._cluster.image.topics]))
        # In batches, because other changes wait for each call.
        for first in range(0, len(names), BATCH_MAX):
            await self._apply(names[first : first + BATCH_MAX])

    async def _on_topic_event(self, event: StoreEvent) -> None:
        name = topic_in(event.path)
        if name is not None:  # Otherwise it is a node below, where Kafka stores leaders.
            await self._apply([name])

    async def _apply(self, names: Collection[str]) -> None:
        applied = await self._cluster.apply_topics(names)
        await self._publish_topics(applied)
        if self._write_leaders:
            await self._cluster.write_leaders(applied.problems.keys())

    async def _delete_all(self) -> None:
        for name in await self._store.children(DELETE_TOPICS):
            await self._delete(name)

    async def _on_deletion_event(self, event: StoreEvent) -> None:
        if event.kind is StoreEventKind.CREATED and event.path != DELETE_TOPICS:
            await self._delete(event.path.rpartition("/")[2])

    async def _delete(self, name: str) -> None:
        await self._publish_topics(await self._cluster.delete_marked_topic(name))

    async def _publish_topics(self, applied: AppliedTopics) -> None:
        for name, problem in applied.problems.items():
            if problem and self._logged.get(name) != problem:
                self._log.warning("a topic in the config store cannot be applied", reason=problem)
            if problem:
                self._logged[name] = problem
            else:
                self._logged.pop(name, None)
        await self._publish(applied.updates)


NOTIFICATION_RETENTION_S: Final = 15 * 60
"""How long a notification is retained, for brokers that are disconnected."""


class ConfigChanges:
    """The notifications of one controller; ``now`` returns seconds of the broker's clock."""

    root = CONFIG_CHANGES
    """The parent node of the notifications."""

    def __init__(
        self,
        store: Store,
        cluster: ClusterController,
        publish: Publish,
        now: Callable[[], float],
        pause: Pause = trio.sleep,
    ) -> None:
        self._store = store
        self._cluster = cluster
        self._publish = publish
        self._now = now
        self._pause = pause
        self._seen: dict[str, float] = {}
        """When each existing notification was first seen, oldest first."""
        self._log = EventLog("controller")

    async def run(self) -> None:
        """Apply changes until the store is closed or the task is cancelled."""
        await follow(
            self._store,
            self.root,
            self._apply_all,
            self._on_event,
            pause=self._pause,
            log=self._log,
        )

    async def _apply_all(self) -> None:
        await self._publish(await self._read_all())
        found = await self._store.children(self.root)
        now = self._now()
        # Their age is unknown, so it counts from when they were first seen.
        known = {path: self._seen.get(path, now) for path in map(self._path, found)}
        self._seen = dict(sorted(known.items(), key=lambda entry: entry[1]))
        await self._purge()

    async def _on_event(self, event: StoreEvent) -> None:
        if event.kind is StoreEventKind.CREATED and event.path != self.root:
            self._seen.setdefault(event.path, self._now())
            await self._apply(event.path)
            await self._purge()
        elif event.kind is StoreEventKind.DELETED:
            self._seen.pop(event.path, None)

    async def _apply(self, path: str) -> None:
        try:
            updates = await self._read_change(path, (await self._store.get(path)).data)
        except NoNodeError:
            return  # Removed already; its change is applied, or will be when the watch starts.
        except LayoutError as error:
            self._log.warning("a notification in the config store is ignored", reason=error)
            return
        await self._publish(updates)

    async def _read_all(self) -> list[Update]:
        """Read everything that is stored into the image; return the updates."""
        return await self._cluster.apply_all_configs()

    async def _read_change(self, path: str, data: bytes) -> list[Update]:
        """Read the change that a notification names into the image; return the updates.

        Raises `LayoutError`.
        """
        return await self._cluster.apply_config(*decode_config_change(path, data))

    async def _purge(self) -> None:
        while self._seen:
            path, seen = next(iter(self._seen.items()))
            if self._now() - seen < NOTIFICATION_RETENTION_S:
                return
            del self._seen[path]
            try:
                await self._store.delete(path)
            except NoNodeError:
                continue  # Another broker has removed it.

    def _path(self, name: str) -> str:
        return f"{self.root}/{name}"


class AclChanges(ConfigChanges):
    """Notifications of ACLs with literal patterns."""

    root = ACL_CHANGES[PatternType.LITERAL]

    async def _read_all(self) -> list[Update]:
        for path in ACL_PATHS:
            await self._store.ensure(path)
        try:
            return await self._cluster.apply_all_acls()
        except LayoutError as error:
            self._log.warning("ACLs cannot be read; the others stay in force", reason=error)
            return []

    async def _read_change(self, path: str, data: bytes) -> list[Update]:
        return await self._cluster.apply_acls(decode_acl_change(path, data))


class PrefixedAclChanges(AclChanges):
    """Notifications of ACLs with prefixed patterns."""

    root = ACL_CHANGES[PatternType.PREFIXED]


async def watch_leadership(store: Store, broker_id: int) -> str:
    """Wait until this controller is no longer active; return why, empty if the store closed."""
    reasons: list[str] = []
    async with trio.open_nursery() as nursery:

        async def watch_node(path: str) -> None:
            try:
                registered = layout.registration_time(path, (await store.get(path)).data)
                reasons.append(await _watch_node(store, path, registered))
            except (StoreError, layout.LayoutError) as error:
                reasons.append(str(error))
            nursery.cancel_scope.cancel()

        for path in (layout.CONTROLLER, layout.broker_path(broker_id)):
            nursery.start_soon(watch_node, path)
    return reasons[0]


async def _watch_node(store: Store, path: str, registered: str) -> str:
    """Wait until a node is no longer this broker's; return why, empty if the store closed.

    ``registered`` is the time in the node: the broker itself may change the addresses beside it.
    """
    while True:
        with store.watch(path) as events:
            try:
                if reason := await _loss_reason(store, path, registered):
                    return reason
                async for _ in events:
                    if reason := await _loss_reason(store, path, registered):
                        return reason
                return ""
            except EventsLostError:
                continue  # The store was unavailable: the node shows what happened.


async def _loss_reason(store: Store, path: str, registered: str) -> str:
    try:
        found = (await store.get(path)).data
    except UnavailableError:
        return ""  # Once it is available, the watch is lost and the node is read again.
    except NoNodeError:
        return f"{path} was deleted"
    try:
        is_own = layout.registration_time(path, found) == registered
    except layout.LayoutError:
        is_own = False
    return "" if is_own else f"{path} belongs to another broker now: {found!r}"


# ------- Gauges of the controller: rates and limits of quotas, and the metrics of clients (KIP-714)
# Owns which figure becomes which metric, its labels, and how many are shown. It must never record
# or change anything. Invariant: at most ``QUOTA_COUNTERS_SHOWN_MAX`` counters are shown, and none
# an hour after its last record, so label sets disappear with their users; at most ``SERIES_MAX``
# series of clients are shown, those that were seen last, and none of a client that is gone. Kafka's
# ``ClientQuotaManager`` has the same metrics.


LABEL_MAX: Final = 200
"""Characters of a name that a label has."""


def read_gauges(ledger: QuotaLedger, table: QuotaTable, now_ms: int) -> dict[Series, float]:
    """The gauges of all counters that are shown."""
    gauges: dict[Series, float] = {}
    for entry in ledger.entries(now_ms, QUOTA_COUNTERS_SHOWN_MAX):
        gauges.update(_gauges(entry, table))
    return gauges


def _gauges(entry: QuotaUsage, table: QuotaTable) -> Iterator[tuple[Series, float]]:
    if entry.kind == EXEMPT:
        yield (QUOTA_EXEMPT_TIME.name, ()), entry.usage.rate
        return
    kind = BY_NAME[entry.kind]
    labels = (entry.kind, entry.tags.user[:LABEL_MAX], entry.tags.client[:LABEL_MAX])
    if entry.used:
        yield (kind.row.metric, labels), entry.usage.rate
        bound = bound_of(table, kind, entry.tags)
        if bound is not None:
            yield (QUOTA_BOUND.name, labels), bound.value
        if entry.tokens < math.inf:
            yield (QUOTA_TOKENS.name, labels), entry.tokens
    if not math.isnan(entry.throttle_ms):
        yield (QUOTA_THROTTLE.name, labels), entry.throttle_ms


def client_metric_gauges(instances: ClientInstances, now_ms: int) -> dict[Series, float]:
    """The number of instances, and the newest points of those seen last."""
    known = [one for one in instances.all() if not one.is_expired(now_ms)]
    gauges: dict[Series, float] = {(CLIENT_INSTANCES.name, ()): len(known)} if known else {}
    for instance in reversed(known):
        for point in instance.points:
            if len(gauges) > SERIES_MAX:
                return gauges
            gauges[CLIENT_METRIC.name, _labels(instance, point)] = point.value
    return gauges


def _labels(instance: ClientInstance, point: MetricPoint) -> tuple[str, ...]:
    texts = (
        instance.client.client_id,
        instance.client.client_instance_id,
        point.name,
        attributes_text(point),
    )
    return tuple(text[:LABEL_MAX] for text in texts)


def attributes_text(point: MetricPoint) -> str:
    """The attributes of a point as one text."""
    return ",".join(f"{key}={value}" for key, value in point.attributes)
