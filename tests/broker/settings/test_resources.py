"""Configs of groups: names, values and bounds are Kafka's."""

from __future__ import annotations

import pytest

from minibroker.broker.settings import Settings
from minibroker.broker.settings.resources import (
    InvalidSubscription,
    broker_synonym,
    check_client_metrics,
    default_of,
    group_problem,
    is_described,
    parse_match,
)
from minibroker.broker.settings.setting import GROUP_SETTINGS, BadValueError

SETTINGS = Settings.from_sources()
SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (SESSION, "60000"),
        (HEARTBEAT, "15000"),
        ("consumer.assignment.interval.ms", "0"),
        ("share.auto.offset.reset", "earliest"),
        ("share.auto.offset.reset", "by_duration:PT1H"),
        ("share.auto.offset.reset", "by_duration:P1DT2H3M4.5S"),
        ("share.isolation.level", "read_committed"),
        ("share.delivery.count.limit", "10"),
        ("streams.num.standby.replicas", "2"),
        ("streams.rack.aware.assignment.tags", "zone, rack"),
        ("streams.assignor.name", "sticky"),
        ("errors.deadletterqueue.topic.name", "dlq"),
    ],
)
def test_valid_group_config_is_accepted(name: str, text: str) -> None:
    assert group_problem(SETTINGS, {name: text}) is None


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("no.such", "1", "Unknown group config name: no.such"),
        (SESSION, "44999", "in the range 45000 to 60000"),
        (SESSION, "60001", "in the range 45000 to 60000"),
        (SESSION, "many", "Invalid value many for configuration"),
        (HEARTBEAT, "4999", "in the range 5000 to 15000"),
        ("share.delivery.count.limit", "1", "must be at least 2"),
        ("share.delivery.count.limit", "11", "in the range 2 to 10"),
        ("share.auto.offset.reset", "never", "Invalid value never"),
        ("share.auto.offset.reset", "by_duration:-PT1H", "Invalid value"),
        ("share.auto.offset.reset", "by_duration:P", "Invalid value"),
        ("share.auto.offset.reset", "by_duration:PT", "Invalid value"),
        ("share.isolation.level", "serializable", "Invalid value"),
        ("streams.num.standby.replicas", "3", "in the range 0 to 2"),
        ("streams.task.offset.interval.ms", "14999", "must be in the range 15000"),
        ("streams.rack.aware.assignment.tags", "a, a", "duplicate tag keys"),
        ("streams.assignor.name", "none", "is not a registered task assignor"),
        ("errors.deadletterqueue.topic.name", "__dlq", "must not start with '__'"),
    ],
)
def test_invalid_group_config_is_rejected(name: str, text: str, words: str) -> None:
    assert words in str(group_problem(SETTINGS, {name: text}))


def test_session_must_exceed_heartbeat() -> None:
    assert group_problem(SETTINGS, {SESSION: "45000", HEARTBEAT: "15000"}) is None
    wide = Settings.from_sources(pairs=["group.min.session.timeout.ms=1"])
    assert group_problem(wide, {}) is None


def test_default_without_a_supported_broker_setting_is_kafkas() -> None:
    assert default_of(SETTINGS, GROUP_SETTINGS["share.record.lock.duration.ms"]) == 30_000


def test_broker_synonyms_are_kafkas() -> None:
    assert broker_synonym(SESSION) == f"group.{SESSION}"
    assert broker_synonym("streams.assignor.name") == "group.streams.assignors"
    assert broker_synonym("share.auto.offset.reset") is None


def test_internal_config_is_described_only_if_set() -> None:
    name = "consumer.assignor.offload.enable"
    assert not is_described(name, {})
    assert is_described(name, {name: "true"})
    assert is_described(SESSION, {})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("metrics", "org.apache.kafka.producer.,org.apache.kafka.consumer."),
        ("metrics", "*"),
        ("metrics", ""),
        ("interval.ms", "100"),
        ("interval.ms", "3600000"),
        ("match", "client_id=app.*, client_software_version=3\\.[0-9]"),
    ],
)
def test_valid_client_metrics_are_accepted(name: str, text: str) -> None:
    check_client_metrics({name: text})


@pytest.mark.parametrize(
    ("name", "text"), [("no.such", "1"), ("interval.ms", "99"), ("interval.ms", "3600001")]
)
def test_invalid_subscription_is_rejected(name: str, text: str) -> None:
    with pytest.raises(InvalidSubscription):
        check_client_metrics({name: text})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("interval.ms", "soon"),
        ("match", "client_id"),
        ("match", "client_id=a=b"),
        ("match", "client_id=[a"),
        ("match", "color=red"),
        ("match", "client_id=" + "a" * 600),
        ("match", "client_id="),
        ("match", r"client_id=(a)\1"),
        ("match", "client_id=(?!a).*"),
        ("match", "client_id=(a{100}){6}"),
    ],
)
def test_invalid_value_of_client_metrics_is_rejected(name: str, text: str) -> None:
    with pytest.raises(BadValueError, match=r"soon|Illegal client matching pattern"):
        check_client_metrics({name: text})


def test_patterns_are_found_by_what_they_select() -> None:
    found = parse_match(("client_id = app-[0-9]+ ",))
    assert found["client_id"].matches("app-12")
    assert not found["client_id"].matches("my-app-12")
