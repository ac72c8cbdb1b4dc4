"""``minibroker configs --zookeeper``: configs read and written in ZooKeeper, with no broker asked.

Owns the way into the store and the lines that Kafka's script printed in its ZooKeeper age; what
may be set is decided by the very rules that a broker has.  The invariant: nothing is written that
a broker would have refused, and every change is told by a notice, so that brokers follow at once.
Echoes ``ConfigCommand.alterConfigWithZk`` of Kafka 3.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import trio

from minibroker.cli.entities import BROKERS, IPS, TOPICS, Entities, parse_quota
from minibroker.cli.errors import CliError, Refused, Unreachable, UsageMistake
from minibroker.cluster import layout, stored_configs
from minibroker.cluster.configs import Alteration, Op, Operation, hosts_named, plan_alteration
from minibroker.cluster.image import ConfigChanged, Image, TopicCreated, apply
from minibroker.cluster.quotas import IP_TYPE, QuotaChange, plan_change
from minibroker.cluster.store.tree import NoNodeError, Store, StoreError
from minibroker.cluster.topics import Refusal
from minibroker.config import NODE_ID, ConfigError, Settings
from minibroker.config.dynamic import DEFAULT_NAME
from minibroker.runtime.hosts import unresolvable

T = TypeVar("T")

SERVED = (TOPICS, BROKERS, IPS)


def in_zookeeper(connect: str, work: Callable[[Store], Awaitable[T]]) -> T:
    """Do something with the store at ``connect``; `CliError` if it cannot be reached."""
    try:
        settings = Settings.from_sources(pairs=[f"zookeeper.connect={connect}"])
        from minibroker.cluster.store.zookeeper import ZooKeeperStore
        from minibroker.cluster.store.zookeeper_client import access_from
    except ConfigError as error:
        raise UsageMistake(f"--zookeeper {connect}: {error}") from None
    except ImportError as error:
        text = f"--zookeeper needs kazoo ({error}): pip install minibroker[zookeeper]"
        raise UsageMistake(text) from None
    access = access_from(settings)
    assert access is not None

    async def run() -> T:
        store = await ZooKeeperStore.open(access)
        try:
            return await work(store)
        finally:
            with trio.CancelScope(shield=True):
                await store.close()

    try:
        return trio.run(run)
    except StoreError as error:
        raise Unreachable(f"ZooKeeper at {connect}: {error}") from None


async def alter(
    store: Store, entities: Entities, additions: Mapping[str, str], deletions: list[str]
) -> str:
    """Write one config and tell of it; the line to print."""
    kind, name = _served(entities), entities.names[0]
    stored_name = name or DEFAULT_NAME
    present = await stored_configs.load(store, kind, stored_name)
    missing = [key for key in deletions if key not in present]
    if missing:
        raise CliError(f"Invalid config(s): {','.join(missing)}")
    plan = await _plan(store, kind, name, additions, deletions)
    if isinstance(plan, Refusal):
        raise Refused(_who(kind, stored_name), *plan)
    for path in (layout.configs_path(kind), layout.CONFIG_CHANGES):
        await store.ensure(path)
    await store.multi(await stored_configs.told_steps(store, *plan))
    return f"Completed updating config for entity: {_who(kind, stored_name)}."


async def _plan(
    store: Store, kind: str, name: str, additions: Mapping[str, str], deletions: list[str]
) -> ConfigChanged | Refusal:
    """As a broker would have it that knows this resource alone."""
    image = Image()
    if kind == TOPICS:
        image = await _with_topic(store, image, name)
    for known in {name or DEFAULT_NAME, DEFAULT_NAME} if kind != TOPICS else {name}:
        config = await stored_configs.load(store, kind, known)
        image = apply(image, ConfigChanged(kind, known, config))
    if kind == IPS:
        operations = (
            *((key, parse_quota(key, value)) for key, value in additions.items()),
            *((key, None) for key in deletions),
        )
        return plan_change(image, QuotaChange(((IP_TYPE, name or None),), operations), ())
    own = [f"{NODE_ID.name}={name}"] if kind == BROKERS and name else []
    try:
        settings = Settings.from_sources(pairs=own)
    except ConfigError as error:
        raise UsageMistake(f"{BROKERS} {name}: {error}") from None
    steps = (
        *(Operation(key, Op.SET, value) for key, value in additions.items()),
        *(Operation(key, Op.DELETE) for key in deletions),
    )
    wanted = Alteration(kind, name, steps)
    return plan_alteration(image, settings, wanted, await unresolvable(hosts_named([wanted])))


async def _with_topic(store: Store, image: Image, name: str) -> Image:
    try:
        data = (await store.get(layout.topic_path(name))).data
        topic = layout.decode_topic(name, data, internal=False)
    except (NoNodeError, layout.LayoutError):
        return image
    return apply(image, TopicCreated(topic))


async def describe(store: Store, entities: Entities) -> list[str]:
    """The lines to print: one entity, or all of a type that have a config."""
    kind = _served(entities)
    if entities.names:
        found = [entities.names[0] or DEFAULT_NAME]
    else:
        try:
            found = await stored_configs.names(store, kind)
        except NoNodeError:
            found = []
    lines = []
    for name in found:
        config = await stored_configs.load(store, kind, name)
        values = ",".join(f"{key}={value}" for key, value in config.items())
        lines.append(f"Configs for {_who(kind, name)} are {values}")
    return lines


def _served(entities: Entities) -> str:
    kind = entities.types[0]
    if kind not in SERVED:
        raise UsageMistake(f"Quotas of {kind} are not served yet; those of {IPS} are.")
    return kind


def _who(kind: str, name: str) -> str:
    title = "topic" if kind == TOPICS else kind
    return f"default {title}" if name == DEFAULT_NAME else f"{title} '{name}'"
