"""Configs in a store: no node for nothing, and a notice for what changed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from minibroker.broker.metadata.configs import (
    config_steps,
    config_steps_with_notifications,
    load_config,
    stored_names,
)
from minibroker.broker.metadata.image import ConfigChanged
from minibroker.broker.metadata.layout import PERSISTENT_PATHS
from minibroker.broker.metadata.store.sqlite import MEMORY, SqliteStore
from minibroker.broker.metadata.store.tree import Create, Delete, NoNodeError, Set, Store

RATE = {"connection_creation_rate": "5"}


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    made = SqliteStore(MEMORY)
    for path in PERSISTENT_PATHS:
        await made.ensure(path)
    yield made
    await made.close()


async def test_config_node_is_created_updated_and_deleted(store: Store) -> None:
    [create] = await config_steps(store, "ips", "::1", RATE)
    assert isinstance(create, Create)
    await store.multi([create])
    assert await stored_names(store, "ips") == ["::1"]
    assert await load_config(store, "ips", "::1") == RATE
    [change] = await config_steps(store, "ips", "::1", RATE)
    assert isinstance(change, Set)
    [delete] = await config_steps(store, "ips", "::1", {})
    assert delete == Delete("/config/ips/::1")
    await store.multi([delete])
    assert await config_steps(store, "ips", "::1", {}) == []
    assert await load_config(store, "ips", "::1") == {}


async def test_notice_is_printed_last(store: Store) -> None:
    steps = await config_steps_with_notifications(store, [ConfigChanged("ips", "::1", RATE)])
    await store.multi(steps)
    [notice] = await store.children("/config/changes")
    data = (await store.get(f"/config/changes/{notice}")).data
    assert json.loads(data) == {"version": 2, "entity_path": "ips/::1"}
    assert len(steps) == 2
    assert steps[-1].path.startswith("/config/changes/")


async def test_empty_store_has_no_configs() -> None:
    made = SqliteStore(MEMORY)
    with pytest.raises(NoNodeError):
        await stored_names(made, "ips")
    assert await load_config(made, "ips", "::1") == {}
    await made.close()


QUOTA = {"producer_byte_rate": "5"}


async def test_client_quotas_of_user_are_child_nodes(store: Store) -> None:
    async def write(*changes: tuple[str, dict[str, str]]) -> None:
        made = [ConfigChanged("users", name, config) for name, config in changes]
        await store.multi(await config_steps_with_notifications(store, made))

    await write(("u/clients/c", QUOTA), ("u/clients/d", QUOTA), ("v", QUOTA))
    assert sorted(await stored_names(store, "users")) == [
        "u",
        "u/clients/c",
        "u/clients/d",
        "v",
    ]
    assert await load_config(store, "users", "u") == {}
    assert await load_config(store, "users", "u/clients/c") == QUOTA
    await write(("u", QUOTA), ("u/clients/d", {}))
    await write(("u/clients/c", {}))
    assert not await store.exists("/config/users/u/clients")
    assert await load_config(store, "users", "u") == QUOTA
    await write(("u/clients/c", QUOTA))
    await write(("u", {}))
    assert await store.exists("/config/users/u/clients/c")
    await write(("u/clients/c", {}), ("v", {}))
    assert await store.children("/config/users") == []


async def test_user_and_last_client_may_be_removed_together(store: Store) -> None:
    both = ["u", "u/clients/c"]
    for config in (QUOTA, {}):
        changes = [ConfigChanged("users", name, config) for name in both]
        await store.multi(await config_steps_with_notifications(store, changes))
    assert await store.children("/config/users") == []
