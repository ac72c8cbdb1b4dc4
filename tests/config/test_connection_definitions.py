"""Limits of connections: defaults that limit nothing, and the list of exceptions."""

from __future__ import annotations

import pytest

from minibroker.config import (
    MAX_CONNECTION_CREATION_RATE,
    MAX_CONNECTIONS,
    MAX_CONNECTIONS_PER_IP,
    MAX_CONNECTIONS_PER_IP_OVERRIDES,
    Settings,
)
from minibroker.config.connection_definitions import HostLimit
from minibroker.config.types import INT_MAX, BadValueError


def test_nothing_is_limited_unless_somebody_says_so() -> None:
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
def test_an_override_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(BadValueError, match="has the entry"):
        MAX_CONNECTIONS_PER_IP_OVERRIDES.parse(text)
