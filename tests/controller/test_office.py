"""A controller's office: who is deposed ends, whoever is merely out of touch does not."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from minibroker.cluster import layout
from minibroker.cluster.store.sqlite import MEMORY, SqliteStore
from minibroker.cluster.store.tree import EventsLostError, Node, UnavailableError
from minibroker.controller.office import OfficeLost, hold_office

MINE = layout.broker_path(1)


class FlakyStore(SqliteStore):
    """A store that can be away."""

    away = False

    async def get(self, path: str) -> Node:
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


@pytest.mark.parametrize("path", [layout.CONTROLLER, MINE])
async def test_whoever_is_deposed_ends(store: FlakyStore, path: str) -> None:
    with pytest.RaisesGroup(OfficeLost, flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hold_office, store, 1)
            await wait_all_tasks_blocked()
            await store.delete(path)


async def test_whoever_is_replaced_while_the_store_was_away_ends(store: FlakyStore) -> None:
    with pytest.RaisesGroup(OfficeLost, flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hold_office, store, 1)
            await wait_all_tasks_blocked()
            store.away = True
            await store.set(layout.CONTROLLER, b"somebody else")
            await wait_all_tasks_blocked()
            store.return_from_away()


async def test_what_happens_elsewhere_or_changes_nothing_does_no_harm(store: FlakyStore) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold_office, store, 1)
        await wait_all_tasks_blocked()
        store.away = True
        await store.set(MINE, b"me")
        await wait_all_tasks_blocked()
        store.return_from_away()
        await wait_all_tasks_blocked()
        await store.create(layout.broker_path(2), b"another")
        await wait_all_tasks_blocked()
        assert len(nursery.child_tasks) == 1
        nursery.cancel_scope.cancel()
