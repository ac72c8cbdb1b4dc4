"""Rules for configs: what may be set for topics and brokers, and the resulting config.

Owns the four operations on a config, the validation of names and values, and the error of each
rejection. It must never store anything or know a message. Invariant: every role can read the result
of a plan, and a rejected alteration changes nothing. Kafka's ``ConfigAdminManager`` and
``ConfigurationControlManager``.
"""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from minibroker.cluster.image import (
    BROKER,
    CLIENT,
    EMPTY,
    IP,
    TOPIC,
    USER,
    ConfigChanged,
    Image,
)
from minibroker.cluster.topics import ChangeRejected, name_problem
from minibroker.config import (
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
from minibroker.config.connection_definitions import HostLimit
from minibroker.config.dynamic import DEFAULT_NAME, Configs, bad_values, layers, problems, usable
from minibroker.config.setting import broker_setting
from minibroker.config.topics import parse_topic_value
from minibroker.config.types import BadValueError, Kind
from minibroker.quotas.types import CLIENT_QUOTA_KEYS, CONNECTION_CREATION_RATE
from protocol.errors import ErrorCode

KINDS = (TOPIC, BROKER, IP, USER, CLIENT)
"""Resource types whose configs are stored and published."""

_OVERRIDES = MAX_CONNECTIONS_PER_IP_OVERRIDES


CREDENTIAL_KEYS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
"""Stored beside a user's quotas, and kept when those change."""


class Op(enum.IntEnum):
    """What happens to one setting, with Kafka's numbers."""

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
"""Called for this broker's configs: returns why listeners cannot use the resulting keys."""


def nothing_unusable(_configs: Configs) -> Sequence[str]:
    """Where no listener shows anything."""
    return ()


def plan_alteration(
    image: Image,
    settings: Settings,
    wanted: Alteration,
    unresolvable: Collection[str] = (),
    unusable_keys: UnusableKeys = nothing_unusable,
) -> ConfigChanged | ChangeRejected:
    """Return the new config of a resource, or why nothing changes.

    ``unresolvable`` are those of `hosts_named` that have no address.
    """
    refusal = _refuse_operations(wanted.operations)
    if refusal is not None:
        return refusal
    if wanted.kind == TOPIC:
        return _plan_topic(image, wanted)
    unknown = sorted(set(hosts_named([wanted])) & set(unresolvable))
    if unknown:
        text = f"{_OVERRIDES.name}: cannot resolve {', '.join(unknown)}; name hosts that can be "
        return ChangeRejected(ErrorCode.INVALID_REQUEST, f"{text}looked up, or their addresses")
    plan = _plan_broker(image, settings, wanted)
    if isinstance(plan, ConfigChanged) and wanted.name:
        for problem in unusable_keys({**image.configs, (plan.kind, plan.name): plan.config}):
            return ChangeRejected(ErrorCode.INVALID_REQUEST, problem)
    return plan


def hosts_named(wanted: Iterable[Alteration]) -> list[str]:
    """Return the hosts in broker configs to be set, which must be resolvable."""
    return [
        limit.host
        for one in wanted
        if one.kind == BROKER
        for given in one.operations
        if given.name == _OVERRIDES.name and given.op == Op.SET
        for limit in _limits(given.value or "")
    ]


def _limits(text: str) -> Sequence[HostLimit]:
    try:
        return _OVERRIDES.parse(text)
    except BadValueError:
        return ()  # which is refused for that


def usable_config(kind: str, config: Mapping[str, str]) -> Mapping[str, str]:
    """What of a stored config is valid; other hands than this broker's may have written it."""
    if kind == BROKER:
        return usable(config)
    valid = _VALID_FOR[kind]
    return {name: text for name, text in config.items() if valid(name, text)}


def _is_valid_for_topic(name: str, text: str) -> bool:
    try:
        parse_topic_value(name, text)
    except BadValueError:
        return False
    return True


def _is_valid_for_ip(name: str, text: str) -> bool:
    # At most 32 bits, as Kafka's type for it; a fraction of zeros is how others may write it.
    whole, _, fraction = text.partition(".")
    is_number = whole.isascii() and whole.isdigit() and len(whole) <= 10
    return name == CONNECTION_CREATION_RATE and is_number and not fraction.strip("0")


def _is_valid_for_user(name: str, text: str) -> bool:
    return name in CREDENTIAL_KEYS or _is_valid_quota(name, text)


def _is_valid_quota(name: str, text: str) -> bool:
    try:
        value = float(text)
    except ValueError:
        return False
    return name in CLIENT_QUOTA_KEYS and math.isfinite(value) and value > 0


_VALID_FOR: Mapping[str, Callable[[str, str], bool]] = {
    TOPIC: _is_valid_for_topic,
    IP: _is_valid_for_ip,
    USER: _is_valid_for_user,
    CLIENT: _is_valid_quota,
}


def _refuse_operations(operations: Sequence[ConfigOperation]) -> ChangeRejected | None:
    if any(times > 1 for times in Counter(given.name for given in operations).values()):
        return ChangeRejected(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    nulls = [given.name for given in operations if given.value is None and given.op != Op.DELETE]
    if nulls:
        text = f"Null value not supported for : {', '.join(nulls)}"
        return ChangeRejected(ErrorCode.INVALID_REQUEST, text)
    for given in operations:
        if given.op not in list(Op):
            return ChangeRejected(ErrorCode.INVALID_REQUEST, f"Unknown operations type {given.op}")
    return None


def _plan_topic(image: Image, wanted: Alteration) -> ConfigChanged | ChangeRejected:
    name = wanted.name
    if not name:
        return ChangeRejected(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
    problem = name_problem(name)
    if problem is not None:
        text = f"Topic name is invalid: {problem}"
        return ChangeRejected(ErrorCode.INVALID_TOPIC_EXCEPTION, text)
    config = _altered(wanted, image.topic_overrides(name), TOPIC_SETTINGS)
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


def _plan_broker(
    image: Image, settings: Settings, wanted: Alteration
) -> ConfigChanged | ChangeRejected:
    refusal = _refuse_broker(settings, wanted.name)
    if refusal is not None:
        return refusal
    refusal = _refuse_sharded(settings, wanted.operations)
    refusal = refusal or _refuse_secrets(settings, wanted.operations)
    if refusal is not None:
        return refusal
    key = (BROKER, wanted.name or DEFAULT_NAME)
    declared = {given.name: broker_setting(given.name) for given in wanted.operations}
    found = {name: setting for name, setting in declared.items() if setting is not None}
    config = _altered(wanted, usable(image.configs.get(key, EMPTY)), found)
    if isinstance(config, ChangeRejected):
        return config
    # Values of one broker override the defaults of all brokers; the result must be valid.
    own, default = layers(settings, {**image.configs, key: config})
    whole = {**default, **own, **config} if wanted.name else {**config, **own}
    bad = bad_values(config, for_all=not wanted.name)
    for problem in (*bad, *problems(settings, whole)):
        return ChangeRejected(ErrorCode.INVALID_REQUEST, problem)
    return ConfigChanged(*key, config)


def _refuse_sharded(
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


def _refuse_secrets(
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


def _refuse_broker(settings: Settings, name: str) -> ChangeRejected | None:
    own = str(settings[NODE_ID])
    if name in ("", own):
        return None
    if not name.isascii() or not name.isdigit():
        text = f"Node id must be an integer, but it is: {name}"
    else:
        text = f"Unexpected broker id, expected {own}, but received {name}"
    return ChangeRejected(ErrorCode.INVALID_REQUEST, text)


def _altered(
    wanted: Alteration, current: Mapping[str, str], declared: Mapping[str, Setting[Any]]
) -> dict[str, str] | ChangeRejected:
    """The config after all operations; lists that were never set begin with their default."""
    config = {} if wanted.replace else dict(current)
    for name, op, value in wanted.operations:
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
