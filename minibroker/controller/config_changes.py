"""Follows what others write into the config store: notices of changed configs, old and new ones.

Owns the watch on ``/config/changes`` and how long a notice stays there; what a config means is
`ClusterController`'s to know.  The invariant: whatever was written while nobody looked is taken
over when the watch begins, so nothing depends on a notice having been seen.  Echoes Kafka's
``ZkNodeChangeNotificationListener`` and ``ZkConfigManager``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import trio

from minibroker.cluster.controller import ClusterController
from minibroker.cluster.image import Update
from minibroker.cluster.layout import CONFIG_CHANGES, LayoutError, decode_config_change
from minibroker.cluster.store.tree import Event, EventKind, NoNodeError, Store
from minibroker.controller.following import Pause, follow
from minibroker.observability.log import Log

KEPT_S: Final = 15 * 60
"""How long a notice stays, for brokers that were away for a moment."""

Publish = Callable[[Sequence[Update]], Awaitable[None]]


class ConfigChanges:
    """One controller's eye on the notices; ``now`` gives seconds of the broker's clock."""

    root = CONFIG_CHANGES
    """The node below which the notices are."""

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
        """When each notice that is there was first seen, oldest first."""
        self._log = Log("controller")

    async def run(self) -> None:
        """Follows until the store is closed or the task cancelled."""
        await follow(
            self._store,
            self.root,
            self._begin,
            self._heard,
            pause=self._pause,
            log=self._log,
        )

    async def _begin(self) -> None:
        await self._publish(await self._whole())
        found = await self._store.children(self.root)
        now = self._now()
        # Nobody says how old they are, so they are as old as our knowledge of them.
        known = {path: self._seen.get(path, now) for path in map(self._path, found)}
        self._seen = dict(sorted(known.items(), key=lambda entry: entry[1]))
        await self._purge()

    async def _heard(self, event: Event) -> None:
        if event.kind is EventKind.CREATED and event.path != self.root:
            self._seen.setdefault(event.path, self._now())
            await self._take_over(event.path)
            await self._purge()
        elif event.kind is EventKind.DELETED:
            self._seen.pop(event.path, None)

    async def _take_over(self, path: str) -> None:
        try:
            updates = await self._told_of(path, (await self._store.get(path)).data)
        except NoNodeError:
            return  # Purged already; what it told of was read by somebody or will be at our start.
        except LayoutError as error:
            self._log.warning("a notice in the config store is passed over", why=error)
            return
        await self._publish(updates)

    async def _whole(self) -> list[Update]:
        """What is kept, whoever wrote it."""
        return await self._cluster.take_over_all()

    async def _told_of(self, path: str, data: bytes) -> list[Update]:
        """What a notice tells of. Raises `LayoutError`."""
        return await self._cluster.take_over(*decode_config_change(path, data))

    async def _purge(self) -> None:
        while self._seen:
            path, seen = next(iter(self._seen.items()))
            if self._now() - seen < KEPT_S:
                return
            del self._seen[path]
            try:
                await self._store.delete(path)
            except NoNodeError:
                continue  # Somebody else was faster.

    def _path(self, name: str) -> str:
        return f"{self.root}/{name}"
