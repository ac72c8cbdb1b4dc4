"""Config notifications: both versions apply, invalid ones are ignored, old ones expire."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from minibroker.broker.metadata.configs import Alteration, ConfigOperation, Op
from minibroker.broker.metadata.controller import ClusterController
from minibroker.broker.metadata.store.sqlite import MEMORY, SqliteStore
from minibroker.broker.metadata.store.tree import EventsLostError, StoreError, StoreEvent
from minibroker.broker.metadata.topics import NewTopic
from minibroker.broker.roles.metadata_publisher import NOTIFICATION_RETENTION_S, ConfigChanges
from tests.broker.roles.followed_store import FollowedStore, start_cluster


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


class ControllerWithStore(FollowedStore[SqliteStore]):
    def __init__(self, store: SqliteStore, cluster: ClusterController) -> None:
        super().__init__(store, cluster)
        self.changes = ConfigChanges(store, cluster, self.publish, trio.current_time)

    async def write_notification(self, data: bytes) -> None:
        await self.store.create(CHANGE, data, sequential=True)
        await wait_all_tasks_blocked()

    def rate(self, name: str) -> str | None:
        return self.image.configs.get(("ips", name), {}).get("connection_creation_rate")


async def new_controller() -> ControllerWithStore:
    store = SqliteStore(MEMORY)
    return ControllerWithStore(store, await start_cluster(store))


@pytest.fixture
async def controller() -> AsyncIterator[ControllerWithStore]:
    made = await new_controller()
    yield made
    await made.store.close()


async def start_watching(controller: ControllerWithStore, nursery: trio.Nursery) -> None:
    nursery.start_soon(controller.changes.run)
    await wait_all_tasks_blocked()


async def test_both_versions_are_followed(
    controller: ControllerWithStore, nursery: trio.Nursery
) -> None:
    outcome = await controller.cluster.create_topics([NewTopic("t")])
    await controller.publish(outcome.updates)
    await start_watching(controller, nursery)
    await controller.store.create("/config/ips/1.1.1.1", RATE % 5)
    await controller.write_notification(b'{"version":2,"entity_path":"ips/1.1.1.1"}')
    assert controller.rate("1.1.1.1") == "5"
    await controller.store.create(
        "/config/topics/t", b'{"version":1,"config":{"retention.ms":"6"}}'
    )
    await controller.write_notification(b'{"version":1,"entity_type":"topics","entity_name":"t"}')
    assert controller.image.topic_overrides("t") == {"retention.ms": "6"}


@pytest.mark.parametrize(
    "data", [b"", b"text", b"{", b"[1]", b'{"version":7}', b'{"version":2,"entity_path":"ips"}']
)
async def test_invalid_config_notification_does_not_block_later_one(
    controller: ControllerWithStore, nursery: trio.Nursery, data: bytes
) -> None:
    await start_watching(controller, nursery)
    await controller.store.create("/config/ips/1.1.1.1", RATE % 5)
    await controller.write_notification(data)
    await controller.write_notification(b'{"version":2,"entity_path":"users/u/clients/c"}')
    assert controller.rate("1.1.1.1") is None
    await controller.write_notification(b'{"version":2,"entity_path":"ips/1.1.1.1"}')
    assert controller.rate("1.1.1.1") == "5"


async def test_configs_stored_before_start_are_applied(
    controller: ControllerWithStore, nursery: trio.Nursery
) -> None:
    await controller.store.create("/config/ips/1.1.1.1", RATE % 5)
    await start_watching(controller, nursery)
    assert controller.rate("1.1.1.1") == "5"


async def test_own_config_changes_are_published_once(
    controller: ControllerWithStore, nursery: trio.Nursery
) -> None:
    await start_watching(controller, nursery)
    step = Alteration("brokers", "", (ConfigOperation("max.connections", Op.SET, "5"),))
    outcome = await controller.cluster.alter_configs([step])
    await controller.publish(outcome.updates)
    await wait_all_tasks_blocked()
    assert controller.image == controller.cluster.image
    assert controller.image.number == 1


async def test_old_notices_are_purged(
    controller: ControllerWithStore, nursery: trio.Nursery, mock_clock: MockClock
) -> None:
    await controller.write_notification(b"before it looked")
    await start_watching(controller, nursery)
    mock_clock.jump(NOTIFICATION_RETENTION_S / 2)
    await controller.write_notification(b"meanwhile")
    mock_clock.jump(NOTIFICATION_RETENTION_S / 2)
    await controller.write_notification(b"now")
    kept = await controller.store.children("/config/changes")
    assert kept == ["config_change_0000000001", "config_change_0000000002"]
    await controller.store.delete(f"/config/changes/{kept[0]}")
    mock_clock.jump(NOTIFICATION_RETENTION_S)
    await controller.write_notification(b"later")
    assert await controller.store.children("/config/changes") == ["config_change_0000000003"]


@pytest.mark.parametrize("error", [EventsLostError("away"), StoreError("/config", "away")])
async def test_config_watch_is_reopened_after_store_failure(
    controller: ControllerWithStore,
    nursery: trio.Nursery,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    watch = controller.store.watch
    gate = trio.Event()

    @contextmanager
    def watch_once(path: str) -> Iterator[Any]:
        monkeypatch.setattr(controller.store, "watch", watch)
        yield Failing(gate, error)

    monkeypatch.setattr(controller.store, "watch", watch_once)
    await start_watching(controller, nursery)
    await controller.store.create("/config/ips/1.1.1.1", RATE % 5)
    assert controller.rate("1.1.1.1") is None
    gate.set()
    await trio.sleep(5)
    assert controller.rate("1.1.1.1") == "5"


async def test_store_watch_ends_with_the_store() -> None:
    controller = await new_controller()
    async with trio.open_nursery() as lives:
        await start_watching(controller, lives)
        await controller.store.close()
        # Otherwise the nursery would not end.
