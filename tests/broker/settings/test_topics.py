"""Settings of topics: overrides, the broker's stand-ins with their units, and refusals."""

from __future__ import annotations

import pytest

from minibroker.broker.settings import BROKER_SETTINGS, TOPIC_SETTINGS, Settings, topics
from minibroker.broker.settings.setting import LONG_MAX, BadValueError
from minibroker.broker.settings.topics import TopicConfig, parse_topic_value, topic_config


def in_force(*pairs: str, **overrides: str) -> TopicConfig:
    named = {name.replace("_", "."): value for name, value in overrides.items()}
    return topic_config(Settings.from_sources(pairs=pairs), named)


def test_topic_defaults_match_kafka() -> None:
    config = in_force()
    assert config[topics.RETENTION_MS] == 7 * 24 * 3_600_000
    assert config[topics.RETENTION_BYTES] == -1
    assert config[topics.SEGMENT_BYTES] == 1 << 30
    assert config[topics.SEGMENT_MS] == 7 * 24 * 3_600_000
    assert config[topics.MAX_MESSAGE_BYTES] == 1_048_588
    assert config[topics.CLEANUP_POLICY] == ("delete",)
    assert config[topics.FLUSH_MS] == LONG_MAX


def test_topic_override_precedes_broker_config() -> None:
    config = in_force("log.retention.ms=9", retention_ms="5")
    assert config[topics.RETENTION_MS] == 5


def test_retention_with_several_units_uses_the_finest() -> None:
    assert in_force("log.retention.hours=2")[topics.RETENTION_MS] == 7_200_000
    assert in_force("log.retention.hours=2", "log.retention.minutes=3")[topics.RETENTION_MS] == (
        180_000
    )
    assert in_force("log.retention.minutes=3", "log.retention.ms=4")[topics.RETENTION_MS] == 4
    assert in_force("log.roll.hours=1")[topics.SEGMENT_MS] == 3_600_000


def test_unlimited_retention_in_hours_is_unlimited_in_ms() -> None:
    assert in_force("log.retention.hours=-1")[topics.RETENTION_MS] == -1


def test_unset_flush_interval_uses_scheduler_interval() -> None:
    assert in_force("log.flush.scheduler.interval.ms=50")[topics.FLUSH_MS] == 50
    config = in_force("log.flush.scheduler.interval.ms=50", "log.flush.interval.ms=20")
    assert config[topics.FLUSH_MS] == 20


def test_every_topic_config_value_round_trips() -> None:
    config = in_force()
    for declared in TOPIC_SETTINGS.values():
        assert declared.parse(declared.render(config[declared])) == config[declared]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("retention.m", "5", r"Unknown topic config name: retention.m; did you mean retention.ms"),
        ("retention.ms", None, "Null value not supported for topic config: retention.ms"),
        ("retention.ms", "-2", "Invalid value -2 for configuration retention.ms: must be at least"),
        ("cleanup.policy", "shred", "must be a list of compact, delete"),
    ],
)
def test_invalid_topic_config_is_rejected_with_kafka_message(
    name: str, text: str | None, message: str
) -> None:
    with pytest.raises(BadValueError, match=message):
        parse_topic_value(name, text)


def test_retention_of_a_topic_may_be_0_unlike_that_of_the_broker() -> None:
    assert parse_topic_value("retention.ms", "0") == 0
    for name in ("log.retention.ms", "log.retention.minutes", "log.retention.hours"):
        with pytest.raises(BadValueError):
            BROKER_SETTINGS[name].parse("0")
        assert BROKER_SETTINGS[name].parse("-1") == -1
