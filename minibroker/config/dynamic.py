"""The settings in force once what was changed while the broker runs is laid over the static ones.

Owns the order of precedence between the config of this broker, the one of all brokers, what the
broker was started with, and the defaults; it must never know where configs are kept or who follows
them.  The invariant: a value that is no valid one, or of a setting that cannot change, is passed
over, so what came in by another hand than this broker's can stop nobody.  Echoes Kafka's
``DynamicBrokerConfig``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from minibroker.config.connection_definitions import ACCEPTOR_MODE, ONE_ACCEPTOR_ONLY, SHARDED
from minibroker.config.definitions import NODE_ID
from minibroker.config.setting import BROKER_SETTINGS, Setting, broker_setting, listener_name
from minibroker.config.settings import Settings, unknown_name
from minibroker.config.types import BadValueError

T = TypeVar("T")

BROKERS = "brokers"
"""The kind of a broker's config: the first half of a key of `Configs`."""

DEFAULT_NAME = "<default>"
"""The name under which what holds for all of a kind is kept."""

Configs = Mapping[tuple[str, str], Mapping[str, str]]
"""What was set for resources, by kind and name."""

DYNAMIC_SOURCE = "changed while running"

_NOTHING: Mapping[str, str] = {}
_NO_CONFIGS: Configs = {}


class Layers(NamedTuple):
    """What was changed for this broker, and for all brokers: only what is valid, as it was set."""

    own: Mapping[str, str]
    default: Mapping[str, str]


def layers(settings: Settings, configs: Configs) -> Layers:
    """The changes that concern the broker that has these static settings."""
    own = configs.get((BROKERS, str(settings[NODE_ID])), _NOTHING)
    default = configs.get((BROKERS, DEFAULT_NAME), _NOTHING)
    return Layers(usable(own), usable(default, for_all=True))


def effective(settings: Settings, configs: Configs) -> Settings:
    """The settings in force; the very same object if nothing was changed."""
    own, default = layers(settings, configs)
    changed = {**default, **own}
    if settings[ACCEPTOR_MODE] == SHARDED:
        # Other hands may have set what nobody holds in this mode.
        changed = {n: t for n, t in changed.items() if broker_setting(n) not in ONE_ACCEPTOR_ONLY}
    if not changed:
        return settings
    values = {name: _parse(name, text) for name, text in changed.items()}
    return settings.replaced(values, DYNAMIC_SOURCE)


class InForce:
    """`effective` for who asks with each request: nothing is parsed while the configs are the same.

    Such configs never change, so others are another mapping, as an image's are.
    """

    def __init__(self, settings: Settings) -> None:
        self._static = settings
        self._configs: Configs = _NO_CONFIGS
        self._newest = settings

    def of(self, configs: Configs) -> Settings:
        """The settings in force by these configs."""
        if configs is not self._configs:
            self._newest = effective(self._static, configs)
            self._configs = configs
        return self._newest


def listener_value(settings: Settings, listener: str, key: Setting[T]) -> T:
    """The value for one listener, which is the broker's unless it was given for that listener."""
    return settings.at_listener(listener, key)


def problems(settings: Settings, changed: Mapping[str, str]) -> Iterator[str]:
    """Why these texts, by name, cannot be laid over ``settings``: sentences, none if they can."""
    bad = list(bad_values(changed))
    yield from bad
    if not bad:
        values = {name: _parse(name, text) for name, text in changed.items()}
        yield from settings.replaced(values, DYNAMIC_SOURCE).problems()


def bad_values(changed: Mapping[str, str], *, for_all: bool = False) -> Iterator[str]:
    """The same of each for itself; ``for_all`` are those of all brokers at once."""
    known = {name: declared for name in sorted(changed) if (declared := broker_setting(name))}
    if fixed := [name for name, declared in known.items() if not declared.dynamic]:
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
    if for_all and secured:
        text = "Cannot update these configs at default cluster level, broker id must be specified"
        yield f"{text}: {', '.join(secured)}"


def usable(config: Mapping[str, str], *, for_all: bool = False) -> Mapping[str, str]:
    """What of a broker's config is valid and may change while it runs."""
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
        # None at all would shut every listener that has no value of its own, and nobody could open
        # it again through it; a value of a file may do so, as Kafka's may.
        raise BadValueError(f"Invalid value {text} for configuration {name}: must be at least 1")
    return value


def _dynamic_names() -> Iterable[str]:
    return (name for name, declared in BROKER_SETTINGS.items() if declared.dynamic)
