"""Rules for configs: what may be set for topics, brokers, loggers, groups and client metrics.

Owns the four operations on a config, the validation of names and values, the error of each
rejection, and which nodes of the store a config uses. It must never know a message. Invariants: a
resource without configs, and without nodes below it, has no node; a notification is written after
the change; every role can read the
result of a plan, and a rejected alteration changes nothing; the root logger always has a level; a
group's or subscription's key in the image is its name in the encoding of users' names, because a
name may have a slash and the store has a node for it. Kafka's ``ConfigAdminManager``,
``ConfigurationControlManager``, ``ControllerConfigurationValidator``, ``RuntimeLoggerManager`` and
``AdminZkClient``.
"""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

from minibroker.broker.metadata import layout
from minibroker.broker.metadata.image import (
    BROKER,
    BROKER_LOGGER,
    CLIENT,
    CLIENT_METRICS,
    DELEGATION_TOKEN,
    EMPTY,
    GROUP,
    IP,
    TOPIC,
    USER,
    ChangeRejected,
    ConfigChanged,
    Image,
    Plan,
    plan_of,
)
from minibroker.broker.metadata.store.tree import Create, Delete, NoNodeError, Operation, Set, Store
from minibroker.broker.metadata.topics import name_problem
from minibroker.broker.quotas.types import (
    CLIENT_QUOTA_KEYS,
    CLIENTS_OF,
    CONNECTION_CREATION_RATE,
    desanitize,
    sanitize,
)
from minibroker.broker.security.scram import decode_token
from minibroker.broker.settings import (
    ACCEPTOR_MODE,
    MAX_CONNECTIONS_PER_IP_OVERRIDES,
    NODE_ID,
    ONE_ACCEPTOR_ONLY,
    SHARDED,
    SHARDED_ADVICE,
    SSL_KEYSTORE_LOCATION,
    TOPIC_SETTINGS,
    ZOOKEEPER_CONNECT,
    Setting,
    Settings,
)
from minibroker.broker.settings.dynamic import (
    DEFAULT_NAME,
    Configs,
    bad_values,
    effective,
    layers,
    problems,
    thread_count_problems,
    valid_entries,
)
from minibroker.broker.settings.loggers import LEVELS, LOGGERS, ROOT_LOGGER
from minibroker.broker.settings.resources import (
    InvalidSubscription,
    check_client_metrics,
    group_problem,
)
from minibroker.broker.settings.setting import (
    GROUP_SETTINGS,
    BadValueError,
    HostLimit,
    Kind,
    broker_setting,
)
from minibroker.broker.settings.topics import parse_topic_value
from minibroker_protocol.errors import ErrorCode

KINDS = (TOPIC, BROKER, IP, USER, CLIENT, GROUP, CLIENT_METRICS, DELEGATION_TOKEN)
"""Resource types whose configs are stored and published; levels of loggers are not stored."""

_OVERRIDES = MAX_CONNECTIONS_PER_IP_OVERRIDES

RESOURCES_MAX: Final[Mapping[str, int]] = {GROUP: 10_000, CLIENT_METRICS: 100}
"""How many resources of each kind may have configs: every process keeps them in memory."""

NAME_MAX: Final = 255
"""Characters of a name, as encoded: it is the name of a node."""

_UNNAMED: Final[Mapping[str, str]] = {
    GROUP: "Default group resources are not allowed.",
    CLIENT_METRICS: "Subscription name can't be empty",
}

CREDENTIAL_KEYS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
"""Keys of SCRAM credentials, which are stored with a user's quotas and do not change with them."""


