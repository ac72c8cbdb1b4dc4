"""Configs in the store: reading them, and the operations that write them and notify of changes.

Owns which nodes a config uses; its meaning is in ``configs`` and ``quotas``.
Invariant: a resource without configs, and without nodes below it, has no node; a notification is
written after the change. The config methods of Kafka's ``AdminZkClient``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from minibroker.broker.metadata import layout
from minibroker.broker.metadata.configs import valid_config
from minibroker.broker.metadata.image import BROKER_LOGGER, EMPTY, TOPIC, USER, ConfigChanged, Image
from minibroker.broker.metadata.store.tree import Create, Delete, NoNodeError, Operation, Set, Store
from minibroker.broker.quotas.entity import CLIENTS_OF


async def names(store: Store, kind: str) -> list[str]:
    """Return the resources of a type that have a node. Raises `NoNodeError` in an empty store.

    The nodes of a user's clients are below the user's node.
    """
    found = await store.children(layout.configs_path(kind))
    if kind != USER:
        return found
    every = []
    for user in found:
        every.append(user)
        try:
            clients = await store.children(layout.config_path(kind, f"{user}/clients"))
        except NoNodeError:
            continue
        every += [f"{user}{CLIENTS_OF}{client}" for client in clients]
    return every


async def load(store: Store, kind: str, name: str) -> Mapping[str, str]:
    """Read the valid entries of a resource's config; empty if it is missing or unreadable."""
    path = layout.config_path(kind, name)
    try:
        return valid_config(kind, layout.decode_config(path, (await store.get(path)).data))
    except (NoNodeError, layout.LayoutError):
        return EMPTY


async def differences(
    store: Store, image: Image, resources: Iterable[tuple[str, str]]
) -> list[ConfigChanged]:
    """Return the stored configs of resources that differ from the image."""
    found = []
    for kind, name in dict.fromkeys(resources):
        if kind == BROKER_LOGGER or (kind == TOPIC and name not in image.topics):
            continue
        config = await load(store, kind, name)
        if config != image.configs.get((kind, name), EMPTY):
            found.append(ConfigChanged(kind, name, config))
    return found


async def steps(store: Store, kind: str, name: str, config: Mapping[str, str]) -> list[Operation]:
    """Return the operations that store a config."""
    return await _ConfigWriter(store).steps(ConfigChanged(kind, name, config))


async def steps_with_notifications(
    store: Store, changes: Sequence[ConfigChanged]
) -> list[Operation]:
    """Return the operations that store several configs, with a notification of each.

    Levels of loggers are not stored.
    """
    writer = _ConfigWriter(store)
    operations: list[Operation] = []
    for change in changes:
        if change.kind == BROKER_LOGGER:
            continue
        operations += await writer.steps(change)
        notification = layout.encode_config_change(change.kind, change.name)
        operations.append(Create(layout.CONFIG_CHANGE, notification, sequential=True))
    return operations


class _ConfigWriter:
    """Plans operations; each takes the effect of the previous ones into account."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._existing: dict[str, bool] = {}
        self._children: dict[str, set[str]] = {}
        self._has_config: dict[str, bool] = {}

    async def steps(self, change: ConfigChanged) -> list[Operation]:
        path = layout.config_path(change.kind, change.name)
        self._has_config[path] = bool(change.config)
        if not change.config:
            return await self._removal(change.kind, path)
        data = layout.encode_config(change.config)
        if await self._exists(path):
            return [Set(path, data)]
        ancestors = await self._missing_ancestors(change.kind, path)
        for created in (*ancestors, path):
            await self._note(created, there=True)
        return [*(Create(created) for created in ancestors), Create(path, data)]

    async def _missing_ancestors(self, kind: str, path: str) -> list[str]:
        missing: list[str] = []
        parent = _parent(path)
        while parent != layout.configs_path(kind) and not await self._exists(parent):
            missing.insert(0, parent)
            parent = _parent(parent)
        return missing

    async def _removal(self, kind: str, path: str) -> list[Operation]:
        """Delete a node and empty nodes above it; a node with children stays, without data."""
        if not await self._exists(path):
            return []
        if await self._child_names(path):
            return [Set(path, layout.encode_config(EMPTY))]
        deletions: list[Operation] = []
        while path != layout.configs_path(kind):
            deletions.append(Delete(path))
            await self._note(path, there=False)
            path = _parent(path)
            if path == layout.configs_path(kind):
                break
            if await self._child_names(path) or await self._is_set(path):
                break
        return deletions

    async def _exists(self, path: str) -> bool:
        if path not in self._existing:
            self._existing[path] = await self._store.exists(path)
        return self._existing[path]

    async def _child_names(self, path: str) -> set[str]:
        if path not in self._children:
            there = await self._store.exists(path)
            self._children[path] = set(await self._store.children(path)) if there else set()
        return self._children[path]

    async def _is_set(self, path: str) -> bool:
        if path in self._has_config:
            return self._has_config[path]
        try:
            return bool(layout.decode_config(path, (await self._store.get(path)).data))
        except NoNodeError:
            return False
        except layout.LayoutError:
            return True  # Written by another program, so it is not deleted.

    async def _note(self, path: str, *, there: bool) -> None:
        self._existing[path] = there
        below = await self._child_names(_parent(path))
        name = path.rpartition("/")[2]
        if there:
            below.add(name)
        else:
            below.discard(name)


def _parent(path: str) -> str:
    return path.rpartition("/")[0]
