"""Settings as clients see them: value, type, where it came from, and what stood behind it.

Owns the order of precedence that DescribeConfigs and CreateTopics show; it must never know either
message.  The invariant: the first synonym of an entry, if there is one, is where its value came
from.  Echoes Kafka's ``ConfigHelper``.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from minibroker.config import BROKER_SETTINGS, TOPIC_SETTINGS, Setting, Settings
from minibroker.config.topics import synonyms_of, topic_value


class Source(enum.IntEnum):
    """Where a value was set, with Kafka's numbers."""

    TOPIC = 1
    STATIC_BROKER = 4
    DEFAULT = 5


class Synonym(NamedTuple):
    """A setting that has a say in a value; ``value`` is in that setting's own unit."""

    name: str
    value: str
    source: Source


class Entry(NamedTuple):
    """One setting with the value in force, None if it has none."""

    setting: Setting[Any]
    value: str | None
    source: Source
    synonyms: tuple[Synonym, ...]


def topic_entries(settings: Settings, overrides: Mapping[str, str]) -> Iterator[Entry]:
    """Every setting of a topic, by name, for a topic with these overrides."""
    for name in sorted(TOPIC_SETTINGS):
        setting = TOPIC_SETTINGS[name]
        value = setting.render(topic_value(settings, overrides, setting))
        synonyms = tuple(_topic_synonyms(settings, setting))
        if name in overrides:
            synonyms = (Synonym(name, value, Source.TOPIC), *synonyms)
        source = synonyms[0].source if synonyms else Source.DEFAULT
        yield Entry(setting, value, source, synonyms)


def broker_entries(settings: Settings) -> Iterator[Entry]:
    """Every setting of the broker, by name."""
    for name in sorted(BROKER_SETTINGS):
        setting = BROKER_SETTINGS[name]
        value = settings[setting]
        text = None if value is None else setting.render(value)
        synonyms = tuple(_broker_synonyms(settings, setting))
        source = synonyms[0].source if synonyms else Source.DEFAULT
        yield Entry(setting, text, source, synonyms)


def _topic_synonyms(settings: Settings, setting: Setting[Any]) -> Iterator[Synonym]:
    """What was given for any of the broker's stand-ins, then their defaults."""
    found = [
        synonym
        for stand_in in synonyms_of(setting)
        for synonym in _broker_synonyms(settings, stand_in.setting)
    ]
    for source in (Source.STATIC_BROKER, Source.DEFAULT):
        yield from (synonym for synonym in found if synonym.source == source)


def _broker_synonyms(settings: Settings, setting: Setting[Any]) -> Iterator[Synonym]:
    if settings.is_given(setting) and settings[setting] is not None:
        yield Synonym(setting.name, setting.render(settings[setting]), Source.STATIC_BROKER)
    default = settings.default(setting)
    if default is not None:
        yield Synonym(setting.name, setting.render(default), Source.DEFAULT)