class Op(enum.IntEnum):
    """Operation on one config, with Kafka's numbers."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigOperation(NamedTuple):
    """One operation of an alteration; ``op`` is the requested number, which may be invalid."""

    name: str
    op: int
    value: str | None = None


class Alteration(NamedTuple):
    """Requested changes of one resource; a broker without a name is the default of all brokers.

    With ``replace``, all former values are removed.
    """

    kind: str
    name: str
    operations: tuple[ConfigOperation, ...]
    replace: bool = False


UnusableKeys = Callable[[Configs], Sequence[str]]
"""Returns why listeners cannot use the keys in these configs; empty if they can."""


def all_keys_usable(_configs: Configs) -> Sequence[str]:
    """Report no unusable keys: the default without TLS listeners."""
    return ()


def plan_alterations(
    image: Image,
    settings: Settings,
    requested: Sequence[Alteration],
    unresolvable: Collection[str] = (),
    unusable_keys: UnusableKeys = all_keys_usable,
) -> Plan[tuple[ChangeRejected | None, ...]]:
    """Plan alterations independently of each other."""
    return plan_of(
        plan_alteration(image, settings, one, unresolvable, unusable_keys) for one in requested
    )


def plan_alteration(
    image: Image,
    settings: Settings,
    alteration: Alteration,
    unresolvable: Collection[str] = (),
    unusable_keys: UnusableKeys = all_keys_usable,
) -> ConfigChanged | ChangeRejected:
    """Return the new config of a resource, or why nothing changes.

    ``unresolvable`` are those of `hosts_in_overrides` that have no address.
    """
    rejection = _reject_operations(alteration.operations)
    if rejection is not None:
        return rejection
    if alteration.kind == TOPIC:
        return _plan_topic(image, alteration)
    if alteration.kind in (GROUP, CLIENT_METRICS):
        return _plan_resource(image, settings, alteration)
    if alteration.kind == BROKER_LOGGER:
        return plan_levels(image, settings, alteration.name, alteration.operations)
    unknown = sorted(set(hosts_in_overrides([alteration])) & set(unresolvable))
    if unknown:
        text = f"{_OVERRIDES.name}: cannot resolve {', '.join(unknown)}; name hosts that can be "
        return ChangeRejected(ErrorCode.INVALID_REQUEST, f"{text}looked up, or their addresses")
    plan = _plan_broker(image, settings, alteration)
    if isinstance(plan, ConfigChanged) and alteration.name:
        for problem in unusable_keys({**image.configs, (plan.kind, plan.name): plan.config}):
            return ChangeRejected(ErrorCode.INVALID_REQUEST, problem)
    return plan


def hosts_in_overrides(alterations: Iterable[Alteration]) -> list[str]:
    """Return the hosts in broker configs to be set, which must be resolvable."""
    return [
        limit.host
        for one in alterations
        if one.kind == BROKER
        for operation in one.operations
        if operation.name == _OVERRIDES.name and operation.op == Op.SET
        for limit in _limits(operation.value or "")
    ]


def _limits(text: str) -> Sequence[HostLimit]:
    try:
        return _OVERRIDES.parse(text)
    except BadValueError:
        return ()  # The alteration is rejected for it later.


def valid_config(kind: str, config: Mapping[str, str]) -> Mapping[str, str]:
    """Return the valid entries of a stored config, which another program may have written."""
    if kind == BROKER:
        return valid_entries(config)
    if kind == DELEGATION_TOKEN:
        return config if decode_token("", config) else EMPTY
    valid = _VALID_FOR[kind]
    return {name: text for name, text in config.items() if valid(name, text)}


def _is_valid_for_topic(name: str, text: str) -> bool:
    try:
        parse_topic_value(name, text)
    except BadValueError:
        return False
    return True


def _is_valid_for_ip(name: str, text: str) -> bool:
    # At most 32 bits, as in Kafka; other programs may write it with a fraction of zeros.
    digits, _, fraction = text.partition(".")
    is_number = digits.isascii() and digits.isdigit() and len(digits) <= 10
    return name == CONNECTION_CREATION_RATE and is_number and not fraction.strip("0")


def _is_valid_for_user(name: str, text: str) -> bool:
    return name in CREDENTIAL_KEYS or _is_valid_quota(name, text)


def _is_valid_quota(name: str, text: str) -> bool:
    try:
        value = float(text)
    except ValueError:
        return False
    return name in CLIENT_QUOTA_KEYS and math.isfinite(value) and value > 0


def _is_valid_for_group(name: str, text: str) -> bool:
    try:
        return name in GROUP_SETTINGS and GROUP_SETTINGS[name].parse(text) is not None
    except BadValueError:
        return False


def _is_valid_for_client_metrics(name: str, text: str) -> bool:
    try:
        check_client_metrics({name: text})
    except (BadValueError, InvalidSubscription):
        return False
    return True


_VALID_FOR: Mapping[str, Callable[[str, str], bool]] = {
    GROUP: _is_valid_for_group,
    CLIENT_METRICS: _is_valid_for_client_metrics,
    TOPIC: _is_valid_for_topic,
    IP: _is_valid_for_ip,
    USER: _is_valid_for_user,
    CLIENT: _is_valid_quota,
}


def _reject_operations(operations: Sequence[ConfigOperation]) -> ChangeRejected | None:
    if any(times > 1 for times in Counter(operation.name for operation in operations).values()):
        return ChangeRejected(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    nulls = [
        operation.name
        for operation in operations
        if operation.value is None and operation.op != Op.DELETE
    ]
    if nulls:
        text = f"Null value not supported for : {', '.join(nulls)}"
        return ChangeRejected(ErrorCode.INVALID_REQUEST, text)
    for operation in operations:
        if operation.op not in list(Op):
            return ChangeRejected(
                ErrorCode.INVALID_REQUEST, f"Unknown operations type {operation.op}"
            )
    return None


def _plan_topic(image: Image, alteration: Alteration) -> ConfigChanged | ChangeRejected:
    name = alteration.name
    if not name:
        return ChangeRejected(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
    problem = name_problem(name)
    if problem is not None:
        text = f"Topic name is invalid: {problem}"
        return ChangeRejected(ErrorCode.INVALID_TOPIC_EXCEPTION, text)
    config = _altered(alteration, image.topic_overrides(name), TOPIC_SETTINGS)
    if isinstance(config, ChangeRejected):
        return config
    for key, value in config.items():
        try:
            parse_topic_value(key, value)
        except BadValueError as error:
            return ChangeRejected(ErrorCode.INVALID_CONFIG, str(error))
    if name not in image.topics:
        text = f"The topic '{name}' does not exist."
        return ChangeRejected(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
    return ConfigChanged(TOPIC, name, config)


def _plan_resource(
    image: Image, settings: Settings, alteration: Alteration
) -> ConfigChanged | ChangeRejected:
    kind, name = alteration.kind, alteration.name
    # Kafka treats none of their configs as a list that could be appended to.
    config = _altered(alteration, resource_config(image, kind, name), {})
    if isinstance(config, ChangeRejected):
        return config
    problem = resource_problem(image, settings, kind, name, config)
    return problem or ConfigChanged(kind, sanitize(name), config)


def _plan_broker(
    image: Image, settings: Settings, alteration: Alteration
) -> ConfigChanged | ChangeRejected:
    rejection = _reject_other_broker(settings, alteration.name)
    if rejection is not None:
        return rejection
    rejection = _reject_sharded_limits(settings, alteration.operations)
    rejection = rejection or _reject_secrets(settings, alteration.operations)
    if rejection is not None:
        return rejection
    key = (BROKER, alteration.name or DEFAULT_NAME)
    declared = {
        operation.name: broker_setting(operation.name) for operation in alteration.operations
    }
    found = {name: setting for name, setting in declared.items() if setting is not None}
    config = _altered(alteration, valid_entries(image.configs.get(key, EMPTY)), found)
    if isinstance(config, ChangeRejected):
        return config
    # Values of one broker override the defaults of all brokers; the result must be valid.
    own, default = layers(settings, {**image.configs, key: config})
    combined = {**default, **own, **config} if alteration.name else {**config, **own}
    bad = bad_values(config, for_all=not alteration.name)
    counts = thread_count_problems(effective(settings, image.configs), config)
    for problem in chain(bad, problems(settings, combined), counts):
        return ChangeRejected(ErrorCode.INVALID_REQUEST, problem)
    return ConfigChanged(*key, config)


def _reject_sharded_limits(
    settings: Settings, operations: Sequence[ConfigOperation]
) -> ChangeRejected | None:
    """Reject limits that would not be enforced; existing ones may be removed."""
    if settings[ACCEPTOR_MODE] != SHARDED:
        return None
    for name, op, _ in operations:
        if op != Op.DELETE and broker_setting(name) in ONE_ACCEPTOR_ONLY:
            text = f"{name}: not with {ACCEPTOR_MODE.name}={SHARDED}: {SHARDED_ADVICE}"
            return ChangeRejected(ErrorCode.INVALID_CONFIG, text)
    return None


def _reject_secrets(
    settings: Settings, operations: Sequence[ConfigOperation]
) -> ChangeRejected | None:
    """Reject secrets in a store shared with other programs; Kafka's tools would encrypt them."""
    if settings[ZOOKEEPER_CONNECT] is None:
        return None
    for name, op, _ in operations:
        declared = broker_setting(name)
        if op != Op.DELETE and declared is not None and declared.sensitive and declared.dynamic:
            text = f"{name}: Password encoder secret not configured; secrets are not kept in "
            text += f"ZooKeeper: set {SSL_KEYSTORE_LOCATION.name} of the listener to a file that "
            return ChangeRejected(ErrorCode.INVALID_CONFIG, text + "has the key without a password")
    return None


