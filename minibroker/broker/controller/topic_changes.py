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

from minibroker.broker.controller.store_watch import Pause, follow
from minibroker.broker.metadata.controller import ClusterController
from minibroker.broker.metadata.foreign_topics import AppliedTopics
from minibroker.broker.metadata.image import Update
from minibroker.broker.metadata.layout import DELETE_TOPICS, TOPICS, topic_in
from minibroker.broker.metadata.store.tree import Store, StoreEvent, StoreEventKind
from minibroker.broker.metrics.log import EventLog

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
