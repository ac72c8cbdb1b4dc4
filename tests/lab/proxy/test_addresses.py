from __future__ import annotations

import pytest

from minibroker.broker.settings.types import HostPort
from minibroker.lab.proxy.addresses import (
    BROKERS_MAX,
    PORTS_TRIED_MAX,
    AddressTable,
    ListenFailed,
)

FIRST, SECOND = HostPort("a", 9092), HostPort("b", 9092)


def test_first_listener_has_its_port_and_no_other() -> None:
    assert list(AddressTable(7000).candidates()) == [7000]
    assert list(AddressTable(0).candidates()) == [0]


def test_other_listeners_have_the_next_ports_or_any_free_one() -> None:
    table = AddressTable(7000)
    table.add(FIRST, 7000)
    table.add(SECOND, 7001)
    tried = list(table.candidates())
    assert tried == [*range(7002, 7001 + PORTS_TRIED_MAX), 0]
    assert (table.port_of(FIRST), table.port_of(SECOND)) == (7000, 7001)
    assert table.port_of(HostPort("a", 9093)) is None
    assert table.brokers() == [FIRST, SECOND]


def test_ports_end_at_the_highest() -> None:
    table = AddressTable(65534)
    table.add(FIRST, 65534)
    assert list(table.candidates()) == [65535, 0]


def test_brokers_are_limited() -> None:
    table = AddressTable(0)
    for number in range(BROKERS_MAX):
        table.add(HostPort(f"h{number}", 1), number + 1)
    with pytest.raises(ListenFailed, match="1000"):
        list(table.candidates())
