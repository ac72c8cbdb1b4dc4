"""Rates of new connections, to the millisecond on a frozen clock."""

from __future__ import annotations

import pytest

from system_tests.connections.conftest import Dial, Limited
from system_tests.connections.dialling import (
    change_clock,
    counted,
    gauge,
    set_ip_rate,
    wait_counted,
    wait_for_listener_count,
)
from system_tests.harness.waiting import wait_until

pytestmark = pytest.mark.minibroker

THROTTLE = "minibroker_connection_accept_throttle_time_seconds"
IP_THROTTLE = "minibroker_ip_connection_accept_throttle_time_seconds"


@pytest.mark.parametrize(
    "setting",
    [
        "max.connection.creation.rate",
        "listener.name.plaintext.max.connection.creation.rate",
    ],
)
def test_connection_rate_throttle_is_exact_to_the_millisecond(
    setting: str, limited: Limited, dial: Dial
) -> None:
    broker = limited(f"{setting}=5")
    change_clock(broker, freeze=True)
    assert all(client.answered() for client in dial(broker, 50, "127.0.0.2"))
    waiting = dial(broker, 2, "127.0.0.3")
    for client in waiting:
        client.send_first_request()
    wait_for_listener_count(broker, "waiting", 1)
    change_clock(broker, advance_ms=199)
    assert all(client.received_nothing() for client in waiting)
    change_clock(broker, advance_ms=1)
    assert waiting[0].answered()
    wait_for_listener_count(broker, "waiting", 1)
    # 52 in 10.2 s are 0.2 s too many.
    change_clock(broker, advance_ms=199)
    assert waiting[1].received_nothing()
    change_clock(broker, advance_ms=1)
    assert waiting[1].answered()
    assert gauge(broker, THROTTLE, listener="PLAINTEXT") == pytest.approx(0.2)
    blocked = gauge(broker, "minibroker_acceptor_blocked_seconds_total")
    assert blocked == pytest.approx(0.4)


@pytest.mark.parametrize("recheck", [True, False])
def test_ip_rate_throttle_does_not_delay_other_addresses(
    recheck: bool, limited: Limited, dial: Dial
) -> None:
    broker = limited(f"connection.ip.throttle.recheck={recheck}")
    set_ip_rate(dial(broker)[0], "127.0.0.2", 5)
    change_clock(broker, freeze=True)
    for _ in range(50):  # each served before the next comes, or processors' slots might be full
        assert dial(broker, 1, "127.0.0.2")[0].answered()
    held = dial(broker, 2, "127.0.0.2")
    assert all(client.answered() for client in dial(broker, 3, "127.0.0.3"))
    change_clock(broker, advance_ms=199)
    assert all(client.received_nothing() for client in held)
    assert counted(broker) == 54
    change_clock(broker, advance_ms=1)
    reason = "ip_connection_creation_rate"
    closed = "minibroker_connections_closed_total"
    refused = 1 if recheck else 2
    wait_until(lambda: gauge(broker, closed, reason=reason) == refused, "what was held to end")
    # Connections with the same deadline are handled in any order.
    stayed = [client for client in held if client.received_nothing()]
    assert len(stayed) == 2 - refused
    assert all(client.answered() for client in stayed)
    assert all(client.is_disconnected() for client in held if client not in stayed)
    wait_counted(broker, 54 + len(stayed))
    assert gauge(broker, IP_THROTTLE) == pytest.approx(0.2)
    assert gauge(broker, "minibroker_acceptor_blocked_seconds_total") == 0


def test_per_ip_limits_change_at_runtime(limited: Limited, dial: Dial) -> None:
    broker = limited()
    (admin,) = dial(broker)
    set_ip_rate(admin, "127.0.0.1", 1000)
    set_ip_rate(admin, None, 1)
    change_clock(broker, freeze=True)
    assert all(client.answered() for client in dial(broker, 10, "127.0.0.2"))
    assert all(client.answered() for client in dial(broker, 20, "127.0.0.1"))
    (held,) = dial(broker, 1, "127.0.0.2")
    wait_for_listener_count(broker, "held", 1)
    change_clock(broker, advance_ms=999)
    assert held.received_nothing()
    set_ip_rate(admin, "127.0.0.2", 50)  # takes effect on the live rate
    assert dial(broker, 1, "127.0.0.2")[0].answered()
    change_clock(broker, advance_ms=1)
    assert held.answered()
