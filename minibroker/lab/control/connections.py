"""Client connections in the control API: counts, limits, rejections and recent events.

Owns their records, and the view of them from the reports of the broker's processes. It must never
close a connection. Invariant: there is an answer whichever processes are missing: without the
acceptor's report, connections are counted where they are served, and figures that only the acceptor
has are 0. A sentence about a rejection names only the limit that was exceeded; of an override or a
quota also the address. Kafka's ``SocketServer`` has MBeans instead.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Final, Literal, NamedTuple

from minibroker.broker.admission.connection_events import (
    ADDRESSES_SHOWN_MAX,
    AddressFigures,
    ConnectionEvent,
    ConnectionEventLog,
    ConnectionFigures,
    ExceededLimit,
    ListenerFigures,
    Rejection,
)
from minibroker.broker.admission.connection_quotas import protected_listener
from minibroker.broker.connections.limits import SLOTS, UNLIMITED, client_ip
from minibroker.broker.metrics.definitions import CloseReason
from minibroker.broker.network.client_connection import ConnectionReport
from minibroker.broker.network.reports import (
    CLIENTS_MAX,
    AcceptorReport,
    ProcessorReport,
    UnservedClient,
)
from minibroker.broker.process.environment import ACCEPTOR, PROCESSOR, role_name
from minibroker.broker.process.messages import DetailsRequest
from minibroker.broker.quotas.types import limit_text
from minibroker.broker.settings import (
    ACCEPTOR_MODE,
    KAFKA_CONNECTIONS_MAX,
    MAX_CONNECTION_CREATION_RATE,
    MAX_CONNECTIONS,
    SHARDED,
    Settings,
)
from minibroker.broker.settings.dynamic import DEFAULT_NAME, effective
from minibroker.broker.settings.setting import Setting, listener_name
from minibroker.lab.control.operation import UNAVAILABLE, Operations
from minibroker.lab.schema import Doc
from minibroker_protocol import registry

if TYPE_CHECKING:
    from minibroker.lab.control.broker import ControlledBroker


class Connection(NamedTuple):
    """One client connection."""

    number: Annotated[int, Doc("Unique since the broker started.")]
    connection_id: Annotated[str, Doc("Kafka's form: local address, remote address, number.")]
    listener: str
    client_address: Annotated[str, Doc("Address and port of the client.")]
    principal: Annotated[
        str, Doc("The authenticated principal, e.g. `User:alice`, or `User:ANONYMOUS`.")
    ]
    client_id: Annotated[str | None, Doc("From the last request; null before the first.")]
    software_name: Annotated[str | None, Doc("As it said in ApiVersions.")]
    software_version: Annotated[str | None, Doc("As it said in ApiVersions.")]
    age_ms: int
    idle_ms: Annotated[int, Doc("Time since the last request or response.")]
    state: Annotated[str, Doc("State of the connection, e.g. `reading` or `muted`.")]
    in_flight: Annotated[str | None, Doc("API of the current request, e.g. `Fetch`; null if idle.")]


class ProcessorView(NamedTuple):
    """The connections of a network processor and its queue of new connections."""

    processor: Annotated[str, Doc("E.g. `processor-0`.")]
    slots_total: Annotated[
        int, Doc("Capacity of the queue of new connections; 0 if there is no queue.")
    ]
    slots_used: Annotated[int, Doc("New connections in the queue.")]
    connections_total: Annotated[int, Doc("Number of connections, including those not listed.")]
    connections: Annotated[tuple[Connection, ...], Doc("The 1,000 oldest connections.")]


class ListenerView(NamedTuple):
    """A listener with its connections and limits.

    The inter-broker listener has the limits of the broker unless it has its own.
    """

    listener: str
    host: str
    port: int
    connections: Annotated[int, Doc("Number of connections that count against limits.")]
    limit: Annotated[int | None, Doc("`max.connections`; null for none.")]
    rate: Annotated[float, Doc("New connections a second, as the limit measures them.")]
    rate_limit: Annotated[float | None, Doc("`max.connection.creation.rate`; null for none.")]
    blocked_share: Annotated[
        float, Doc("Share, 0 to 1, of the last ten seconds in which connections had to wait.")
    ]
    waiting: Annotated[
        int, Doc("Accepted connections that wait for a limit, a rate or a processor.")
    ]
    held: Annotated[int, Doc("Accepted connections that are delayed by their per-IP rate.")]
    protected: Annotated[
        bool, Doc("True for the inter-broker listener, which the total limit does not affect.")
    ]


class AddressView(NamedTuple):
    """The connections of one IP address."""

    ip: str
    connections: int
    limit: Annotated[int | None, Doc("The lowest limit that applies to it; null if there is none.")]
    rate: Annotated[float | None, Doc("New connections per second; null if no rate is limited.")]
    rate_limit: Annotated[
        float | None,
        Doc("Its quota `connection_creation_rate`, or the default quota; null if there is none."),
    ]


class RejectionView(NamedTuple):
    """A rejected connection with the reason."""

    ago_ms: int
    listener: str
    client_address: str
    reason: Annotated[str, Doc("As the label `reason` of `minibroker_connections_closed_total`.")]
    text: Annotated[str, Doc("Description: which limit, its value, how to change it.")]


class ConnectionEventView(NamedTuple):
    """An event of a connection."""

    seq: Annotated[int, Doc("Sequence number, for finding new events after another request.")]
    ago_ms: int
    kind: Annotated[
        Literal["accepted", "waiting", "held", "handed", "refused", "closed"],
        Doc("In the order in which they can occur; `held` means delayed by a per-IP rate."),
    ]
    number: Annotated[int, Doc("The number of the connection.")]
    listener: str
    client_address: str
    processor: Annotated[
        str | None, Doc("The processor of the connection; null if none is assigned yet.")
    ]
    reason: Annotated[
        str | None,
        Doc(
            "Why it was rejected or closed, or what it waits for: a setting, `processors` that are "
            "full, or `tokens` of other processors. Otherwise null."
        ),
    ]


class UnservedClientView(NamedTuple):
    """A client that requested a protocol which the broker does not support."""

    ago_ms: Annotated[int, Doc("Time since the last request.")]
    client_host: str
    client_id: str | None
    software_name: Annotated[str | None, Doc("As it said in ApiVersions.")]
    software_version: Annotated[str | None, Doc("As it said in ApiVersions.")]
    protocol: Annotated[str, Doc("The requested protocol, e.g. `share groups (KIP-932)`.")]
    advice: Annotated[str, Doc("What to change in the client.")]
    requests: Annotated[int, Doc("Number of requests.")]


class ConnectionsView(NamedTuple):
    """Client connections, their limits and recent events."""

    mode: Annotated[Literal["single", "sharded"], Doc("The setting `acceptor.mode`.")]
    now: Annotated[float, Doc("The broker's clock in seconds.")]
    total: Annotated[int, Doc("Number of connections that count against limits.")]
    limit: Annotated[
        int | None, Doc("The smaller of `max.connections` and `kafka_connections_max`, or null.")
    ]
    rate: Annotated[float, Doc("New connections a second, as the limit measures them.")]
    rate_limit: Annotated[
        float | None, Doc("`max.connection.creation.rate` of the broker; null for none.")
    ]
    listeners: tuple[ListenerView, ...]
    processors: tuple[ProcessorView, ...]
    addresses: Annotated[
        tuple[AddressView, ...],
        Doc("The 100 addresses with most connections, or with the latest ones."),
    ]
    addresses_total: Annotated[int, Doc("Number of addresses that have connections.")]
    rejections: Annotated[tuple[RejectionView, ...], Doc("The last 100, newest first.")]
    connection_events: Annotated[tuple[ConnectionEventView, ...], Doc("The last 500, newest last.")]
    unserved: Annotated[
        tuple[UnservedClientView, ...],
        Doc(
            "Clients that requested a protocol which is not supported: the last 100, newest first."
        ),
    ]


class _RecentEvents:
    """The recent events that the reports of earlier requests had."""

    def __init__(self, broker: ControlledBroker) -> None:
        self.log: Final = ConnectionEventLog(broker.env.incarnation)


CONNECTION_OPERATIONS: Final = Operations()


@CONNECTION_OPERATIONS.add("GET", "/v1/connections", errors=UNAVAILABLE)
async def list_connections(broker: ControlledBroker) -> ConnectionsView:
    """List client connections, limits and recent connection events."""
    env = broker.env
    requested = env.clock.now()
    names = dict(enumerate(broker.processors))
    acceptor = role_name(ACCEPTOR, 0)
    reports = await broker.publisher.request_all(DetailsRequest(), [acceptor, *names.values()])
    event_log = broker.state(_RecentEvents).log
    event_log.take({name: report.recent for name, report in reports.items()}, requested)
    return connections_view(
        BrokerContext(effective(env.settings, broker.image.configs), env.endpoints, len(names)),
        Reports(
            reports.get(acceptor),
            {index: reports[name] for index, name in names.items() if name in reports},
        ),
        event_log,
        env.clock.now(),
    )


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


def connections_view(
    context: BrokerContext, reports: Reports, event_log: ConnectionEventLog, now: float
) -> ConnectionsView:
    """Return all figures of connections."""
    accepting = reports.accepting()
    addresses = _addresses(accepting)
    settings = context.settings
    counted = sum(process.total for process in accepting)
    served = sum(report.connections_total for report in reports.processors.values())
    return ConnectionsView(
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
        rejections=tuple(_rejection_view(each, now) for each in reversed(event_log.rejections)),
        connection_events=tuple(_event_view(seq, each, now) for seq, each in event_log.events),
        unserved=_unserved(reports.processors.values(), now),
    )


def _listeners(
    context: BrokerContext, reports: Reports, accepting: Sequence[ConnectionFigures]
) -> Iterator[ListenerView]:
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
        yield ListenerView(
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


def _processors(context: BrokerContext, reports: Reports, now: float) -> Iterator[ProcessorView]:
    used = (0,) * context.processors if reports.acceptor is None else reports.acceptor.slots
    for index in range(context.processors):
        report = reports.processors.get(index)
        yield ProcessorView(
            role_name(PROCESSOR, index),
            slots_total=0 if context.is_sharded else SLOTS,
            slots_used=used[index],
            connections_total=0 if report is None else report.connections_total,
            connections=tuple(
                _connection(view, now) for view in (report.connections if report else ())
            ),
        )


def _connection(view: ConnectionReport, now: float) -> Connection:
    return Connection(
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


def _addresses(accepting: Iterable[ConnectionFigures]) -> list[AddressView]:
    found: dict[str, AddressFigures] = {}
    for process in accepting:
        for figures in process.addresses:
            known = found.get(figures.ip)
            found[figures.ip] = figures if known is None else _sum_figures(known, figures)
    # Ties are sorted by name, so that the order is the same for every request.
    sorted_figures = sorted(
        found.values(), key=lambda each: (-each.connections, -(each.rate or 0), each.ip)
    )
    return [AddressView(*figures) for figures in sorted_figures]


def _count_addresses(accepting: Sequence[ConnectionFigures], known: Iterable[AddressView]) -> int:
    """Connections by address, as far as known: each process reports a bounded number."""
    named = sum(each.connections > 0 for each in known)
    return max(named, *(process.addresses_total for process in accepting), 0)


def _sum_figures(one: AddressFigures, other: AddressFigures) -> AddressFigures:
    rate = None if one.rate is None or other.rate is None else one.rate + other.rate
    return one._replace(connections=one.connections + other.connections, rate=rate)


def _rejection_view(rejection: Rejection, now: float) -> RejectionView:
    occurred = rejection.event
    return RejectionView(
        ago_ms=_ago_ms(occurred.at, now),
        listener=occurred.listener,
        client_address=_address(occurred.host, occurred.port),
        reason=occurred.reason or "",
        text=sentence(rejection),
    )


def _event_view(seq: int, occurred: ConnectionEvent, now: float) -> ConnectionEventView:
    processor = occurred.processor
    return ConnectionEventView(
        seq=seq,
        ago_ms=_ago_ms(occurred.at, now),
        kind=occurred.kind,
        number=occurred.number,
        listener=occurred.listener,
        client_address=_address(occurred.host, occurred.port),
        processor=None if processor is None else role_name(PROCESSOR, processor),
        reason=occurred.reason,
    )


def _unserved(reports: Iterable[ProcessorReport], now: float) -> tuple[UnservedClientView, ...]:
    """Clients of all processors, once for each protocol, with the last address."""
    found: dict[tuple[object, ...], UnservedClient] = {}
    for each in sorted((each for report in reports for each in report.unserved), key=_last):
        key = (each.client_id, each.software_name, each.software_version, each.protocol)
        before = 0 if key not in found else found.pop(key).requests
        found[key] = each._replace(requests=before + each.requests)
    return tuple(
        UnservedClientView(
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


# Rejections in words --------------------------------------------------------------------------


def sentence(rejection: Rejection) -> str:
    """Describe why a connection was rejected or closed."""
    event, limit, why = rejection
    host = client_ip(event.host)
    if limit is None:
        return _security_text(event, why) or _resource_text(event)
    match event.reason:
        case CloseReason.DROPPED:
            return (
                f"{host} was rejected: the broker had {_connections_text(limit)}, the most that "
                f"{_setting_text(limit)} allows; close some, or raise the limit."
            )
        case CloseReason.MAX_CONNECTIONS:
            return (
                f"{host} was disconnected: the broker had more connections than "
                f"{_setting_text(limit)} allows, and this one was the least recently "
                "used; close some, or raise the limit."
            )
        case CloseReason.IP_RATE if limit.value == 0:
            text = f"{_quota_text(limit)} allows no connection; raise or remove it."
            return f"{host} was rejected: {text}"
        case CloseReason.IP_RATE:
            return (
                f"{host} was rejected: its connection rate exceeded {_quota_text(limit)}; keep "
                f"connections open, or raise the quota."
            )
        case _:
            return (
                f"{host} was rejected: it had {_connections_text(limit)}, the most that "
                f"{_setting_text(limit)} allows; close some, or raise the limit."
            )


def _connections_text(limit: ExceededLimit) -> str:
    if limit.value == 0:
        return "no connection"
    return "1 connection" if limit.value == 1 else f"{limit.value} connections"


def _setting_text(limit: ExceededLimit) -> str:
    """Format the setting as configured; of an override only the entry of this host."""
    entry = str(limit.value) if limit.whose is None else f"{limit.whose}:{limit.value}"
    return f"{limit.setting}={entry}"


def _quota_text(limit: ExceededLimit) -> str:
    whose = "of all addresses" if limit.whose == DEFAULT_NAME else f"of the ip {limit.whose}"
    return f"the quota {limit.setting}={limit_text(limit.value)} {whose}"


_SECURITY_TEXTS: Final = {
    CloseReason.TLS_FAILED: (
        "the TLS handshake failed",
        "check that the client speaks TLS, trusts the broker's certificate and has one if it must.",
    ),
    CloseReason.AUTHENTICATION_FAILED: (
        "authentication failed",
        "check the client's mechanism, user name and secret.",
    ),
    CloseReason.SESSION_EXPIRED: (
        "its session had expired",
        "check that the client can authenticate again (connections.max.reauth.ms).",
    ),
}


def _security_text(event: ConnectionEvent, why: str) -> str:
    for reason, (what, advice) in _SECURITY_TEXTS.items():
        if reason == event.reason:
            # The client chose this text, so it may contain terminal escapes.
            plain = "".join(character if character.isprintable() else "?" for character in why)
            return f"{client_ip(event.host)} was rejected: {what} ({plain}); {advice}"
    return ""


def _resource_text(event: ConnectionEvent) -> str:
    process = role_name(PROCESSOR, event.processor or 0)
    if event.reason == CloseReason.PROCESS_DIED:
        return (
            f"{client_ip(event.host)} lost its connection: {process} died before it was "
            f"served; connect again."
        )
    return (
        f"{client_ip(event.host)} was rejected: {process} has no descriptors left; close "
        f"connections, or raise the system's limit (ulimit -n)."
    )
