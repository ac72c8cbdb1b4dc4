"""Config notifications: both versions apply, invalid ones are ignored, old ones expire."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from minibroker.cluster.configs import Alteration, ConfigOperation, Op
from minibroker.cluster.controller import ClusterController
from minibroker.cluster.image import Image, Update, apply_update
from minibroker.cluster.store.sqlite import MEMORY, SqliteStore
from minibroker.cluster.store.tree import EventsLostError, StoreError, StoreEvent
from minibroker.cluster.topics import NewTopic
from minibroker.config import Settings
from minibroker.controller.config_changes import NOTIFICATION_RETENTION_S, ConfigChanges


class Failing(AsyncIterator[StoreEvent]):
    """A watch whose store becomes unavailable when the gate opens."""

    def __init__(self, gate: trio.Event, error: Exception) -> None:
        self._gate = gate
        self._error = error

    async def __anext__(self) -> StoreEvent:
        await self._gate.wait()
        raise self._error


CHANGE = "/config/changes/config_change_"
RATE = b'{"version":1,"config":{"connection_creation_rate":"%d"}}'


class Desk:
    """A controller with its store, and the image of a subscriber."""

    def __init__(self, store: SqliteStore, cluster: ClusterController) -> None:
        self.store = store
        self.cluster = cluster
        self.image: Image = cluster.image
        self.changes = ConfigChanges(store, cluster, self.publish, trio.current_time)

    async def publish(self, updates: Sequence[Update]) -> None:
        for update in updates:
            self.image = apply_update(self.image, update)

    async def write_notification(self, data: bytes) -> None:
        await self.store.create(CHANGE, data, sequential=True)
        await wait_all_tasks_blocked()

    def rate(self, name: str) -> str | None:
        return self.image.configs.get(("ips", name), {}).get("connection_creation_rate")


async def made_desk() -> Desk:
    store = SqliteStore(MEMORY)
    cluster = await ClusterController.start(
        store,
        Settings.from_sources(),
        endpoints={"PLAINTEXT": ("h", 1)},
        random=Random(1),
        wall_ms=0,
    )
    return Desk(store, cluster)


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    made = await made_desk()
    yield made
    await made.store.close()


async def begin(desk: Desk, nursery: trio.Nursery) -> None:
    nursery.start_soon(desk.changes.run)
    await wait_all_tasks_blocked()


async def test_both_versions_are_followed(desk: Desk, nursery: trio.Nursery) -> None:
    outcome = await desk.cluster.create_topics([NewTopic("t")])
    await desk.publish(outcome.updates)
    await begin(desk, nursery)
    await desk.store.create("/config/ips/1.1.1.1", RATE % 5)
    await desk.write_notification(b'{"version":2,"entity_path":"ips/1.1.1.1"}')
    assert desk.rate("1.1.1.1") == "5"
    await desk.store.create("/config/topics/t", b'{"version":1,"config":{"retention.ms":"6"}}')
    await desk.write_notification(b'{"version":1,"entity_type":"topics","entity_name":"t"}')
    assert desk.image.topic_overrides("t") == {"retention.ms": "6"}


@pytest.mark.parametrize(
    "data", [b"", b"text", b"{", b"[1]", b'{"version":7}', b'{"version":2,"entity_path":"ips"}']
)
async def test_invalid_config_notification_does_not_block_later_one(
    desk: Desk, nursery: trio.Nursery, data: bytes
) -> None:
    await begin(desk, nursery)
    await desk.store.create("/config/ips/1.1.1.1", RATE % 5)
    await desk.write_notification(data)
    await desk.write_notification(b'{"version":2,"entity_path":"users/u/clients/c"}')
    assert desk.rate("1.1.1.1") is None
    await desk.write_notification(b'{"version":2,"entity_path":"ips/1.1.1.1"}')
    assert desk.rate("1.1.1.1") == "5"


async def test_configs_stored_before_start_are_applied(desk: Desk, nursery: trio.Nursery) -> None:
    await desk.store.create("/config/ips/1.1.1.1", RATE % 5)
    await begin(desk, nursery)
    assert desk.rate("1.1.1.1") == "5"


async def test_own_config_changes_are_published_once(desk: Desk, nursery: trio.Nursery) -> None:
    await begin(desk, nursery)
    step = Alteration("brokers", "", (ConfigOperation("max.connections", Op.SET, "5"),))
    outcome = await desk.cluster.alter_configs([step])
    await desk.publish(outcome.updates)
    await wait_all_tasks_blocked()
    assert desk.image == desk.cluster.image
    assert desk.image.number == 1


async def test_old_notices_are_purged(
    desk: Desk, nursery: trio.Nursery, mock_clock: MockClock
) -> None:
    await desk.write_notification(b"before it looked")
    await begin(desk, nursery)
    mock_clock.jump(NOTIFICATION_RETENTION_S / 2)
    await desk.write_notification(b"meanwhile")
    mock_clock.jump(NOTIFICATION_RETENTION_S / 2)
    await desk.write_notification(b"now")
    kept = await desk.store.children("/config/changes")
    assert kept == ["config_change_0000000001", "config_change_0000000002"]
    await desk.store.delete(f"/config/changes/{kept[0]}")
    mock_clock.jump(NOTIFICATION_RETENTION_S)
    await desk.write_notification(b"later")
    assert await desk.store.children("/config/changes") == ["config_change_0000000003"]


@pytest.mark.parametrize("error", [EventsLostError("away"), StoreError("/config", "away")])
async def test_config_watch_is_reopened_after_store_failure(
    desk: Desk,
    nursery: trio.Nursery,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    watch = desk.store.watch
    gate = trio.Event()

    @contextmanager
    def watch_once(path: str) -> Iterator[Any]:
        monkeypatch.setattr(desk.store, "watch", watch)
        yield Failing(gate, error)

    monkeypatch.setattr(desk.store, "watch", watch_once)
    await begin(desk, nursery)
    await desk.store.create("/config/ips/1.1.1.1", RATE % 5)
    assert desk.rate("1.1.1.1") is None
    gate.set()
    await trio.sleep(5)
    assert desk.rate("1.1.1.1") == "5"


async def test_store_watch_ends_with_the_store() -> None:
    desk = await made_desk()
    async with trio.open_nursery() as lives:
        await begin(desk, lives)
        await desk.store.close()
        # Or else the nursery would wait for ever.