def _reject_other_broker(settings: Settings, name: str) -> ChangeRejected | None:
    own = str(settings[NODE_ID])
    if name in ("", own):
        return None
    if not name.isascii() or not name.isdigit():
        text = f"Node id must be an integer, but it is: {name}"
    else:
        text = f"Unexpected broker id, expected {own}, but received {name}"
    return ChangeRejected(ErrorCode.INVALID_REQUEST, text)


def resource_config(image: Image, kind: str, name: str) -> Mapping[str, str]:
    """What is set for a group or a subscription of client metrics, by its real name."""
    return image.configs.get((kind, sanitize(name)), EMPTY)


def resource_names(image: Image, kind: str) -> list[str]:
    """The real names of groups or client metrics with configs, sorted."""
    return sorted(desanitize(name) for known, name in image.configs if known == kind)


def resource_problem(
    image: Image, settings: Settings, kind: str, name: str, config: Mapping[str, str]
) -> ChangeRejected | None:
    """Why a group or client metrics cannot have this config, or None if it can."""
    if not name:
        return ChangeRejected(ErrorCode.INVALID_REQUEST, _UNNAMED[kind])
    key = sanitize(name)
    if len(key) > NAME_MAX:
        text = f"The name is longer than {NAME_MAX} characters"
        return ChangeRejected(ErrorCode.INVALID_REQUEST, text)
    known = sum(each == kind for each, _ in image.configs)
    if config and (kind, key) not in image.configs and known >= RESOURCES_MAX[kind]:
        text = f"Only {RESOURCES_MAX[kind]} resources of this type can have configs"
        return ChangeRejected(ErrorCode.POLICY_VIOLATION, text)
    if kind == GROUP:
        problem = group_problem(settings, config)
        return ChangeRejected(ErrorCode.INVALID_CONFIG, problem) if problem else None
    try:
        check_client_metrics(config)
    except InvalidSubscription as error:
        return ChangeRejected(ErrorCode.INVALID_REQUEST, str(error))
    except BadValueError as error:
        return ChangeRejected(ErrorCode.INVALID_CONFIG, str(error))
    return None


