"""Definition of a setting: name, type, default, scope, description and valid values.

Owns the class `Setting` and the registers of all settings; it must never know the values of a
running broker (see `minibroker.broker.settings.settings`).  The invariant: the defaults of a
setting are valid, checked when it is declared.  Echoes Kafka's ``ConfigDef.ConfigKey``.
"""

from __future__ import annotations

import enum
from dataclasses import KW_ONLY, dataclass
from typing import Any, Generic, TypeVar

from minibroker.broker.settings.types import MECHANISMS, BadValueError, Kind, SettingType, Valid

T = TypeVar("T")


class Scope(enum.Enum):
    """The type of resource that a setting applies to."""

    BROKER = "broker"
    TOPIC = "topic"
    GROUP = "group"
    CLIENT_METRICS = "client metrics"


LISTENER_PREFIX = "listener.name."

_REGISTERS: dict[Scope, dict[str, Setting[Any]]] = {scope: {} for scope in Scope}

BROKER_SETTINGS = _REGISTERS[Scope.BROKER]
"""All broker settings by name, in the order of the reference."""

TOPIC_SETTINGS = _REGISTERS[Scope.TOPIC]
"""All topic settings by name, in the order of the reference."""

GROUP_SETTINGS = _REGISTERS[Scope.GROUP]
"""All group configs by name, in the order of the reference; declared in ``groups``."""

CLIENT_METRICS_SETTINGS = _REGISTERS[Scope.CLIENT_METRICS]
"""All client metrics configs by name; declared in ``client_metrics``."""


@dataclass(frozen=True, eq=False)
class Setting(Generic[T]):
    """A setting, which is also the key for reading its value: one row of a table.

    A default of None is set at startup; the reference then shows ``default_text``.
    ``kafka_default`` is the default with ``--profile kafka``, None if it is the same.
    ``no_effect`` is the reason why the broker accepts and reports a value but does not use it;
    empty for all other settings.
    ``dynamic`` settings can be changed while the broker runs, for one broker or for all.
    ``per_listener`` settings can be set for one listener, as ``listener.name.<listener>.<name>``.
    ``per_mechanism`` settings can be set for one SASL mechanism of a listener; the mechanism's name
    precedes the setting's.  ``dynamic_at_listener`` settings can be changed while the broker runs,
    but only for one listener of one broker; they are ``dynamic``, too. ``per_broker`` settings
    cannot be changed for all brokers.
    """

    name: str
    type: SettingType[T]
    default: T
    valid: Valid[Any] | None = None
    _: KW_ONLY
    doc: str
    scope: Scope = Scope.BROKER
    kafka_default: T | None = None
    no_effect: str = ""
    default_text: str | None = None
    dynamic: bool = False
    per_listener: bool = False
    per_mechanism: bool = False
    dynamic_at_listener: bool = False
    per_broker: bool = False

    def __post_init__(self) -> None:
        """Check the defaults, and add the setting to its register."""
        for value in (self.default, self.kafka_default):
            if self.valid is not None and value is not None and not self.valid.check(value):
                raise ValueError(f"{self.name}: the default {value!r} is not {self.valid.text}")
        register = _REGISTERS[self.scope]
        if self.name in register:
            raise ValueError(f"{self.name} is declared twice")
        if self.dynamic_at_listener:
            object.__setattr__(self, "dynamic", True)
        register[self.name] = self

    @property
    def sensitive(self) -> bool:
        """Whether values are hidden from all output."""
        return self.type.kind is Kind.PASSWORD

    def parse(self, text: str) -> T:
        """Parse ``text``; raise `BadValueError` with the valid values."""
        value = self.type.parse(text.strip())
        if self.valid is not None and value is not None and not self.valid.check(value):
            raise BadValueError(f"must be {self.valid.text}")
        return value

    def render(self, value: T) -> str:
        return self.type.render(value)

    def __repr__(self) -> str:
        return f"<Setting {self.name}>"


def listener_name(listener: str, name: str) -> str:
    """Return the name of a setting for one listener: ``listener.name.internal.max.connections``."""
    return f"{LISTENER_PREFIX}{listener.lower()}.{name}"


def broker_setting(name: str) -> Setting[Any] | None:
    """Find a broker setting by its name, with or without a listener prefix; None if unknown."""
    if name in BROKER_SETTINGS:
        return BROKER_SETTINGS[name]
    if not name.startswith(LISTENER_PREFIX):
        return None
    _, _, base = name.removeprefix(LISTENER_PREFIX).partition(".")
    declared = BROKER_SETTINGS.get(base)
    if declared is not None:
        return declared if declared.per_listener else None
    mechanism, _, base = base.partition(".")
    declared = BROKER_SETTINGS.get(base)
    is_one = declared is not None and declared.per_mechanism and mechanism.upper() in MECHANISMS
    return declared if is_one else None
