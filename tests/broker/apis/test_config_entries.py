"""Precedence as clients see it: a topic's own value, the broker's settings, the defaults."""

from __future__ import annotations

from minibroker.broker.apis.config_entries import (
    ConfigEntry,
    ConfigSource,
    broker_entries,
    default_entries,
    topic_entries,
)
from minibroker.broker.settings import BROKER_SETTINGS, TOPIC_SETTINGS, Settings


def topic_entry(name: str, *pairs: str, **overrides: str) -> ConfigEntry:
    given = {key.replace("_", "."): value for key, value in overrides.items()}
    entries = topic_entries(Settings.from_sources(pairs=pairs), {}, given)
    return next(entry for entry in entries if entry.setting.name == name)


def broker_entry(name: str, *pairs: str, profile: str = "laptop") -> ConfigEntry:
    settings = Settings.from_sources(pairs=pairs, profile=profile)
    return next(entry for entry in broker_entries(settings, {}) if entry.setting.name == name)


def test_topic_default_has_broker_default_as_synonym() -> None:
    entry = topic_entry("retention.ms")
    assert (entry.value, entry.source) == ("604800000", ConfigSource.DEFAULT)
    assert entry.synonyms == (("log.retention.hours", "168", ConfigSource.DEFAULT),)


def test_static_broker_config_precedes_default_and_keeps_its_unit() -> None:
    entry = topic_entry("retention.ms", "log.retention.minutes=5")
    assert (entry.value, entry.source) == ("300000", ConfigSource.STATIC_BROKER)
    assert entry.synonyms == (
        ("log.retention.minutes", "5", ConfigSource.STATIC_BROKER),
        ("log.retention.hours", "168", ConfigSource.DEFAULT),
    )


def test_topic_config_is_first_of_its_synonyms() -> None:
    entry = topic_entry("retention.ms", "log.retention.ms=7", retention_ms="9")
    assert (entry.value, entry.source) == ("9", ConfigSource.TOPIC)
    assert [synonym.name for synonym in entry.synonyms] == [
        "retention.ms",
        "log.retention.ms",
        "log.retention.hours",
    ]


def test_topic_config_without_broker_synonym_uses_default() -> None:
    entry = topic_entry("segment.jitter.ms")
    assert (entry.value, entry.source, entry.synonyms) == ("0", ConfigSource.DEFAULT, ())


def test_broker_config_reports_its_source() -> None:
    entry = broker_entry("num.io.threads", "num.io.threads=5")
    assert (entry.value, entry.source) == ("5", ConfigSource.STATIC_BROKER)
    assert entry.synonyms == (
        ("num.io.threads", "5", ConfigSource.STATIC_BROKER),
        ("num.io.threads", "1", ConfigSource.DEFAULT),
    )
    entry = broker_entry("num.io.threads", profile="kafka")
    assert (entry.value, entry.source) == ("8", ConfigSource.DEFAULT)


def test_unset_broker_config_has_null_value() -> None:
    entry = broker_entry("log.retention.ms")
    assert (entry.value, entry.source, entry.synonyms) == (None, ConfigSource.DEFAULT, ())


def test_every_config_is_listed_once_sorted_by_name() -> None:
    settings = Settings.from_sources()
    assert [e.setting.name for e in broker_entries(settings, {})] == sorted(BROKER_SETTINGS)
    assert [e.setting.name for e in topic_entries(settings, {}, {})] == sorted(TOPIC_SETTINGS)


CHANGED = {
    ("brokers", "1"): {"log.retention.ms": "1", "listener.name.inside.max.connections": "2"},
    ("brokers", "<default>"): {"log.retention.ms": "3", "max.connections": "4", "bad": "5"},
}
STATIC = Settings.from_sources(pairs=["log.retention.ms=6", "log.retention.hours=7"])


def test_dynamic_broker_config_precedes_static_config() -> None:
    [entry] = [e for e in topic_entries(STATIC, CHANGED, {}) if e.name == "retention.ms"]
    assert (entry.value, entry.source) == ("1", ConfigSource.DYNAMIC_BROKER)
    assert entry.synonyms == (
        ("log.retention.ms", "1", ConfigSource.DYNAMIC_BROKER),
        ("log.retention.ms", "3", ConfigSource.DYNAMIC_DEFAULT_BROKER),
        ("log.retention.ms", "6", ConfigSource.STATIC_BROKER),
        ("log.retention.hours", "7", ConfigSource.STATIC_BROKER),
        ("log.retention.hours", "168", ConfigSource.DEFAULT),
    )
    [entry] = [e for e in broker_entries(STATIC, CHANGED) if e.name == "log.retention.ms"]
    assert [synonym.value for synonym in entry.synonyms] == ["1", "3", "6"]
    assert entry.value == "1"


def test_listener_config_has_broker_config_as_synonym() -> None:
    name = "listener.name.inside.max.connections"
    [entry] = [e for e in broker_entries(STATIC, CHANGED) if e.name == name]
    assert (entry.value, entry.source) == ("2", ConfigSource.DYNAMIC_BROKER)
    assert entry.synonyms == (
        (name, "2", ConfigSource.DYNAMIC_BROKER),
        ("max.connections", "4", ConfigSource.DYNAMIC_DEFAULT_BROKER),
        ("max.connections", "2147483647", ConfigSource.DEFAULT),
    )


def test_default_broker_entries_are_only_dynamic_default_configs() -> None:
    assert [(e.name, e.value, e.source) for e in default_entries(STATIC, CHANGED)] == [
        ("log.retention.ms", "3", ConfigSource.DYNAMIC_DEFAULT_BROKER),
        ("max.connections", "4", ConfigSource.DYNAMIC_DEFAULT_BROKER),
    ]
