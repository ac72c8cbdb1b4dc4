"""Applies configs and ACLs that other programs write to the config store.

Owns the watches on ``/config/changes`` and on the notifications of ACLs, and the removal of expired
notifications. It must never know what a config or an ACL means. Invariant: everything that was
written without a watch is applied when the watch starts, so no change depends on a notification.
After Kafka's ``ZkNodeChangeNotificationListener``, ``ZkConfigManager`` and ``ZkAclChangeStore``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import trio

from minibroker.broker.controller.store_watch import Pause, follow
from minibroker.broker.metadata.controller import ClusterController
from minibroker.broker.metadata.image import Update
from minibroker.broker.metadata.layout import CONFIG_CHANGES, LayoutError, decode_config_change
from minibroker.broker.metadata.store.tree import NoNodeError, Store, StoreEvent, StoreEventKind
from minibroker.broker.metadata.stored_acls import CHANGES, PERSISTENT_PATHS, decode_change
from minibroker.broker.metrics.log import EventLog
from minibroker.broker.security.acl import PatternType

NOTIFICATION_RETENTION_S: Final = 15 * 60
"""How long a notification is retained, for brokers that are disconnected."""

Publish = Callable[[Sequence[Update]], Awaitable[None]]


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

    root = CHANGES[PatternType.LITERAL]

    async def _read_all(self) -> list[Update]:
        for path in PERSISTENT_PATHS:
            await self._store.ensure(path)
        try:
            return await self._cluster.apply_all_acls()
        except LayoutError as error:
            self._log.warning("ACLs cannot be read; the others stay in force", reason=error)
            return []

    async def _read_change(self, path: str, data: bytes) -> list[Update]:
        return await self._cluster.apply_acls(decode_change(path, data))


class PrefixedAclChanges(AclChanges):
    """Notifications of ACLs with prefixed patterns."""

    root = CHANGES[PatternType.PREFIXED]
