"""Connections as several processes report them, and a sentence for every rejection."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from minibroker.broker.admission.connection_events import (
    AddressFigures,
    ConnectionEvent,
    ConnectionEventLog,
    ConnectionEvents,
    ConnectionFigures,
    ExceededLimit,
    ListenerFigures,
    RecentConnectionEvents,
    Rejection,
)
from minibroker.broker.admission.rejected_connections import AcceptedConnection
from minibroker.broker.apis.unserved import SHARE_GROUPS
from minibroker.broker.network.client_connection import ClientConnection, ConnectionReport
from minibroker.broker.network.reports import (
    CLIENTS_MAX,
    AcceptorReport,
    ProcessorReport,
    UnservedClient,
)
from minibroker.broker.process.messages import (
    DetailsRequest,
)
from minibroker.broker.settings import Settings
from minibroker.lab.control import connections as shown
from minibroker.lab.control.connections import (
    BrokerContext,
    Reports,
    connections_view,
    list_connections,
    sentence,
)
from minibroker.runtime.stream import memory_stream_pair
from minibroker_protocol.registry import ApiKey
from tests.lab.control.running_broker import At

SETTINGS = Settings.from_sources(
    pairs=[
        "listeners=INSIDE://:9092,OUTSIDE://:9093",
        "listener.security.protocol.map=INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
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
    return connections_view(PLACE, reports, event_log or ConnectionEventLog(1), NOW)


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
    found = connections_view(
        SHARDED, Reports(None, {0: first, 1: second}), ConnectionEventLog(1), NOW
    )
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
    assert connections_view(context, Reports(None, {}), ConnectionEventLog(1), NOW).limit == limit


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
    assert [(each.reason, each.ago_ms) for each in found.rejections] == [
        ("process_died", 2000),
        ("max_connections_per_ip", 3000),
    ]
    assert "max.connections.per.ip=2" in found.rejections[1].text
    assert found.connection_events[-1] == shown.ConnectionEventView(
        *((1 << 32) + 2, 1000, "waiting", 9, "OUTSIDE", "10.0.0.7:5", None, "processors")
    )
    assert [each.processor for each in found.connection_events] == [None, "processor-1", None]


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


def distrusted(reason: str, why: str) -> Rejection:
    return Rejection(refusal(reason, kind="closed").event, None, why)


def refusal(reason: str, *limit: object, kind: str = "refused") -> Rejection:
    happening = ConnectionEvent(1, 1.0, kind, "A", "10.0.0.7", 5, 1, reason)  # type: ignore[arg-type]
    return Rejection(happening, ExceededLimit(*limit) if limit else None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rejection", "text"),
    [
        (
            refusal("kafka_connections_max", "kafka_connections_max", 20),
            (
                "10.0.0.7 was rejected: the broker had 20 connections, the most that "
                "kafka_connections_max=20 allows; close some, or raise the limit."
            ),
        ),
        (
            refusal("kafka_connections_max_per_ip", "kafka_connections_max_per_ip", 1),
            (
                "10.0.0.7 was rejected: it had 1 connection, the most that "
                "kafka_connections_max_per_ip=1 allows; close some, or raise the limit."
            ),
        ),
        (
            refusal(
                "kafka_connections_max_per_ip", "kafka_connections_max_overrides", 0, "10.0.0.7"
            ),
            (
                "10.0.0.7 was rejected: it had no connection, the most that "
                "kafka_connections_max_overrides=10.0.0.7:0 allows; close some, or raise the limit."
            ),
        ),
        (
            refusal("max_connections_per_ip", "max.connections.per.ip", 2),
            (
                "10.0.0.7 was rejected: it had 2 connections, the most that "
                "max.connections.per.ip=2 allows; close some, or raise the limit."
            ),
        ),
        (
            refusal("ip_connection_creation_rate", "connection_creation_rate", 2.5, "10.0.0.7"),
            (
                "10.0.0.7 was rejected: its connection rate exceeded the quota "
                "connection_creation_rate=2.5 of the ip 10.0.0.7; keep connections open, or raise "
                "the quota."
            ),
        ),
        (
            refusal("ip_connection_creation_rate", "connection_creation_rate", 0, "<default>"),
            (
                "10.0.0.7 was rejected: the quota connection_creation_rate=0 of all addresses "
                "allows no connection; raise or remove it."
            ),
        ),
        (
            refusal("max_connections", "max.connections", 4, kind="closed"),
            (
                "10.0.0.7 was disconnected: the broker had more connections than max.connections=4 "
                "allows, and this one was the least recently used; close some, or raise the limit."
            ),
        ),
        (
            distrusted("tls_failed", "HTTP_REQUEST"),
            (
                "10.0.0.7 was rejected: the TLS handshake failed (HTTP_REQUEST); check that the "
                "client speaks TLS, trusts the broker's certificate and has one if it must."
            ),
        ),
        (
            distrusted("authentication_failed", "no user \x1b[2J\n"),
            (
                "10.0.0.7 was rejected: authentication failed (no user ?[2J?); check the "
                "client's mechanism, user name and secret."
            ),
        ),
        (
            distrusted("session_expired", "too late"),
            (
                "10.0.0.7 was rejected: its session had expired (too late); check "
                "that the client can authenticate again (connections.max.reauth.ms)."
            ),
        ),
        (
            refusal("process_died"),
            "10.0.0.7 lost its connection: processor-1 died before it was served; connect again.",
        ),
        (
            refusal("limit"),
            (
                "10.0.0.7 was rejected: processor-1 has no descriptors left; close connections, "
                "or raise the system's limit (ulimit -n)."
            ),
        ),
    ],
    ids=lambda each: each.event.reason if isinstance(each, Rejection) else "",
)
def test_malformed_event_has_explained_reason(rejection: Rejection, text: str) -> None:
    assert sentence(rejection) == text


def test_rejection_shows_mapped_ipv6_address_as_ipv4() -> None:
    happening = ConnectionEvent(
        1, 1.0, "refused", "A", "::ffff:10.0.0.7", 5, 1, "max_connections_per_ip"
    )
    rejection = Rejection(happening, ExceededLimit("max.connections.per.ip", 2))
    assert sentence(rejection).startswith("10.0.0.7 was rejected: ")


async def test_connections_are_shown_from_processor_reports(
    at: At, autojump_clock: MockClock
) -> None:
    accepted = AcceptedConnection("PLAINTEXT", ("127.0.0.1", 9092), ("10.0.0.7", 51234), 7)
    client = ClientConnection(accepted, memory_stream_pair()[1], trio.current_time())
    client.in_flight = ApiKey.FETCH
    client.client_id = "me"
    happened = ConnectionEvents(1, trio.current_time)
    happened.reject(accepted, "process_died", processor=0)
    report = ProcessorReport((client.view(client.opened),), 1, happened.recent())
    at.roles.answers["processor-0", DetailsRequest] = report
    await trio.sleep(3)
    for _ in range(2):
        found = await list_connections(at.broker)
        (processor,) = found.processors
        assert processor.slots_used == 4
        (connection,) = processor.connections
        assert (connection.client_id, connection.age_ms, connection.in_flight) == (
            "me",
            3000,
            "Fetch",
        )
        assert [each.ago_ms for each in found.rejections] == [3000]
        assert [each.seq for each in found.connection_events] == [1 << 32]


async def test_effective_limits_are_reported(at: At) -> None:
    assert (await list_connections(at.broker)).limit is None
    await at.configure({"max.connections": "5", "listener.name.other.max.connections": "2"})
    found = await list_connections(at.broker)
    assert (found.limit, [each.limit for each in found.listeners]) == (5, [5, 2])


async def test_without_acceptor_and_processor_there_is_little_to_show(at: At) -> None:
    for name in ("acceptor", "processor-0"):
        at.roles.conversations[name].close()
    await wait_all_tasks_blocked()
    found = await list_connections(at.broker)
    (processor,) = found.processors
    assert (processor.slots_used, processor.connections) == (0, ())
    assert [each.connections for each in found.listeners] == [0, 0]