def plan_levels(
    image: Image, settings: Settings, name: str, operations: Sequence[ConfigOperation]
) -> ConfigChanged | ChangeRejected:
    """Return the levels of this broker's loggers after the operations, or why nothing changes.

    The name of an operation is that of a logger, and its value is a level.
    """
    own = str(settings[NODE_ID])
    if name != own:
        is_number = name.isascii() and name.isdigit()
        text = f"Node id must be an integer, but it is: {name}"
        if is_number:
            text = f"Unexpected node id. Expected {own}, but received {name}"
        return ChangeRejected(ErrorCode.INVALID_REQUEST, text)
    levels = dict(image.configs.get((BROKER_LOGGER, own), EMPTY))
    for logger, op, level in operations:
        problem = _level_problem(logger, op, level)
        if problem is not None:
            return problem
        if op == Op.SET and level is not None:
            levels[logger] = level
        else:
            levels.pop(logger, None)
    return ConfigChanged(BROKER_LOGGER, own, levels)


def _level_problem(logger: str, op: int, level: str | None) -> ChangeRejected | None:
    if op not in (Op.SET, Op.DELETE):
        text = "Only SET and DELETE are allowed for the BROKER_LOGGER resource"
        return ChangeRejected(ErrorCode.INVALID_REQUEST, text)
    if logger not in LOGGERS:
        return ChangeRejected(ErrorCode.INVALID_CONFIG, f"Logger {logger} does not exist!")
    if op == Op.SET and level not in LEVELS:
        text = f"Cannot set the log level of {logger} to {level} as it is not a supported log level"
        text += f". Valid log levels are {', '.join(sorted(LEVELS))}"
        return ChangeRejected(ErrorCode.INVALID_CONFIG, text)
    if op == Op.DELETE and logger == ROOT_LOGGER:
        text = "Removing the log level of the root logger is not allowed"
        return ChangeRejected(ErrorCode.INVALID_REQUEST, text)
    return None


