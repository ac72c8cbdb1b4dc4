"""Which limits follow from which settings, and which setting caused a rejection."""

from __future__ import annotations

import pytest

from minibroker.broker.admission.connection_events import ExceededLimit
from minibroker.broker.admission.connection_limits import (
    count_limit,
    count_limits,
    drop_limits,
    hosts_of,
    override_hosts,
    protected_listener,
    quota_hosts,
    rate_limit,
    rate_limits,
    rate_setting,
    slot_setting,
)
from minibroker.broker.connections.counts import ConnectionCountLimits, ExceededCount
from minibroker.broker.connections.rates import ConnectionRateLimits
from minibroker.broker.settings import Settings

LISTENERS = ["PLAINTEXT", "INTERNAL"]
TWO = "listeners=PLAINTEXT://:9092,INTERNAL://:9093"
MAP = "listener.security.protocol.map=INTERNAL:PLAINTEXT"


def made(*pairs: str) -> Settings:
    return Settings.from_sources(pairs=[TWO, MAP, *pairs])


def find(host: str) -> list[str]:
    known = {"two.example": ["10.0.0.2", "::ffff:10.0.0.3"], "no.such": []}
    return known.get(host, [host])


def test_listener_inherits_broker_limit_unless_set() -> None:
    settings = made("max.connections=5", "listener.name.internal.max.connections=3")
    limits = count_limits(settings, LISTENERS, find)
    assert limits.total == limits.of_listener("PLAINTEXT") == 5
    assert limits.of_listener("INTERNAL") == 3
    settings = made(
        "max.connection.creation.rate=5", "listener.name.internal.max.connection.creation.rate=3"
    )
    rates = rate_limits(settings, {}, LISTENERS, find)
    assert rates.total == rates.of_listener("PLAINTEXT") == 5
    assert rates.of_listener("INTERNAL") == 3


def test_inter_broker_listener_is_protected_only_with_other_listeners() -> None:
    assert protected_listener(made(), LISTENERS) == "PLAINTEXT"
    settings = made("inter.broker.listener.name=internal")
    assert protected_listener(settings, LISTENERS) == "INTERNAL"
    assert protected_listener(settings, ["INTERNAL"]) is None
    assert protected_listener(made(), ["A", "B"]) is None


def test_hosts_are_resolved_and_unknown_ones_skipped() -> None:
    overrides = "max.connections.per.ip.overrides=two.example:2,::FFFF:10.0.0.4:4,::1:6,no.such:1"
    limits = count_limits(made(overrides), LISTENERS, find)
    assert limits.per_ip_overrides == {"10.0.0.2": 2, "10.0.0.3": 2, "10.0.0.4": 4, "::1": 6}


def test_redpandas_settings_are_limits_of_their_own() -> None:
    settings = made("kafka_connections_max=9", "kafka_connections_max_overrides=10.0.0.1:1")
    limits = count_limits(settings, LISTENERS, find)
    assert (limits.drop_total, limits.drop_per_ip) == (9, None)
    assert limits.drop_overrides == {"10.0.0.1": 1}


def test_rates_of_addresses_are_quotas_of_the_cluster() -> None:
    configs = {
        ("ips", "10.0.0.1"): {"connection_creation_rate": "5.0"},
        ("ips", "::ffff:10.0.0.9"): {"connection_creation_rate": "0"},
        ("ips", "<default>"): {"connection_creation_rate": "7"},
        ("ips", "10.0.0.3"): {"connection_creation_rate": "many"},
        ("ips", "10.0.0.4"): {"connection_creation_rate": "-1"},
        ("ips", "10.0.0.5"): {},
        ("users", "10.0.0.6"): {"connection_creation_rate": "5.0"},
        ("ips", "two.example"): {"connection_creation_rate": "8"},
        ("ips", "no.such"): {"connection_creation_rate": "9"},
    }
    rates = rate_limits(made(), configs, LISTENERS, find)
    assert rates.ips == {"10.0.0.1": 5, "10.0.0.9": 0, "10.0.0.2": 8, "10.0.0.3": 8}
    assert rates.ip_default == 7
    assert rate_limits(made(), {}, LISTENERS, find).ip_default is None


def test_hosts_of_are_the_hosts_with_own_limits() -> None:
    settings = made("max.connections.per.ip.overrides=two.example:2,10.0.0.1:1")
    configs = {
        ("ips", "<default>"): {"connection_creation_rate": "7"},
        ("ips", "three.example"): {"connection_creation_rate": "5.0"},
        ("ips", "four.example"): {"connection_creation_rate": "many"},
        ("users", "five.example"): {"connection_creation_rate": "5.0"},
    }
    assert hosts_of(settings, configs) == {"two.example", "10.0.0.1", "three.example"}


def test_redpanda_limits_normalize_addresses() -> None:
    overrides = "kafka_connections_max_overrides=::ffff:10.0.0.1:1,::0001:3"
    limits = drop_limits(made("kafka_connections_max_per_ip=9", "max.connections=7", overrides))
    assert (limits.drop_total, limits.drop_per_ip) == (None, 9)
    assert limits.drop_overrides == {"10.0.0.1": 1, "::1": 3}
    assert limits.total == 2**31 - 1


OWN = Settings.from_sources(
    pairs=[
        "listeners=INSIDE://:9092,OUTSIDE://:9093",
        "listener.security.protocol.map=INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
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
