"""Subscriptions: which clients they match, and how several are combined."""

from __future__ import annotations

import pytest

from minibroker.broker.telemetry.subscriptions import (
    TelemetryProperties,
    read_subscriptions,
    select,
)

CLIENT = TelemetryProperties("id-1", "app-7", "apache-kafka-java", "4.4.0", "10.0.0.1", "5000")


def metrics_of(*configs: dict[str, str], client: TelemetryProperties = CLIENT) -> tuple[str, ...]:
    return select(read_subscriptions(configs), client).metrics


@pytest.mark.parametrize(
    ("match", "is_match"),
    [
        ("", True),
        ("client_id=app-.*", True),
        ("client_id=app", False),
        ("client_id=app-.*,client_software_name=librdkafka", False),
        ("client_software_name=apache.*,client_software_version=4\\..*", True),
        ("client_source_address=10\\.0\\.0\\.[0-9]+,client_source_port=5000", True),
        ("client_instance_id=id-2", False),
    ],
)
def test_all_patterns_must_match_the_whole_property(match: str, is_match: bool) -> None:
    assert metrics_of({"metrics": "a", "match": match}) == (("a",) if is_match else ())


def test_matching_subscriptions_are_combined() -> None:
    configs = (
        {"metrics": "b,a", "interval.ms": "2000"},
        {"metrics": "c,a", "interval.ms": "1000"},
        {"metrics": "d", "interval.ms": "500", "match": "client_id=other"},
    )
    selection = select(read_subscriptions(configs), CLIENT)
    assert (selection.metrics, selection.interval_ms) == (("a", "b", "c"), 1000)
    assert metrics_of(*configs, {"metrics": "*"}) == ("*",)


def test_client_without_subscription_pushes_nothing_at_the_default_interval() -> None:
    selection = select((), CLIENT)
    assert (selection.metrics, selection.interval_ms) == ((), 300_000)
    longer = select(read_subscriptions([{"interval.ms": "3600000"}]), CLIENT)
    assert longer.interval_ms == 300_000


def test_subscription_id_depends_on_metrics_interval_and_client() -> None:
    one = read_subscriptions([{"metrics": "a"}])
    ids = {
        select(one, CLIENT).subscription_id,
        select((), CLIENT).subscription_id,
        select(read_subscriptions([{"metrics": "a", "interval.ms": "5"}]), CLIENT).subscription_id,
        select(one, CLIENT._replace(client_instance_id="id-2")).subscription_id,
    }
    assert len(ids) == 4
    assert all(-(2**31) <= one_id < 2**31 for one_id in ids)


def test_invalid_config_is_ignored() -> None:
    assert read_subscriptions([{"interval.ms": "x"}, {"match": "client_id"}]) == ()