def _altered(
    alteration: Alteration, current: Mapping[str, str], declared: Mapping[str, Setting[Any]]
) -> dict[str, str] | ChangeRejected:
    """Return the config after all operations; a list that is not set starts with its default."""
    config = {} if alteration.replace else dict(current)
    for name, op, value in alteration.operations:
        if op == Op.DELETE:
            config.pop(name, None)
            continue
        assert value is not None
        if op == Op.SET:
            config[name] = value
            continue
        setting = declared.get(name)
        if setting is None or setting.type.kind != Kind.LIST:
            text = f"Can't {Op(op).name} to key {name} because its type is not LIST."
            return ChangeRejected(ErrorCode.INVALID_CONFIG, text)
        before = config.get(name, setting.render(setting.default))
        config[name] = _list_after(Op(op), before, value)
    return config


def _list_after(op: Op, before: str, value: str) -> str:
    items = [item for item in before.split(",") if item]
    for item in value.split(","):
        if op == Op.APPEND and item not in items:
            items.append(item)
        elif op == Op.SUBTRACT and item in items:
            items.remove(item)
    return ",".join(items)


async def stored_names(store: Store, kind: str) -> list[str]:
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


async def load_config(store: Store, kind: str, name: str) -> Mapping[str, str]:
    """Read the valid entries of a resource's config; empty if it is missing or unreadable."""
    path = layout.config_path(kind, name)
    try:
        return valid_config(kind, layout.decode_config(path, (await store.get(path)).data))
    except (NoNodeError, layout.LayoutError):
        return EMPTY


async def differing_configs(
    store: Store, image: Image, resources: Iterable[tuple[str, str]]
) -> list[ConfigChanged]:
    """Return the stored configs of resources that differ from the image."""
    found = []
    for kind, name in dict.fromkeys(resources):
        if kind == BROKER_LOGGER or (kind == TOPIC and name not in image.topics):
            continue
        config = await load_config(store, kind, name)
        if config != image.configs.get((kind, name), EMPTY):
            found.append(ConfigChanged(kind, name, config))
    return found


async def config_steps(
    store: Store, kind: str, name: str, config: Mapping[str, str]
) -> list[Operation]:
    """Return the operations that store a config."""
    return await _ConfigWriter(store).plan(ConfigChanged(kind, name, config))


async def config_steps_with_notifications(
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
        operations += await writer.plan(change)
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

    async def plan(self, change: ConfigChanged) -> list[Operation]:
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
