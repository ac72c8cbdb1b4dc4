"""Dynamic broker configs on top of the static settings.

Owns the order of precedence: config of this broker, config of all brokers, static settings,
defaults.  It must never know where configs are stored or which roles use them.  The invariant:
invalid values and values of static settings are ignored, so a config written by another tool cannot
stop the broker.  Echoes Kafka's ``DynamicBrokerConfig``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from minibroker.broker.settings.definitions import (
    ACCEPTOR_MODE,
    NODE_ID,
    ONE_ACCEPTOR_ONLY,
    SHARDED,
    THREAD_COUNTS,
)
from minibroker.broker.settings.setting import (
    BROKER_SETTINGS,
    BadValueError,
    broker_setting,
    is_unsupported_kafka_setting,
    listener_name,
)
from minibroker.broker.settings.settings import Settings, unknown_name

T = TypeVar("T")

BROKERS = "brokers"
"""Entity type of broker configs, the first half of a key of `Configs`."""

DEFAULT_NAME = "<default>"
"""Entity name of the default config of an entity type."""

Configs = Mapping[tuple[str, str], Mapping[str, str]]
"""Configs of entities, by type and name."""

DYNAMIC_SOURCE = "changed while running"

_NOTHING: Mapping[str, str] = {}
_NO_CONFIGS: Configs = {}


class DynamicConfigs(NamedTuple):
    """The dynamic configs of this broker and of all brokers; valid values only, unparsed."""

    own: Mapping[str, str]
    default: Mapping[str, str]


def layers(settings: Settings, configs: Configs) -> DynamicConfigs:
    """Return the dynamic configs for the broker with these static settings."""
    own = configs.get((BROKERS, str(settings[NODE_ID])), _NOTHING)
    default = configs.get((BROKERS, DEFAULT_NAME), _NOTHING)
    return DynamicConfigs(valid_entries(own), valid_entries(default, for_all=True))


def effective(settings: Settings, configs: Configs) -> Settings:
    """Return the effective settings; the same object if there are no dynamic configs."""
    own, default = layers(settings, configs)
    changed = {**default, **own}
    if settings[ACCEPTOR_MODE] == SHARDED:
        # Another tool may have set limits that this mode does not support.
        changed = {n: t for n, t in changed.items() if broker_setting(n) not in ONE_ACCEPTOR_ONLY}
    if not changed:
        return settings
    values = {name: _parse(name, text) for name, text in changed.items()}
    return settings.replaced(values, DYNAMIC_SOURCE)


class DynamicSettings:
    """Cache of `effective` for use with each request.

    Configs are immutable, like those of a metadata image: a change yields another mapping.
    """

    def __init__(self, settings: Settings) -> None:
        self._static = settings
        self._configs: Configs = _NO_CONFIGS
        self._newest = settings

    def of(self, configs: Configs) -> Settings:
        """Return the effective settings with these configs."""
        if configs is not self._configs:
            self._newest = effective(self._static, configs)
            self._configs = configs
        return self._newest


def problems(settings: Settings, changed: Mapping[str, str]) -> Iterator[str]:
    """Check whether these changes are valid on top of ``settings``; yield the problems."""
    bad = list(bad_values(changed))
    yield from bad
    if not bad:
        values = {name: _parse(name, text) for name, text in changed.items()}
        yield from settings.replaced(values, DYNAMIC_SOURCE).problems()


def bad_values(changed: Mapping[str, str], *, for_all: bool = False) -> Iterator[str]:
    """Check each value separately; ``for_all`` if they are for all brokers."""
    known = {name: declared for name in sorted(changed) if (declared := broker_setting(name))}
    fixed = [name for name, declared in known.items() if not declared.dynamic]
    # Kafka accepts changes of a few of these; where they have no effect, an error is more honest.
    fixed += [
        name for name in sorted(changed) if name not in known and is_unsupported_kafka_setting(name)
    ]
    if fixed:
        yield f"Cannot update these configs dynamically: {', '.join(fixed)}"
        return
    secured = {name: declared for name, declared in known.items() if declared.dynamic_at_listener}
    if bare := [name for name, declared in secured.items() if name == declared.name]:
        text = "These security configs can be dynamically updated only per-listener using the "
        text += f"listener prefix: {', '.join(bare)}; set "
        yield text + ", ".join(listener_name("<listener>", name) for name in bare)
        return
    for name, text in changed.items():
        try:
            _parse(name, text)
        except BadValueError as error:
            yield str(error)
    of_one = {*secured, *(name for name, declared in known.items() if declared.per_broker)}
    if for_all and of_one:
        text = "Cannot update these configs at default cluster level, broker id must be specified"
        yield f"{text}: {', '.join(sorted(of_one))}"


def thread_count_problems(settings: Settings, changed: Mapping[str, str]) -> Iterator[str]:
    """Check numbers of threads, which Kafka at most doubles and at least halves in one change."""
    for name in sorted(THREAD_COUNTS & changed.keys()):
        before, after = settings[BROKER_SETTINGS[name]], BROKER_SETTINGS[name].parse(changed[name])
        text = f"Dynamic thread count update validation failed for {name}={after}, value should"
        if after < 1:
            yield f"{text} be at least 1"
        elif after < before // 2:
            yield f"{text} be at least half the current value {before}"
        elif after > before * 2:
            yield f"{text} not be greater than double the current value {before}"


def valid_entries(config: Mapping[str, str], *, for_all: bool = False) -> Mapping[str, str]:
    """Return the valid values of dynamic settings in a broker's config."""
    return {name: text for name, text in config.items() if _is_usable(name, text, for_all)}


def _is_usable(name: str, text: str, for_all: bool) -> bool:
    declared = broker_setting(name)
    if declared is None or not declared.dynamic:
        return False
    if declared.dynamic_at_listener and (for_all or name == declared.name):
        return False
    try:
        _parse(name, text)
    except BadValueError:
        return False
    return True


def _parse(name: str, text: str) -> Any:
    declared = broker_setting(name)
    if declared is None:
        raise BadValueError(f"Unknown config name: {name}{unknown_name(name, _dynamic_names())}")
    try:
        value = declared.parse(text)
    except BadValueError as error:
        raise BadValueError(f"Invalid value {text} for configuration {name}: {error}") from None
    if declared.per_listener and isinstance(value, int) and value <= 0:
        # Zero would close every listener without its own value, so no client could revert it.
        # A properties file may set zero, as in Kafka.
        raise BadValueError(f"Invalid value {text} for configuration {name}: must be at least 1")
    return value


def _dynamic_names() -> Iterable[str]:
    return (name for name, declared in BROKER_SETTINGS.items() if declared.dynamic)
