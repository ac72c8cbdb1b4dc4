"""``minibroker configs --zookeeper``: read and write configs in ZooKeeper, without a broker.

Owns access to the store, and the output format of Kafka's script for ZooKeeper; the broker's own
rules validate configs. Invariant: configs that a broker would reject are not written, and every
change has a notification, so brokers apply it at once. Kafka 3's
``ConfigCommand.alterConfigWithZk``.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TypeVar

import trio

from minibroker.broker.metadata import layout
from minibroker.broker.metadata.acls import CredentialChange, plan_credentials
from minibroker.broker.metadata.configs import (
    Alteration,
    ConfigOperation,
    Op,
    config_steps_with_notifications,
    hosts_in_overrides,
    load_config,
    plan_alteration,
    stored_names,
)
from minibroker.broker.metadata.image import (
    ChangeRejected,
    ConfigChanged,
    Image,
    TopicCreated,
    apply,
)
from minibroker.broker.metadata.quotas import (
    CLIENT_TYPE,
    IP_TYPE,
    USER_TYPE,
    QuotaChange,
    config_key,
    plan_change,
)
from minibroker.broker.metadata.store.tree import NoNodeError, Store, StoreError
from minibroker.broker.metadata.topics import topic_of
from minibroker.broker.quotas.command_lines import (
    BROKERS,
    CLIENTS,
    IPS,
    TOPICS,
    USERS,
    Entities,
    parse_quota,
)
from minibroker.broker.quotas.types import DEFAULT, desanitize, parse_entity
from minibroker.broker.security.scram import credential
from minibroker.broker.settings import NODE_ID, ZOOKEEPER_CONNECT, ConfigError, Settings
from minibroker.broker.settings.dynamic import DEFAULT_NAME
from minibroker.cli import credentials
from minibroker.cli.output import CliError, InvalidUsage, Unreachable
from minibroker.client.connection import REQUEST_TIMEOUT_S
from minibroker.client.errors import BrokerError
from minibroker.runtime.hosts import unresolvable

T = TypeVar("T")

QUOTA_TYPES = {IPS: IP_TYPE, USERS: USER_TYPE, CLIENTS: CLIENT_TYPE}
TITLES = {TOPICS: "topic", USERS: "user-principal", CLIENTS: "client-id"}


def in_zookeeper(connect: str, work: Callable[[Store], Awaitable[T]]) -> T:
    """Run an operation on the store at ``connect``. Raises `CliError` if it is unreachable."""
    try:
        settings = Settings.from_sources(
            pairs=[
                f"zookeeper.connect={connect}",
                # A mistyped address should fail sooner than a broker's session timeout.
                f"zookeeper.connection.timeout.ms={REQUEST_TIMEOUT_S * 1000:g}",
            ]
        )
        from minibroker.broker.metadata.store.zookeeper import ZooKeeperStore, access_from
    except ConfigError as error:
        raise InvalidUsage(f"--zookeeper {connect}: {error}") from None
    except ImportError as error:
        text = f"--zookeeper needs kazoo ({error}): pip install minibroker[zookeeper]"
        raise InvalidUsage(text) from None
    access = access_from(settings)
    assert access is not None
    # kazoo logs every attempt; only the result is reported, below.
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
    """Write one config and a change notification; return the line to print."""
    kind, stored_name = _key(entities)
    present = await load_config(store, kind, stored_name)
    missing = [key for key in deletions if key not in present]
    if missing:
        raise CliError(f"Invalid config(s): {','.join(missing)}")
    plan = await _plan(store, entities, additions, deletions)
    if isinstance(plan, ChangeRejected):
        raise BrokerError(_who(kind, stored_name), *plan)
    for path in (layout.configs_path(kind), layout.CONFIG_CHANGES):
        await store.ensure(path)
    await store.multi(await config_steps_with_notifications(store, [plan]))
    return f"Completed updating config for entity: {_who(kind, stored_name)}."


def _key(entities: Entities) -> tuple[str, str]:
    """Return the kind and the name under which the config is stored."""
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
    """Build the image of a cluster with only this resource."""
    kind, stored_name = _key(entities)
    name = entities.names[0]
    image = Image()
    if kind == TOPICS:
        image = await _with_topic(store, image, name)
    for known in {stored_name, DEFAULT_NAME} if kind == BROKERS else {stored_name}:
        config = await load_config(store, kind, known)
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
    # The validation of a config does not depend on the ZooKeeper.
    own.append(f"{ZOOKEEPER_CONNECT.name}=this")
    try:
        settings = Settings.from_sources(pairs=own)
    except ConfigError as error:
        raise InvalidUsage(f"{BROKERS} {name}: {error}") from None
    steps = (
        *(ConfigOperation(key, Op.SET, value) for key, value in additions.items()),
        *(ConfigOperation(key, Op.DELETE) for key in deletions),
    )
    wanted = Alteration(kind, name, steps)
    return plan_alteration(
        image, settings, wanted, await unresolvable(hosts_in_overrides([wanted]))
    )


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
    # The validation of a broker's config does not depend on its id or on other brokers.
    return apply(image, TopicCreated(topic_of(name, node, b"", broker_id=-1)))


async def describe(store: Store, entities: Entities) -> list[str]:
    """Return the lines to print: one entity, or all entities of its types with a config."""
    if len(entities.names) == len(entities.types):
        found, shows_empty = [_key(entities)], True
    else:
        kind = USERS if USERS in entities.types else entities.types[0]
        try:
            every = [(kind, name) for name in await stored_names(store, kind)]
        except NoNodeError:
            every = []
        found = [key for key in every if kind not in QUOTA_TYPES or _is_meant(entities, *key)]
        # A user's node may exist only as the parent of its clients.
        shows_empty = kind != USERS
    lines = []
    for kind, name in found:
        config = await load_config(store, kind, name)
        values = ",".join(f"{key}={value}" for key, value in config.items())
        if config or shows_empty:
            lines.append(f"Configs for {_who(kind, name)} are {values}")
    return lines


def _is_meant(entities: Entities, kind: str, name: str) -> bool:
    """Return whether an entity matches a command line that omits some names."""
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
