"""Applies topics that other programs create, change and delete in the config store.

Owns the watches of ``/brokers/topics`` and ``/admin/delete_topics``, and the log lines about nodes
that cannot be applied. It must never know what a node means. Invariant: everything that was written
without a watch is applied when the watch starts, and a problem of a node is logged once. Echoes the
handlers of Kafka's ``KafkaController`` for changes and deletions of topics.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final

import trio

from minibroker.cluster.controller import ClusterController
from minibroker.cluster.foreign_topics import TopicsTaken
from minibroker.cluster.image import Update
from minibroker.cluster.layout import DELETE_TOPICS, TOPICS, topic_in
from minibroker.cluster.store.tree import Store, StoreEvent, StoreEventKind
from minibroker.controller.store_watch import Pause, follow
from minibroker.observability.log import EventLog

LOOKED_AT_ONCE: Final = 50
"""Topics that are applied together when a watch starts."""

Publish = Callable[[Sequence[Update]], Awaitable[None]]


class TopicChanges:
    """The topics in the store of one controller."""

    def __init__(
        self,
        store: Store,
        cluster: ClusterController,
        publish: Publish,
        pause: Pause = trio.sleep,
        *,
        tells_leaders: bool = False,
    ) -> None:
        """With ``tells_leaders`` the leader of each partition is written to the store, for other
        programs.
        """
        self._store = store
        self._cluster = cluster
        self._publish = publish
        self._pause = pause
        self._tells_leaders = tells_leaders
        self._log = EventLog("controller")
        self._said: dict[str, str] = {}
        """The last problem of each topic's node, while it persists."""

    async def run(self) -> None:
        """Apply changes until the store is closed or the task is cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow, TOPICS, self._begin, self._heard)
            nursery.start_soon(self._follow, DELETE_TOPICS, self._begin_deleting, self._asked)

    async def _follow(
        self,
        path: str,
        begin: Callable[[], Awaitable[None]],
        heard: Callable[[StoreEvent], Awaitable[None]],
    ) -> None:
        await follow(self._store, path, begin, heard, pause=self._pause, log=self._log)

    async def _begin(self) -> None:
        kept = await self._store.children(TOPICS)
        names = list(dict.fromkeys([*kept, *self._cluster.image.topics]))
        # In parts, because other changes wait meanwhile.
        for first in range(0, len(names), LOOKED_AT_ONCE):
            await self._take_over(names[first : first + LOOKED_AT_ONCE])

    async def _heard(self, event: StoreEvent) -> None:
        name = topic_in(event.path)
        if name is not None:  # Otherwise it is a node below, where Kafka stores leaders.
            await self._take_over([name])

    async def _take_over(self, names: Collection[str]) -> None:
        taken = await self._cluster.take_over_topics(names)
        await self._taken(taken)
        if self._tells_leaders:
            await self._cluster.tell_leaders(taken.problems.keys())

    async def _begin_deleting(self) -> None:
        for name in await self._store.children(DELETE_TOPICS):
            await self._delete(name)

    async def _asked(self, event: StoreEvent) -> None:
        if event.kind is StoreEventKind.CREATED and event.path != DELETE_TOPICS:
            await self._delete(event.path.rpartition("/")[2])

    async def _delete(self, name: str) -> None:
        await self._taken(await self._cluster.carry_out_deletion(name))

    async def _taken(self, taken: TopicsTaken) -> None:
        for name, problem in taken.problems.items():
            if problem and self._said.get(name) != problem:
                self._log.warning("a topic in the config store is not followed", why=problem)
            if problem:
                self._said[name] = problem
            else:
                self._said.pop(name, None)
        await self._publish(taken.updates)
