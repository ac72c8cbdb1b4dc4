"""Applies what other programs write to the config store: topics, configs, ACLs, the controller.

Owns the watches, their renewal after they are lost, the removal of expired notifications, and the
log lines about nodes that cannot be applied. It must never know what a node means, nor create the
nodes that register a broker and elect the controller. Invariant: everything that was written
without a watch is applied when the watch starts and every later event is handled, so no change
depends on a notification; a problem of a node is logged once; a controller that was replaced, or
whose node was deleted, ends instead of writing. Echoes the handlers of Kafka's ``KafkaController``
and ``ZooKeeperClient``, ``ZkNodeChangeNotificationListener`` and ``ZkConfigManager``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final

import trio

from minibroker.broker.metadata import layout
from minibroker.broker.metadata.acls import ACL_CHANGES, ACL_PATHS, decode_acl_change
from minibroker.broker.metadata.controller import ClusterController
from minibroker.broker.metadata.image import Update
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
from minibroker.broker.metrics.log import EventLog
from minibroker.broker.security.acl import PatternType

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
                reasons.append(await _watch_node(store, path, (await store.get(path)).data))
            except StoreError as error:
                reasons.append(str(error))
            nursery.cancel_scope.cancel()

        for path in (layout.CONTROLLER, layout.broker_path(broker_id)):
            nursery.start_soon(watch_node, path)
    return reasons[0]


async def _watch_node(store: Store, path: str, data: bytes) -> str:
    """Wait until a node is no longer this broker's; return why, empty if the store closed."""
    while True:
        with store.watch(path) as events:
            try:
                if reason := await _loss_reason(store, path, data):
                    return reason
                async for _ in events:
                    if reason := await _loss_reason(store, path, data):
                        return reason
                return ""
            except EventsLostError:
                continue  # The store was unavailable: the node shows what happened.


async def _loss_reason(store: Store, path: str, data: bytes) -> str:
    try:
        found = (await store.get(path)).data
    except UnavailableError:
        return ""  # Once it is available, the watch is lost and the node is read again.
    except NoNodeError:
        return f"{path} was deleted"
    return "" if found == data else f"{path} belongs to another broker now: {found!r}"
