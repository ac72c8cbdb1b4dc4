"""Memory of the limits: bounded for any number of addresses, and released in time."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from system_tests.benchmarks import accepting
from system_tests.connections.conftest import Limited
from system_tests.connections.dialling import Client, change_clock, gauge, set_ip_rate, wait_counted
from system_tests.harness.control import processes
from system_tests.harness.dialler import count
from system_tests.harness.processes import pss_bytes

pytestmark = [pytest.mark.minibroker, pytest.mark.slow, pytest.mark.alone]

ADDRESSES = 100_000
AT_ONCE = 64
BYTES_MAX = 100_000_000
HOUR_MS = 3_600_000
RATE = "minibroker_connection_accept_rate"


def test_books_of_a_hundred_thousand_addresses() -> None:
    figures = accepting.addresses_memory()
    assert figures[accepting.ADDRESSES_KEPT] * 1e6 <= BYTES_MAX
    # Python keeps memory of which it still uses a little; that it keeps a third is much.
    assert figures[accepting.ADDRESSES_GONE] < figures[accepting.ADDRESSES_KEPT] / 3


def test_hundred_thousand_addresses_expire_after_an_hour(
    limited: Limited,
) -> None:
    broker = limited()
    with Client(broker.address) as client:
        set_ip_rate(client, None, 50)
    acceptor = processes(broker)["acceptor"].pid
    assert acceptor is not None
    before = pss_bytes(acceptor)
    seen = count(broker.bootstrap_servers, ADDRESSES, at_once=AT_ONCE, addresses=ADDRESSES)
    # Rates are gone after eleven seconds, which a machine that does other things may take to look.
    change_clock(broker, freeze=True)
    assert (seen.hung_up, seen.lost) == (0, 0)
    wait_counted(broker, 0)
    assert pss_bytes(acceptor) - before <= BYTES_MAX
    # A hundred are shown, and how many are dialled after the last that is wanted is up to chance.
    late = dialled_from(seen.dialled - AT_ONCE)
    assert gauge(broker, RATE, ip=dialled_from(199)) == 0 < gauge(broker, RATE, ip=late)
    change_clock(broker, advance_ms=HOUR_MS + 1)
    assert gauge(broker, RATE, ip=late) == 0


def dialled_from(number: int) -> str:
    """The address of the dialler's connection of a number, from 1 on."""
    return str(ip_address("127.0.1.1") + number % ADDRESSES)
