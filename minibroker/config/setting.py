"""What a setting is: name, type, default, scope, description, and the rule its values obey.

Owns the class `Setting` and the register of all of them; it must never know which values a
running broker has (that is `minibroker.config.settings`).  The invariant: a setting's defaults
fulfil its own rule, checked when it is declared.  Echoes Kafka's ``ConfigDef.ConfigKey``.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from minibroker.config.types import BadValueError, Kind, SettingType, Valid

T = TypeVar("T")


class Scope(enum.Enum):
    """Where a setting may be given."""

    BROKER = "broker"
    TOPIC = "topic"


@dataclass(frozen=True, eq=False)
class Setting(Generic[T]):
    """One setting, declared once; used as the key that reads its value.

    ``kafka_default`` is the value under ``--profile kafka``.  ``no_effect`` says why a value is
    accepted and reported although nothing acts on it; empty for every setting that does something.
    ``dynamic`` settings may be changed while the broker runs, for one broker or for all; those
    ``per_listener`` may also be given for one listener, as ``listener.name.<listener>.<name>``,
    and those ``per_mechanism`` for one of its SASL mechanisms, whose name then precedes theirs.
    Those with ``dynamic_at_listener`` change while the broker runs only so, and for one broker.
    """

    name: str
    type: SettingType[T]
    default: T
    kafka_default: T
    scope: Scope
    doc: str
    valid: Valid[Any] | None
    no_effect: str
    default_text: str | None
    dynamic: bool = False
    per_listener: bool = False
    per_mechanism: bool = False
    dynamic_at_listener: bool = False

    @property
    def sensitive(self) -> bool:
        """Whether its values are shown to nobody."""
        return self.type.kind is Kind.PASSWORD

    def parse(self, text: str) -> T:
        """The value written as ``text``; raises `BadValueError` with what would be valid."""
        value = self.type.parse(text.strip())
        if self.valid is not None and value is not None and not self.valid.check(value):
            raise BadValueError(f"must be {self.valid.text}")
        return value

    def render(self, value: T) -> str:
        return self.type.render(value)

    def __repr__(self) -> str:
        return f"<Setting {self.name}>"


LISTENER_PREFIX = "listener.name."

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
"""The mechanisms of SASL that are served."""

_REGISTERS: dict[Scope, dict[str, Setting[Any]]] = {scope: {} for scope in Scope}

BROKER_SETTINGS = _REGISTERS[Scope.BROKER]
"""Every setting of the broker by name, in the order of the reference."""

TOPIC_SETTINGS = _REGISTERS[Scope.TOPIC]
"""Every setting of a topic by name, in the order of the reference."""


def setting(
    name: str,
    type: SettingType[T],  # noqa: A002 - it is what the word means here
    *,
    default: T,
    doc: str,
    scope: Scope = Scope.BROKER,
    valid: Valid[Any] | None = None,
    kafka_default: T | None = None,
    no_effect: str = "",
    default_text: str | None = None,
    dynamic: bool = False,
    per_listener: bool = False,
    per_mechanism: bool = False,
    dynamic_at_listener: bool = False,
) -> Setting[T]:
    """Declare a setting and enter it into its register.

    ``kafka_default`` is left out where it equals ``default``; ``default_text`` is what the
    reference shows where the default is None, which means «worked out at the start».
    """
    for value in (default, kafka_default):
        if valid is not None and value is not None and not valid.check(value):
            raise ValueError(f"{name}: the default {value!r} is not {valid.text}")
    register = _REGISTERS[scope]
    if name in register:
        raise ValueError(f"{name} is declared twice")
    declared = Setting(
        name=name,
        type=type,
        default=default,
        kafka_default=default if kafka_default is None else kafka_default,
        scope=scope,
        doc=doc,
        valid=valid,
        no_effect=no_effect,
        default_text=default_text,
        dynamic=dynamic or dynamic_at_listener,
        per_listener=per_listener,
        per_mechanism=per_mechanism,
        dynamic_at_listener=dynamic_at_listener,
    )
    register[name] = declared
    return declared


def listener_name(listener: str, name: str) -> str:
    """What a setting is called for one listener: ``listener.name.internal.max.connections``."""
    return f"{LISTENER_PREFIX}{listener.lower()}.{name}"


def broker_setting(name: str) -> Setting[Any] | None:
    """The broker's setting of this name, be it for one listener or for all; None for neither."""
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
