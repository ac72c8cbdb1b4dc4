"""The setting behind a decision is named as one would write it."""

from __future__ import annotations

import pytest

from minibroker.broker.admission.connection_events import ExceededLimit
from minibroker.broker.admission.limit_names import (
    count_limit,
    override_hosts,
    quota_hosts,
    rate_limit,
    rate_setting,
    slot_setting,
)
from minibroker.broker.connections.counts import ConnectionCountLimits, ExceededCount
from minibroker.broker.connections.rates import ConnectionRateLimits
from minibroker.broker.settings import Settings

OWN = Settings.from_sources(
    pairs=[
        "listeners=INSIDE://:9092,OUTSIDE://:9093",
        "listener.name.outside.max.connections=5",
        "listener.name.outside.max.connection.creation.rate=6",
    ]
)
COUNTS = ConnectionCountLimits(
    per_ip=7,
    per_ip_overrides={"10.0.0.1": 1},
    drop_total=8,
    drop_per_ip=9,
    drop_overrides={"10.0.0.1": 2},
)


@pytest.mark.parametrize(
    ("refusal", "ip", "met"),
    [
        (ExceededCount.DROPPED, "10.0.0.1", ExceededLimit("kafka_connections_max", 8)),
        (
            ExceededCount.DROPPED_PER_IP,
            "10.0.0.2",
            ExceededLimit("kafka_connections_max_per_ip", 9),
        ),
        (
            ExceededCount.DROPPED_PER_IP,
            "10.0.0.1",
            ExceededLimit("kafka_connections_max_overrides", 2, "10.0.0.1"),
        ),
        (ExceededCount.PER_IP, "10.0.0.2", ExceededLimit("max.connections.per.ip", 7)),
        (
            ExceededCount.PER_IP,
            "10.0.0.1",
            ExceededLimit("max.connections.per.ip.overrides", 1, "10.0.0.1"),
        ),
    ],
)
def test_override_is_distinguished_from_the_default(
    refusal: ExceededCount, ip: str, met: ExceededLimit
) -> None:
    assert count_limit(COUNTS, refusal, ip) == met


def test_quota_of_address_is_distinguished_from_the_default() -> None:
    limits = ConnectionRateLimits(ips={"10.0.0.1": 2.5}, ip_default=4)
    own = ExceededLimit("connection_creation_rate", 2.5, "10.0.0.1")
    assert rate_limit(limits, "10.0.0.1") == own
    assert rate_limit(limits, "10.0.0.2") == ExceededLimit(
        "connection_creation_rate", 4, "<default>"
    )


def test_host_has_the_name_used_in_its_limit() -> None:
    known = {"here.test": ["10.0.0.1", "::ffff:10.0.0.2"], "::1": ["::1"]}
    pair = "max.connections.per.ip.overrides=here.test:1,[::1]:2"
    assert override_hosts(Settings.from_sources(pairs=[pair]), known.__getitem__) == {
        "10.0.0.1": "here.test",
        "10.0.0.2": "here.test",
    }
    configs: dict[tuple[str, str], dict[str, str]]
    configs = {("ips", "here.test"): {}, ("ips", "::1"): {}, ("brokers", "1"): {}}
    hosts = quota_hosts(configs, known.__getitem__)
    limits = ConnectionRateLimits(ips={"10.0.0.2": 2})
    assert rate_limit(limits, "10.0.0.2", hosts).whose == "here.test"
    assert count_limit(COUNTS, ExceededCount.PER_IP, "10.0.0.1", hosts).whose == "here.test"
    dropped = count_limit(COUNTS, ExceededCount.DROPPED_PER_IP, "10.0.0.1", hosts)
    assert dropped.whose == "10.0.0.1"  # those can't be given by name


def test_rejection_names_listener_limit_if_it_applied() -> None:
    assert slot_setting(OWN, "OUTSIDE", own=True) == "listener.name.outside.max.connections"
    assert slot_setting(OWN, "OUTSIDE", own=False) == "max.connections"
    assert slot_setting(OWN, "INSIDE", own=True) == "max.connections"
    rate = "max.connection.creation.rate"
    assert rate_setting(OWN, "OUTSIDE", own=True) == f"listener.name.outside.{rate}"
    assert rate_setting(OWN, "OUTSIDE", own=False) == rate
    assert rate_setting(OWN, "INSIDE", own=True) == rate
