"""Leadership: a replaced controller ends, a disconnected one does not."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from minibroker.broker.controller.leadership import watch_leadership
from minibroker.broker.metadata import layout
from minibroker.broker.metadata.store.sqlite import MEMORY, SqliteStore
from minibroker.broker.metadata.store.tree import (
    EventsLostError,
    StoreError,
    StoreNode,
    UnavailableError,
)

MINE = layout.broker_path(1)


class FlakyStore(SqliteStore):
    """A store that can be away."""

    away = False

    async def get(self, path: str) -> StoreNode:
        if self.away:
            raise UnavailableError(path, "away")
        return await super().get(path)

    def return_from_away(self) -> None:
        self.away = False
        self._watches.end(EventsLostError("was away"))


@pytest.fixture
async def store() -> AsyncIterator[FlakyStore]:
    made = FlakyStore(MEMORY)
    await made.ensure(layout.BROKERS)
    for path in (layout.CONTROLLER, MINE):
        await made.create(path, b"me", ephemeral=True)
    yield made
    await made.close()


class Holder:
    """A controller that holds its office until ``reason`` says why not."""

    def __init__(self, store: FlakyStore, nursery: trio.Nursery) -> None:
        self.reason: str | None = None
        self.ended = trio.Event()
        nursery.start_soon(self._hold, store)

    async def _hold(self, store: FlakyStore) -> None:
        self.reason = await watch_leadership(store, 1)
        self.ended.set()


@pytest.mark.parametrize("path", [layout.CONTROLLER, MINE])
async def test_controller_resigns_after_node_deletion(
    store: FlakyStore, nursery: trio.Nursery, path: str
) -> None:
    holder = Holder(store, nursery)
    await wait_all_tasks_blocked()
    await store.delete(path)
    await holder.ended.wait()
    assert holder.reason == f"{path} was deleted"


async def test_controller_resigns_if_replaced_during_store_outage(
    store: FlakyStore, nursery: trio.Nursery
) -> None:
    holder = Holder(store, nursery)
    await wait_all_tasks_blocked()
    store.away = True
    await store.set(layout.CONTROLLER, b"another")
    await wait_all_tasks_blocked()
    assert holder.reason is None
    store.return_from_away()
    await holder.ended.wait()
    assert holder.reason == "/controller belongs to another broker now: b'another'"


async def test_store_that_has_failed_ends_the_office(
    store: FlakyStore, nursery: trio.Nursery
) -> None:
    holder = Holder(store, nursery)
    await wait_all_tasks_blocked()
    store._watches.end(StoreError(MINE, "taken"))
    await holder.ended.wait()
    assert holder.reason == f"{MINE}: taken"


async def test_unrelated_node_changes_keep_controller(
    store: FlakyStore, nursery: trio.Nursery
) -> None:
    holder = Holder(store, nursery)
    await wait_all_tasks_blocked()
    store.away = True
    await store.set(MINE, b"me")
    await wait_all_tasks_blocked()
    store.return_from_away()
    await wait_all_tasks_blocked()
    await store.create(layout.broker_path(2), b"another")
    await wait_all_tasks_blocked()
    assert holder.reason is None
    store._watches.end()  # as closing does
    await holder.ended.wait()
    assert holder.reason == ""
