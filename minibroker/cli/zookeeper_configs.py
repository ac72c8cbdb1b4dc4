"""``minibroker configs --zookeeper``: configs read and written in ZooKeeper, with no broker asked.

Owns the way into the store and the lines that Kafka's script printed in its ZooKeeper age; what
may be set is decided by the very rules that a broker has.  The invariant: nothing is written that
a broker would have refused, and every change is told by a notice, so that brokers follow at once.
Echoes ``ConfigCommand.alterConfigWithZk`` of Kafka 3.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TypeVar

import trio

from minibroker.cli import credentials
from minibroker.cli.errors import CliError, Unreachable, UsageMistake
from minibroker.client.connection import REQUEST_TIMEOUT_S
from minibroker.client.errors import BrokerError
from minibroker.cluster import layout, stored_configs
from minibroker.cluster.configs import Alteration, ConfigOperation, Op, hosts_named, plan_alteration
from minibroker.cluster.credentials import CredentialChange, plan_credentials
from minibroker.cluster.image import ConfigChanged, Image, TopicCreated, apply
from minibroker.cluster.quotas import (
    CLIENT_TYPE,
    IP_TYPE,
    USER_TYPE,
    QuotaChange,
    config_key,
    plan_change,
)
from minibroker.cluster.store.tree import NoNodeError, Store, StoreError
from minibroker.cluster.topics import ChangeRejected, topic_of
from minibroker.config import NODE_ID, ZOOKEEPER_CONNECT, ConfigError, Settings
from minibroker.config.dynamic import DEFAULT_NAME
from minibroker.quotas.arguments import (
    BROKERS,
    CLIENTS,
    IPS,
    TOPICS,
    USERS,
    Entities,
    parse_quota,
)
from minibroker.quotas.entity import DEFAULT, desanitize, parse_entity
from minibroker.runtime.hosts import unresolvable
from minibroker.security.scram import credential

T = TypeVar("T")

QUOTA_TYPES = {IPS: IP_TYPE, USERS: USER_TYPE, CLIENTS: CLIENT_TYPE}
TITLES = {TOPICS: "topic", USERS: "user-principal", CLIENTS: "client-id"}


def in_zookeeper(connect: str, work: Callable[[Store], Awaitable[T]]) -> T:
    """Do something with the store at ``connect``; `CliError` if it cannot be reached."""
    try:
        settings = Settings.from_sources(
            pairs=[
                f"zookeeper.connect={connect}",
                # People who mistype an address are not to sit out a broker's session timeout.
                f"zookeeper.connection.timeout.ms={REQUEST_TIMEOUT_S * 1000:g}",
            ]
        )
        from minibroker.cluster.store.zookeeper import ZooKeeperStore
        from minibroker.cluster.store.zookeeper_client import access_from
    except ConfigError as error:
        raise UsageMistake(f"--zookeeper {connect}: {error}") from None
    except ImportError as error:
        text = f"--zookeeper needs kazoo ({error}): pip install minibroker[zookeeper]"
        raise UsageMistake(text) from None
    access = access_from(settings)
    assert access is not None
    # It would tell of every attempt; how it ends is told once, below.
    logging.getLogger("minibroker").addHandler(logging.NullHandler())

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
    kind, stored_name = _key(entities)
    present = await stored_configs.load(store, kind, stored_name)
    missing = [key for key in deletions if key not in present]
    if missing:
        raise CliError(f"Invalid config(s): {','.join(missing)}")
    plan = await _plan(store, entities, additions, deletions)
    if isinstance(plan, ChangeRejected):
        raise BrokerError(_who(kind, stored_name), *plan)
    for path in (layout.configs_path(kind), layout.CONFIG_CHANGES):
        await store.ensure(path)
    await store.multi(await stored_configs.told_steps(store, [plan]))
    return f"Completed updating config for entity: {_who(kind, stored_name)}."


def _key(entities: Entities) -> tuple[str, str]:
    """Under which kind and name the config lies."""
    kind, name = entities.types[0], entities.names[0]
    if kind in QUOTA_TYPES:
        return config_key(dict(_quota_entity(entities)))
    return kind, name or DEFAULT_NAME


def _quota_entity(entities: Entities) -> tuple[tuple[str, str | None], ...]:
    return tuple(
        (QUOTA_TYPES[kind], name or None)
        for kind, name in zip(entities.types, entities.names, strict=True)
    )


async def _plan(
    store: Store, entities: Entities, additions: Mapping[str, str], deletions: list[str]
) -> ConfigChanged | ChangeRejected:
    """As a broker would have it that knows this resource alone."""
    kind, stored_name = _key(entities)
    name = entities.names[0]
    image = Image()
    if kind == TOPICS:
        image = await _with_topic(store, image, name)
    for known in {stored_name, DEFAULT_NAME} if kind == BROKERS else {stored_name}:
        config = await stored_configs.load(store, kind, known)
        image = apply(image, ConfigChanged(kind, known, config))
    if credentials.mechanisms_in(entities, additions, deletions, "--zookeeper"):
        [plan] = plan_credentials(image, list(_credentials(name, additions, deletions))).values()
        return plan
    if entities.types[0] in QUOTA_TYPES:
        operations = (
            *((key, parse_quota(key, value)) for key, value in additions.items()),
            *((key, None) for key in deletions),
        )
        return plan_change(image, QuotaChange(_quota_entity(entities), operations), ())
    own = [f"{NODE_ID.name}={name}"] if kind == BROKERS and name else []
    # Which ZooKeeper makes no difference to what may be kept in one.
    own.append(f"{ZOOKEEPER_CONNECT.name}=this")
    try:
        settings = Settings.from_sources(pairs=own)
    except ConfigError as error:
        raise UsageMistake(f"{BROKERS} {name}: {error}") from None
    steps = (
        *(ConfigOperation(key, Op.SET, value) for key, value in additions.items()),
        *(ConfigOperation(key, Op.DELETE) for key in deletions),
    )
    wanted = Alteration(kind, name, steps)
    return plan_alteration(image, settings, wanted, await unresolvable(hosts_named([wanted])))


def _credentials(
    user: str, additions: Mapping[str, str], deletions: list[str]
) -> Iterator[CredentialChange]:
    for mechanism in deletions:
        yield CredentialChange(user, credentials.NUMBERS[mechanism], None)
    for mechanism, value in additions.items():
        made = credentials.made_of(mechanism, value)
        kept = credential(mechanism, made.password, made.salt, made.iterations)
        yield CredentialChange(user, credentials.NUMBERS[mechanism], kept)


async def _with_topic(store: Store, image: Image, name: str) -> Image:
    try:
        data = (await store.get(layout.topic_path(name))).data
        node = layout.decode_topic(name, data)
    except (NoNodeError, layout.LayoutError):
        return image
    # Which brokers there are, and which id it has, makes no difference to its config.
    return apply(image, TopicCreated(topic_of(name, node, b"", broker_id=-1)))


async def describe(store: Store, entities: Entities) -> list[str]:
    """The lines to print: one entity, or all of its types that have a config."""
    if len(entities.names) == len(entities.types):
        found, shows_empty = [_key(entities)], True
    else:
        kind = USERS if USERS in entities.types else entities.types[0]
        try:
            every = [(kind, name) for name in await stored_configs.names(store, kind)]
        except NoNodeError:
            every = []
        found = [key for key in every if kind not in QUOTA_TYPES or _is_meant(entities, *key)]
        # A user may have a node only because its clients need one.
        shows_empty = kind != USERS
    lines = []
    for kind, name in found:
        config = await stored_configs.load(store, kind, name)
        values = ",".join(f"{key}={value}" for key, value in config.items())
        if config or shows_empty:
            lines.append(f"Configs for {_who(kind, name)} are {values}")
    return lines


def _is_meant(entities: Entities, kind: str, name: str) -> bool:
    """Whether a command line that leaves some names out is about this one, too."""
    if kind == IPS:
        return True
    entity = parse_entity(kind, name)
    if entity is None:
        return False
    parts = {USERS: entity.user, CLIENTS: entity.client}
    if {key for key, part in parts.items() if part} != set(entities.types):
        return False
    given = zip(entities.types, entities.names, strict=False)
    return all(parts[key] == config_key({QUOTA_TYPES[key]: name or None})[1] for key, name in given)


def _who(kind: str, name: str) -> str:
    entity = parse_entity(kind, name)
    if entity is None:
        return _part(kind, name)
    parts = {USERS: entity.user, CLIENTS: entity.client}
    return ", ".join(_part(key, part) for key, part in parts.items() if part)


def _part(kind: str, name: str) -> str:
    title = TITLES.get(kind, kind)
    if name == DEFAULT:
        return f"default {title}"
    return f"{title} '{desanitize(name) if kind in (USERS, CLIENTS) else name}'"
