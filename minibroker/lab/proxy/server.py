"""The listeners of a proxy, one for each broker, and their connections.

Owns opening a listener when a response first names a broker, the choice of its port, and the limit
of connections. It must never look into a request. Invariant: a listener that was opened stays open
until the proxy stops, and a broker keeps its port, so addresses that clients have cached stay
right. A broker that is lost closes only the connections to it.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final

import trio

from minibroker.broker.metrics.log import EventLog
from minibroker.broker.settings.listeners import META_ADDRESSES
from minibroker.broker.settings.setting import HostPort
from minibroker.lab.proxy.connection import (
    ListenFailed,
    ProxiedConnection,
    UpstreamLost,
    byte_stream,
    check_broker,
    connect,
)
from minibroker.lab.proxy.exchange import TopicNames
from minibroker.lab.proxy.faults import ProxyFaults
from minibroker.lab.proxy.journal import JournaledProcess
from minibroker.lab.proxy.namespace import NamespaceNames
from minibroker.runtime.hosts import resolver_name
from minibroker.runtime.stream import ByteStream

if TYPE_CHECKING:
    import ssl

CONNECTIONS_MAX: Final = 10_000
"""Open connections of clients."""

BACKLOG: Final = 128

_log = EventLog("proxy")


class ProxyServer:
    """Implements ``proxy.connection.ConnectionScope``."""

    def __init__(
        self,
        listener: HostPort,
        namespace: NamespaceNames | None = None,
        process: JournaledProcess | None = None,
        upstream_tls: ssl.SSLContext | None = None,
        client_tls: ssl.SSLContext | None = None,
    ) -> None:
        """``listener`` is the address of the first listener; the others have its host.

        ``process`` is this one, which records for the journal; ``upstream_tls`` is for connections
        to brokers, and ``client_tls`` for those of clients, which are PLAINTEXT without it.
        """
        self.namespace: Final = namespace
        self.client_tls: Final = client_tls
        self._host = listener.host
        self._tls = upstream_tls
        self._table = AddressTable(listener.port)
        self._connections: dict[int, ProxiedConnection] = {}
        self._numbers = count(1)
        self._nursery: trio.Nursery | None = None
        self._waiting: list[tuple[HostPort, socket.socket]] = []
        self._sockets: list[socket.socket] = []
        self.faults: Final = ProxyFaults(self._connections.values)
        self.executor: Final = self.faults.executor
        self.topic_names: Final = TopicNames()
        self.process: Final = process or JournaledProcess()

    # Listeners --------------------------------------------------------------------------------

    def listen_for(self, broker: HostPort) -> HostPort:
        """Listen for a broker, and return the address. Raises ``ListenFailed``."""
        port = self._table.port_of(broker)
        if port is None:
            listening = self._open()
            self._sockets.append(listening)
            port = listening.getsockname()[1]
            self._table.add(broker, port)
            if self._nursery is None:
                self._waiting.append((broker, listening))
            else:
                self._nursery.start_soon(self._accept, broker, listening)
                _log.info("a broker was discovered", broker=broker, listener=port)
        host = self._host
        if host in META_ADDRESSES:
            host = "::1" if ":" in host else "127.0.0.1"
        return HostPort(host, port)

    def _open(self) -> socket.socket:
        failure = ""
        for port in self._table.candidates():
            try:
                return _listening(self._host, port)
            except OSError as error:
                failure = f"{HostPort(self._host, port)}: {error.strerror or error}"
        raise ListenFailed(f"the proxy can't listen on {failure}")

    def local_address(self, broker: HostPort, seen_from: str) -> HostPort:
        """The proxy's address for a broker, for a client that is connected to ``seen_from``."""
        return HostPort(seen_from, self.listen_for(broker).port)

    async def run(self) -> None:
        """Serve until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for broker, listening in self._waiting:
                nursery.start_soon(self._accept, broker, listening)
            self._waiting.clear()
            await trio.sleep_forever()

    def close(self) -> None:
        """Close all listeners."""
        for listening in self._sockets:
            listening.close()

    async def _accept(self, broker: HostPort, listening: socket.socket) -> None:
        source = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
        await trio.serve_listeners(partial(self._serve, broker), [source])

    # Connections ------------------------------------------------------------------------------

    async def _serve(self, broker: HostPort, accepted: trio.SocketStream) -> None:
        stream = byte_stream(accepted)
        if len(self._connections) >= CONNECTIONS_MAX:
            _log.warning("connection rejected: too many", limit=CONNECTIONS_MAX)
            stream.close()
            return
        connection = ProxiedConnection(next(self._numbers), broker, stream, self)
        self._connections[connection.number] = connection
        try:
            await connection.run()
        except Exception as error:  # noqa: BLE001 - logged; it must not end the proxy
            _log.failure("a connection failed", error)
        finally:
            stream.close()
            del self._connections[connection.number]
        write = _log.warning if connection.end.is_problem else _log.debug
        write(
            "connection closed",
            client=connection.client_address,
            broker=broker,
            reason=connection.end.text or connection.end.reason.value,
        )

    async def connect(self, broker: HostPort) -> ByteStream:
        """Connect to a broker. Raises ``UpstreamLost``."""
        return await connect(broker, self._tls)

    async def unreachable(self, brokers: Sequence[HostPort]) -> dict[HostPort, str]:
        """Let brokers answer a request; return why those that can't be reached can't."""
        failures: dict[HostPort, str] = {}

        async def probe(broker: HostPort) -> None:
            try:
                await check_broker(broker, self._tls)
            except UpstreamLost as error:
                failures[broker] = str(error)

        async with trio.open_nursery() as nursery:
            for broker in brokers:
                nursery.start_soon(probe, broker)
        return failures


def _listening(host: str, port: int) -> socket.socket:
    found = socket.getaddrinfo(
        resolver_name(host), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    family, kind, protocol, _, address = found[0]
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


BROKERS_MAX: Final = 1000
"""Brokers of a cluster that the proxy listens for."""

PORTS_TRIED_MAX: Final = 100
"""Ports after that of the first listener that are tried for another broker."""

_PORT_MAX: Final = 65535


class AddressTable:
    """The port of each broker, by the broker's own address."""

    def __init__(self, first_port: int) -> None:
        """``first_port`` is that of the first listener; 0 if any free ports will do."""
        self._first_port = first_port
        self._ports: dict[HostPort, int] = {}

    def port_of(self, broker: HostPort) -> int | None:
        """The port for a broker; None if the proxy does not listen for it yet."""
        return self._ports.get(broker)

    def candidates(self) -> Iterator[int]:
        """Ports to try for another broker; the last one is 0, any free port.

        Raises ``ListenFailed``.
        """
        if len(self._ports) >= BROKERS_MAX:
            raise ListenFailed(f"the cluster has more than {BROKERS_MAX} broker addresses")
        if self._first_port and not self._ports:
            yield self._first_port
            return
        if self._first_port:
            used = set(self._ports.values())
            for port in range(self._first_port + 1, self._first_port + 1 + PORTS_TRIED_MAX):
                if port <= _PORT_MAX and port not in used:
                    yield port
        yield 0

    def add(self, broker: HostPort, port: int) -> None:
        """Keep the port at which the proxy listens for a broker."""
        self._ports[broker] = port
