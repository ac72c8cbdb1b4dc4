"""The connections of a broker for the control API, from the reports of its processes.

Owns sums and names. It must never request a report. Pure. Invariant: there is an answer whichever
processes are missing: without the acceptor's report, connections are counted where they are served,
and figures that only the acceptor has are 0. Kafka's ``SocketServer`` has MBeans instead.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from minibroker.broker.admission.connection_events import ConnectionEvent, Rejection
from minibroker.broker.admission.connection_figures import (
    ADDRESSES_SHOWN_MAX,
    AddressFigures,
    ConnectionFigures,
    ListenerFigures,
)
from minibroker.broker.admission.connection_limits import protected_listener
from minibroker.broker.admission.slots import SLOTS
from minibroker.broker.connections.counts import UNLIMITED
from minibroker.broker.controller.connection_event_log import ConnectionEventLog
from minibroker.broker.controller.rejections import sentence
from minibroker.broker.network.client_connection import ConnectionReport
from minibroker.broker.network.reports import AcceptorReport, ProcessorReport
from minibroker.broker.network.unserved_clients import CLIENTS_MAX, UnservedClient
from minibroker.broker.process.environment import PROCESSOR, role_name
from minibroker.broker.settings import (
    ACCEPTOR_MODE,
    KAFKA_CONNECTIONS_MAX,
    MAX_CONNECTION_CREATION_RATE,
    MAX_CONNECTIONS,
    SHARDED,
    Settings,
)
from minibroker.broker.settings.setting import Setting, listener_name
from minibroker.lab.control import backend as shown
from minibroker_protocol import registry


class Reports(NamedTuple):
    """The reports of the running processes; processors by number."""

    acceptor: AcceptorReport | None
    processors: Mapping[int, ProcessorReport]

    def accepting(self) -> list[ConnectionFigures]:
        """The figures of all processes that accept connections."""
        accepting = [
            report.figures for report in self.processors.values() if report.figures is not None
        ]
        return accepting if self.acceptor is None else [self.acceptor.figures, *accepting]


class BrokerContext(NamedTuple):
    """The broker that the reports describe."""

    settings: Settings
    """The effective settings."""
    endpoints: Mapping[str, tuple[str, int]]
    processors: int

    @property
    def is_sharded(self) -> bool:
        """Whether processors accept connections themselves, so that they have no queue."""
        return self.settings[ACCEPTOR_MODE] == SHARDED


def connections(
    context: BrokerContext, reports: Reports, event_log: ConnectionEventLog, now: float
) -> shown.ConnectionsView:
    """Return all figures of connections."""
    accepting = reports.accepting()
    addresses = _addresses(accepting)
    settings = context.settings
    counted = sum(process.total for process in accepting)
    served = sum(report.connections_total for report in reports.processors.values())
    return shown.ConnectionsView(
        mode="sharded" if context.is_sharded else "single",
        now=now,
        total=counted if accepting else served,
        limit=_smallest(settings[MAX_CONNECTIONS], settings[KAFKA_CONNECTIONS_MAX]),
        rate=sum(process.rate for process in accepting),
        rate_limit=_limit(context.settings[MAX_CONNECTION_CREATION_RATE]),
        listeners=tuple(_listeners(context, reports, accepting)),
        processors=tuple(_processors(context, reports, now)),
        addresses=tuple(addresses[:ADDRESSES_SHOWN_MAX]),
        addresses_total=_count_addresses(accepting, addresses),
        refusals=tuple(_rejection_view(each, now) for each in reversed(event_log.rejections)),
        happenings=tuple(_event_view(seq, each, now) for seq, each in event_log.events),
        unserved=_unserved(reports.processors.values(), now),
    )


def _listeners(
    context: BrokerContext, reports: Reports, accepting: Sequence[ConnectionFigures]
) -> Iterator[shown.ListenerView]:
    settings = context.settings
    found: defaultdict[str, list[ListenerFigures]] = defaultdict(list)
    for process in accepting:
        for each in process.listeners:
            found[each.listener].append(each)
    served = Counter(
        view.listener for report in reports.processors.values() for view in report.connections
    )
    protected = protected_listener(settings, list(context.endpoints))
    for listener, (host, port) in context.endpoints.items():
        figures = found[listener]
        yield shown.ListenerView(
            listener,
            host,
            port,
            connections=sum(each.connections for each in figures)
            if accepting
            else served[listener],
            limit=_own(settings, listener, MAX_CONNECTIONS, protected),
            rate=sum(each.rate for each in figures),
            rate_limit=_own(settings, listener, MAX_CONNECTION_CREATION_RATE, protected),
            blocked_share=sum(each.blocked_share for each in figures) / max(len(figures), 1),
            waiting=sum(each.waiting for each in figures),
            held=sum(each.held for each in figures),
            protected=listener == protected,
        )


def _smallest(*limits: int | None) -> int | None:
    return _limit(min(limit for limit in (UNLIMITED, *limits) if limit is not None))


def _limit(value: int) -> int | None:
    return None if value >= UNLIMITED else value


def _own(settings: Settings, listener: str, key: Setting[int], protected: str | None) -> int | None:
    # The broker's limit applies to the inter-broker listener alone, not together with the others.
    otherwise = settings[key] if listener == protected else UNLIMITED
    return _limit(settings.value_at(listener_name(listener, key.name), otherwise))


def _processors(
    context: BrokerContext, reports: Reports, now: float
) -> Iterator[shown.ProcessorView]:
    used = (0,) * context.processors if reports.acceptor is None else reports.acceptor.slots
    for index in range(context.processors):
        report = reports.processors.get(index)
        yield shown.ProcessorView(
            role_name(PROCESSOR, index),
            slots_total=0 if context.is_sharded else SLOTS,
            slots_used=used[index],
            connections_total=0 if report is None else report.connections_total,
            connections=tuple(
                _connection(view, now) for view in (report.connections if report else ())
            ),
        )


def _connection(view: ConnectionReport, now: float) -> shown.Connection:
    return shown.Connection(
        number=view.number,
        connection_id=view.connection_id,
        listener=view.listener,
        client_address=_address(view.host, view.port),
        principal=view.principal,
        client_id=view.client_id,
        software_name=view.software_name,
        software_version=view.software_version,
        age_ms=_ago_ms(view.opened, now),
        idle_ms=_ago_ms(view.used, now),
        state=view.state,
        in_flight=None if view.in_flight is None else registry.schema(view.in_flight).name,
    )


def _addresses(accepting: Iterable[ConnectionFigures]) -> list[shown.AddressView]:
    found: dict[str, AddressFigures] = {}
    for process in accepting:
        for figures in process.addresses:
            known = found.get(figures.ip)
            found[figures.ip] = figures if known is None else _sum_figures(known, figures)
    # Ties are sorted by name, so that the order is the same for every request.
    sorted_figures = sorted(
        found.values(), key=lambda each: (-each.connections, -(each.rate or 0), each.ip)
    )
    return [shown.AddressView(*figures) for figures in sorted_figures]


def _count_addresses(
    accepting: Sequence[ConnectionFigures], known: Iterable[shown.AddressView]
) -> int:
    """Connections by address, as far as known: each process reports a bounded number."""
    named = sum(each.connections > 0 for each in known)
    return max(named, *(process.addresses_total for process in accepting), 0)


def _sum_figures(one: AddressFigures, other: AddressFigures) -> AddressFigures:
    rate = None if one.rate is None or other.rate is None else one.rate + other.rate
    return one._replace(connections=one.connections + other.connections, rate=rate)


def _rejection_view(rejection: Rejection, now: float) -> shown.RejectionView:
    occurred = rejection.event
    return shown.RejectionView(
        ago_ms=_ago_ms(occurred.at, now),
        listener=occurred.listener,
        client_address=_address(occurred.host, occurred.port),
        reason=occurred.reason or "",
        text=sentence(rejection),
    )


def _event_view(seq: int, occurred: ConnectionEvent, now: float) -> shown.ConnectionEventView:
    processor = occurred.processor
    return shown.ConnectionEventView(
        seq=seq,
        ago_ms=_ago_ms(occurred.at, now),
        kind=occurred.kind,
        number=occurred.number,
        listener=occurred.listener,
        client_address=_address(occurred.host, occurred.port),
        processor=None if processor is None else role_name(PROCESSOR, processor),
        reason=occurred.reason,
    )


def _unserved(
    reports: Iterable[ProcessorReport], now: float
) -> tuple[shown.UnservedClientView, ...]:
    """Clients of all processors, once for each protocol, with the last address."""
    found: dict[tuple[object, ...], UnservedClient] = {}
    for each in sorted((each for report in reports for each in report.unserved), key=_last):
        key = (each.client_id, each.software_name, each.software_version, each.protocol)
        before = 0 if key not in found else found.pop(key).requests
        found[key] = each._replace(requests=before + each.requests)
    return tuple(
        shown.UnservedClientView(
            ago_ms=_ago_ms(each.last, now),
            client_host=each.host,
            client_id=each.client_id,
            software_name=each.software_name,
            software_version=each.software_version,
            protocol=each.protocol,
            advice=each.advice,
            requests=each.requests,
        )
        for each in list(reversed(found.values()))[:CLIENTS_MAX]
    )


def _last(client: UnservedClient) -> float:
    return client.last


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _ago_ms(at: float, now: float) -> int:
    # An event after the request has age 0, not a negative one.
    return max(0, round((now - at) * 1000))
