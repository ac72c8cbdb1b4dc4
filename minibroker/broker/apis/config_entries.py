"""Configs as clients see them: value, type, source and synonyms.

Defines the order of precedence that DescribeConfigs and CreateTopics show, independently of both
messages. Invariant: the first synonym of an entry, if there is one, is the source of its value.
In Kafka: ``ConfigHelper``.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from minibroker.broker.settings import BROKER_SETTINGS, TOPIC_SETTINGS, Setting, Settings, groups
from minibroker.broker.settings.dynamic import Configs, DynamicConfigs, effective, layers
from minibroker.broker.settings.setting import (
    CLIENT_METRICS_SETTINGS,
    GROUP_SETTINGS,
    broker_setting,
)
from minibroker.broker.settings.topics import synonyms_of, topic_value


class ConfigSource(enum.IntEnum):
    """Where a value was set, with Kafka's numbers."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


class ConfigEntrySynonym(NamedTuple):
    """A setting that can determine a value, in its own unit; the value is None if sensitive."""

    name: str
    value: str | None
    source: ConfigSource


class ConfigEntry(NamedTuple):
    """One setting with its current value, which is None if it is unset or sensitive.

    ``name`` is the name of the setting, with the listener prefix if it was set for one listener.
    """

    name: str
    setting: Setting[Any]
    value: str | None
    source: ConfigSource
    synonyms: tuple[ConfigEntrySynonym, ...]


def topic_entries(
    settings: Settings, configs: Configs, overrides: Mapping[str, str]
) -> Iterator[ConfigEntry]:
    """Every setting of a topic with these overrides, by name.

    ``settings`` are those that the broker was started with, ``configs`` the dynamic changes.
    """
    changed = layers(settings, configs)
    settings_now = effective(settings, configs)
    for name in sorted(TOPIC_SETTINGS):
        setting = TOPIC_SETTINGS[name]
        value = setting.render(topic_value(settings_now, overrides, setting))
        synonyms = tuple(_topic_synonyms(settings, changed, setting))
        if name in overrides:
            synonyms = (ConfigEntrySynonym(name, value, ConfigSource.TOPIC), *synonyms)
        yield _entry(name, setting, value, synonyms)


def broker_entries(settings: Settings, configs: Configs) -> Iterator[ConfigEntry]:
    """Every setting of the broker, by name, and the settings of single listeners."""
    changed = layers(settings, configs)
    settings_now = effective(settings, configs)
    for name in sorted({*BROKER_SETTINGS, *settings_now.given}):
        setting = broker_setting(name)
        assert setting is not None
        value = None if setting.sensitive else settings_now.text(name)
        yield _entry(name, setting, value, tuple(_broker_synonyms(settings, changed, name)))


def default_entries(settings: Settings, configs: Configs) -> Iterator[ConfigEntry]:
    """Dynamic defaults of all brokers, by name."""
    for name, text in sorted(layers(settings, configs).default.items()):
        setting = broker_setting(name)
        assert setting is not None
        value = setting.render(setting.parse(text))
        own = ConfigEntrySynonym(name, value, ConfigSource.DYNAMIC_DEFAULT_BROKER)
        yield _entry(name, setting, value, (own,))


def group_entries(
    settings: Settings, configs: Configs, overrides: Mapping[str, str]
) -> Iterator[ConfigEntry]:
    """Every config of a group with these overrides; the broker's settings are the defaults."""
    in_force = effective(settings, configs)
    for name, declared in GROUP_SETTINGS.items():
        if not groups.is_described(name, overrides):
            continue
        default = declared.render(groups.default_of(in_force, declared))
        synonym = ConfigEntrySynonym(
            groups.broker_synonym(name) or name, default, ConfigSource.DEFAULT
        )
        own = ConfigEntrySynonym(name, overrides.get(name), ConfigSource.GROUP)
        synonyms = (own, synonym) if name in overrides else (synonym,)
        yield _entry(name, declared, synonyms[0].value, synonyms)


def client_metrics_entries(overrides: Mapping[str, str]) -> Iterator[ConfigEntry]:
    """Every config of client metrics with these overrides."""
    for name, declared in CLIENT_METRICS_SETTINGS.items():
        value = overrides.get(name, declared.render(declared.default))
        own = ConfigEntrySynonym(name, value, ConfigSource.CLIENT_METRICS)
        yield _entry(name, declared, value, (own,) if name in overrides else ())


def _entry(
    name: str, setting: Setting[Any], value: str | None, synonyms: tuple[ConfigEntrySynonym, ...]
) -> ConfigEntry:
    source = synonyms[0].source if synonyms else ConfigSource.DEFAULT
    return ConfigEntry(name, setting, value, source, synonyms)


def _topic_synonyms(
    settings: Settings, changed: DynamicConfigs, setting: Setting[Any]
) -> Iterator[ConfigEntrySynonym]:
    """Values of the broker settings that a topic falls back to, by precedence of the source."""
    found = [
        synonym
        for stand_in in synonyms_of(setting)
        for synonym in _broker_synonyms(settings, changed, stand_in.setting.name)
    ]
    # Sorting is stable: the synonyms of one source keep their order.
    yield from sorted(found, key=lambda synonym: synonym.source)


def _broker_synonyms(
    settings: Settings, changed: DynamicConfigs, name: str
) -> Iterator[ConfigEntrySynonym]:
    setting = broker_setting(name)
    assert setting is not None
    for known in dict.fromkeys((name, setting.name)):
        yield from _sources(settings, changed, known)


def _sources(
    settings: Settings, changed: DynamicConfigs, name: str
) -> Iterator[ConfigEntrySynonym]:
    """Values of one name in each source; a name with a listener prefix has no default."""
    setting = broker_setting(name)
    assert setting is not None
    dynamic = (
        (ConfigSource.DYNAMIC_BROKER, changed.own),
        (ConfigSource.DYNAMIC_DEFAULT_BROKER, changed.default),
    )
    for source, config in dynamic:
        if name in config:
            yield ConfigEntrySynonym(name, _shown(setting, setting.parse(config[name])), source)
    static = settings.text(name) if name in settings.given else None
    if static is not None:
        yield ConfigEntrySynonym(
            name, _shown(setting, setting.parse(static)), ConfigSource.STATIC_BROKER
        )
    default = settings.default(setting)
    if default is not None and name == setting.name:
        yield ConfigEntrySynonym(name, _shown(setting, default), ConfigSource.DEFAULT)


def _shown(setting: Setting[Any], value: object) -> str | None:
    return None if setting.sensitive else setting.render(value)
