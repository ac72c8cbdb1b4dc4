"""Configs in a store: read one or all names of a kind, and the steps that write one and tell of it.

Owns which nodes a config takes; what it means is for ``cluster.configs`` and ``cluster.quotas``.
The invariant: a resource for which nothing is set has no node, and a notice is written after what
it tells of.  Echoes the config methods of Kafka's ``AdminZkClient``.
"""

from __future__ import annotations

from collections.abc import Mapping

from minibroker.cluster import layout
from minibroker.cluster.configs import usable_config
from minibroker.cluster.image import EMPTY
from minibroker.cluster.store.tree import Create, Delete, NoNodeError, Operation, Set, Store


async def names(store: Store, kind: str) -> list[str]:
    """The resources of a kind that have a node; `NoNodeError` in a store that nobody has used."""
    return await store.children(layout.configs_path(kind))


async def load(store: Store, kind: str, name: str) -> Mapping[str, str]:
    """What of a resource's config is valid; nothing if nothing is set or it cannot be read."""
    path = layout.config_path(kind, name)
    try:
        return usable_config(kind, layout.decode_config(path, (await store.get(path)).data))
    except (NoNodeError, layout.LayoutError):
        return EMPTY


async def steps(store: Store, kind: str, name: str, config: Mapping[str, str]) -> list[Operation]:
    """What makes the store hold a config."""
    path = layout.config_path(kind, name)
    is_there = await store.exists(path)
    if not config:
        return [Delete(path)] if is_there else []
    data = layout.encode_config(config)
    return [Set(path, data) if is_there else Create(path, data)]


async def told_steps(
    store: Store, kind: str, name: str, config: Mapping[str, str]
) -> list[Operation]:
    """The same, and a notice for all who follow the store."""
    notice = layout.encode_config_change(kind, name)
    return [
        *await steps(store, kind, name, config),
        Create(layout.CONFIG_CHANGE, notice, sequential=True),
    ]
