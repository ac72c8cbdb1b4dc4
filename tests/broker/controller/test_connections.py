"""What several processes report of connections, added up."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.admission.acceptor_messages import AcceptedConnection
from minibroker.broker.admission.connection_events import (
    ConnectionEvents,
    ExceededLimit,
    RecentConnectionEvents,
)
from minibroker.broker.admission.connection_figures import (
    AddressFigures,
    ConnectionFigures,
    ListenerFigures,
)
from minibroker.broker.apis.unserved import SHARE_GROUPS
from minibroker.broker.controller.connection_event_log import ConnectionEventLog
from minibroker.broker.controller.connections import BrokerContext, Reports, connections
from minibroker.broker.network.client_connection import ConnectionReport
from minibroker.broker.network.reports import AcceptorReport, ProcessorReport
from minibroker.broker.network.unserved_clients import CLIENTS_MAX, UnservedClient
from minibroker.broker.settings import Settings
from minibroker.lab.control import backend as shown
from minibroker_protocol.registry import ApiKey

SETTINGS = Settings.from_sources(
    pairs=[
        "listeners=INSIDE://:9092,OUTSIDE://:9093",
        "inter.broker.listener.name=INSIDE",
        "max.connections=40",
        "listener.name.outside.max.connections=30",
        "listener.name.outside.max.connection.creation.rate=20",
    ]
)
ENDPOINTS = {"INSIDE": ("::1", 9092), "OUTSIDE": ("127.0.0.1", 9093)}
PLACE = BrokerContext(SETTINGS, ENDPOINTS, 2)
NOTHING = RecentConnectionEvents(1, 0, (), 0, ())
NOW = 100.0


def figures(*addresses: AddressFigures, share: float = 0.5) -> ConnectionFigures:
    listeners = (
        ListenerFigures("INSIDE", 1, 0.5, 0.0, 0, 0),
        ListenerFigures("OUTSIDE", 3, 1.5, share, 1, 2),
    )
    return ConnectionFigures(4, 2.0, listeners, addresses, len(addresses))


def view(listener: str = "OUTSIDE", host: str = "10.0.0.7") -> ConnectionReport:
    return ConnectionReport(
        *(
            7,
            "id-7",
            listener,
            host,
            5,
            "User:alice",
            "me",
            "lib",
            "1.0",
            90.0,
            99.5,
            "muted",
            ApiKey.FETCH,
        )
    )


def look(
    acceptor: AcceptorReport | None,
    *processors: ProcessorReport,
    event_log: ConnectionEventLog | None = None,
) -> shown.ConnectionsView:
    reports = Reports(acceptor, dict(enumerate(processors)))
    return connections(PLACE, reports, event_log or ConnectionEventLog(1), NOW)


def test_view_combines_acceptor_and_processor_reports() -> None:
    acceptor = AcceptorReport((4, 0), figures(AddressFigures("10.0.0.7", 4, 5, 1.0, 2.0)), NOTHING)
    found = look(acceptor, ProcessorReport((view(),), 1, NOTHING))
    assert (found.mode, found.now, found.total, found.limit) == ("single", NOW, 4, 40)
    assert (found.rate, found.rate_limit) == (2.0, None)
    assert found.listeners == (
        shown.ListenerView("INSIDE", "::1", 9092, 1, 40, 0.5, None, 0.0, 0, 0, protected=True),
        shown.ListenerView(
            *("OUTSIDE", "127.0.0.1", 9093, 3, 30, 1.5, 20, 0.5, 1, 2), protected=False
        ),
    )
    first, second = found.processors
    assert (first.processor, first.slots_total, first.slots_used) == ("processor-0", 20, 4)
    assert (second.slots_used, second.connections_total, second.connections) == (0, 0, ())
    (one,) = first.connections
    assert (one.number, one.client_address, one.age_ms, one.idle_ms) == (
        7,
        "10.0.0.7:5",
        10_000,
        500,
    )
    assert (one.state, one.in_flight) == ("muted", "Fetch")
    assert found.addresses == (shown.AddressView("10.0.0.7", 4, 5, 1.0, 2.0),)
    assert found.addresses_total == 1


def test_sharded_connections_are_counted_in_their_processor() -> None:
    served = (view(), view(host="::1"), view("INSIDE"))
    found = look(None, ProcessorReport(served, 5, NOTHING))
    assert (found.total, found.limit) == (5, 40)
    assert [(each.connections, each.limit) for each in found.listeners] == [(1, 40), (2, 30)]
    assert found.processors[0].slots_used == 0
    assert found.processors[0].connections[1].client_address == "[::1]:5"


SHARDED = BrokerContext(
    Settings.from_sources(pairs=["acceptor.mode=sharded", "kafka_connections_max=30"]),
    {"PLAINTEXT": ("127.0.0.1", 9092)},
    2,
)


def test_processors_that_accept_for_themselves_are_added_up() -> None:
    def part(*addresses: AddressFigures) -> ProcessorReport:
        listener = ListenerFigures("PLAINTEXT", 3, 1.5, 0.5, 1, 0)
        figures = ConnectionFigures(3, 1.5, (listener,), addresses, len(addresses))
        return ProcessorReport((), 3, NOTHING, figures)

    first = part(AddressFigures("10.0.0.1", 2, 8, None, None), AddressFigures("10.0.0.2", 1, 8))
    second = part(AddressFigures("10.0.0.3", 1, 8), AddressFigures("10.0.0.2", 2, 8))
    found = connections(SHARDED, Reports(None, {0: first, 1: second}), ConnectionEventLog(1), NOW)
    assert (found.mode, found.total, found.limit, found.rate) == ("sharded", 6, 30, 3.0)
    (listener,) = found.listeners
    assert (listener.connections, listener.rate, listener.waiting) == (6, 3.0, 2)
    assert listener.blocked_share == 0.5
    assert [(each.ip, each.connections, each.limit) for each in found.addresses] == [
        ("10.0.0.2", 3, 8),
        ("10.0.0.1", 2, 8),
        ("10.0.0.3", 1, 8),
    ]
    assert found.addresses_total == 3
    assert [each.slots_total for each in found.processors] == [0, 0]


@pytest.mark.parametrize(
    ("pairs", "limit"),
    [
        ([], None),
        (["max.connections=5"], 5),
        (["kafka_connections_max=4"], 4),
        (["max.connections=5", "kafka_connections_max=9"], 5),
    ],
)
def test_smaller_limit_of_the_broker_is_shown(pairs: list[str], limit: int | None) -> None:
    context = BrokerContext(Settings.from_sources(pairs=pairs), {}, 1)
    assert connections(context, Reports(None, {}), ConnectionEventLog(1), NOW).limit == limit


def test_rejections_are_newest_first_and_events_newest_last() -> None:
    times = iter((97.0, 98.0, 99.0))
    kept = ConnectionEvents(1, lambda: next(times))
    who = AcceptedConnection("OUTSIDE", ("127.0.0.1", 9093), ("10.0.0.7", 5), 9)
    kept.reject(who, "max_connections_per_ip", ExceededLimit("max.connections.per.ip", 2))
    kept.reject(who, "process_died", processor=1)
    kept.note("waiting", who, reason="processors")
    event_log = ConnectionEventLog(1)
    event_log.take({"acceptor": kept.recent()}, NOW)
    found = look(None, event_log=event_log)
    assert [(each.reason, each.ago_ms) for each in found.refusals] == [
        ("process_died", 2000),
        ("max_connections_per_ip", 3000),
    ]
    assert "max.connections.per.ip=2" in found.refusals[1].text
    assert found.happenings[-1] == shown.ConnectionEventView(
        *((1 << 32) + 2, 1000, "waiting", 9, "OUTSIDE", "10.0.0.7:5", None, "processors")
    )
    assert [each.processor for each in found.happenings] == [None, "processor-1", None]


def test_connection_opened_after_query_has_age_zero() -> None:
    ahead = view()._replace(opened=NOW + 1)
    (one,) = look(None, ProcessorReport((ahead,), 1, NOTHING)).processors[0].connections
    assert one.age_ms == 0


@pytest.mark.parametrize("addresses", [0, 150])
def test_addresses_are_bounded_and_those_with_most_connections_come_first(addresses: int) -> None:
    many = [AddressFigures(f"10.0.0.{n}", n % 7, None, None, None) for n in range(addresses)]
    found = look(AcceptorReport((0, 0), figures(*many), NOTHING)).addresses
    assert len(found) == min(addresses, 100)
    counts = [each.connections for each in found]
    assert counts == sorted(counts, reverse=True)


def unserved(client_id: str, last: float, **others: Any) -> UnservedClient:
    protocol, advice = SHARE_GROUPS
    client = UnservedClient(client_id, "lib", "1", "10.0.0.7", protocol, advice, last, 2)
    return client._replace(**others)


def test_unserved_clients_of_several_processors_are_merged_newest_first() -> None:
    both = unserved("a", 97.0)
    found = look(
        None,
        ProcessorReport((), 0, NOTHING, unserved=(both, unserved("b", 98.0))),
        ProcessorReport((), 0, NOTHING, unserved=(both._replace(last=99.0, host="::1"),)),
    ).unserved
    assert [(each.client_id, each.ago_ms, each.requests) for each in found] == [
        ("a", 1000, 4),
        ("b", 2000, 2),
    ]
    assert (found[0].client_host, found[0].protocol) == ("::1", SHARE_GROUPS.protocol)
    assert found[0].advice == SHARE_GROUPS.advice


def test_unserved_clients_are_bounded_and_the_newest_are_shown() -> None:
    many = tuple(unserved(f"c{n}", float(n)) for n in range(CLIENTS_MAX))
    newer = tuple(unserved(f"d{n}", 200.0 + n) for n in range(3))
    found = look(
        None,
        ProcessorReport((), 0, NOTHING, unserved=many),
        ProcessorReport((), 0, NOTHING, unserved=newer),
    ).unserved
    assert len(found) == CLIENTS_MAX
    assert [each.client_id for each in found[:4]] == ["d2", "d1", "d0", "c99"]
