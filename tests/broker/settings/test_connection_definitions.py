"""Limits of connections: defaults that limit nothing, and the list of exceptions."""

from __future__ import annotations

import pytest

from minibroker.broker.settings import (
    KAFKA_CONNECTIONS_MAX,
    KAFKA_CONNECTIONS_MAX_OVERRIDES,
    KAFKA_CONNECTIONS_MAX_PER_IP,
    MAX_CONNECTION_CREATION_RATE,
    MAX_CONNECTIONS,
    MAX_CONNECTIONS_PER_IP,
    MAX_CONNECTIONS_PER_IP_OVERRIDES,
    ConfigError,
    Settings,
)
from minibroker.broker.settings.connection_definitions import HostLimit
from minibroker.broker.settings.dynamic import problems
from minibroker.broker.settings.types import INT_MAX, BadValueError


def test_connections_are_unlimited_by_default() -> None:
    settings = Settings.from_sources()
    for unlimited in (MAX_CONNECTIONS, MAX_CONNECTIONS_PER_IP, MAX_CONNECTION_CREATION_RATE):
        assert settings[unlimited] == INT_MAX
    assert settings[MAX_CONNECTIONS_PER_IP_OVERRIDES] == ()


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("127.0.0.1:5", [("127.0.0.1", 5)]),
        ("localhost:1, 10.0.0.1:0,", [("localhost", 1), ("10.0.0.1", 0)]),
        ("::1:7", [("::1", 7)]),
        ("[fe80::1%eth0]:7", [("fe80::1%eth0", 7)]),
        ("", []),
    ],
)
def test_overrides_are_split_at_the_last_colon(text: str, limits: list[tuple[str, int]]) -> None:
    found = MAX_CONNECTIONS_PER_IP_OVERRIDES.parse(text)
    assert found == tuple(HostLimit(host, count) for host, count in limits)
    assert (
        MAX_CONNECTIONS_PER_IP_OVERRIDES.parse(MAX_CONNECTIONS_PER_IP_OVERRIDES.render(found))
        == found
    )


@pytest.mark.parametrize(
    "text", ["127.0.0.0#:100", "127.0.0.1", ":5", "h:-1", "h:x", "h:9999999999"]
)
def test_host_override_with_invalid_entry_is_rejected(text: str) -> None:
    with pytest.raises(BadValueError, match="has the entry"):
        MAX_CONNECTIONS_PER_IP_OVERRIDES.parse(text)


def test_redpanda_limits_are_unset_by_default() -> None:
    settings = Settings.from_sources()
    assert settings[KAFKA_CONNECTIONS_MAX] is None
    assert settings[KAFKA_CONNECTIONS_MAX_PER_IP] is None
    assert KAFKA_CONNECTIONS_MAX.parse("0") == 0
    assert KAFKA_CONNECTIONS_MAX_OVERRIDES.parse("10.0.0.1:3") == (HostLimit("10.0.0.1", 3),)


@pytest.mark.parametrize("text", ["localhost:3", "10.0.0.1:1,10.0.0.1:2", "10.0.0.1"])
def test_redpanda_override_with_host_name_or_duplicate_is_rejected(text: str) -> None:
    with pytest.raises(BadValueError):
        KAFKA_CONNECTIONS_MAX_OVERRIDES.parse(text)


@pytest.mark.parametrize(
    ("pairs", "problem"),
    [
        (["max.connections.per.ip=0"], "max.connections.per.ip.overrides"),
        (["inter.broker.listener.name=INTERNAL"], "PLAINTEXT"),
    ],
)
def test_connection_limits_that_reject_everything_are_rejected(
    pairs: list[str], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        Settings.from_sources(pairs=pairs)


def test_zero_connections_per_ip_is_accepted_with_overrides() -> None:
    pairs = ["max.connections.per.ip=0", "max.connections.per.ip.overrides=127.0.0.1:5"]
    assert Settings.from_sources(pairs=pairs)[MAX_CONNECTIONS_PER_IP] == 0


@pytest.mark.parametrize(
    "limit",
    [
        "max.connections=5",
        "listener.name.plaintext.max.connections=5",
        "max.connections.per.ip=5",
        "max.connections.per.ip.overrides=127.0.0.1:5",
        "max.connection.creation.rate=5",
    ],
)
def test_single_acceptor_limit_in_sharded_mode_is_rejected(limit: str) -> None:
    name = limit.partition("=")[0]
    with pytest.raises(ConfigError, match=rf"{name}=.* \(--set\): not with .*acceptor.mode=single"):
        Settings.from_sources(pairs=["acceptor.mode=sharded", limit])
    Settings.from_sources(pairs=["acceptor.mode=single", limit])


def test_default_and_redpanda_limits_in_sharded_mode_are_accepted() -> None:
    pairs = ["acceptor.mode=sharded", "max.connections=2147483647", "kafka_connections_max=3"]
    assert Settings.from_sources(pairs=pairs)[KAFKA_CONNECTIONS_MAX] == 3


def test_stored_limit_in_sharded_mode_does_not_block_other_changes() -> None:
    started = Settings.from_sources(pairs=["acceptor.mode=sharded"])
    assert list(problems(started, {"max.connections": "5", "kafka_connections_max": "3"})) == []
