"""Runs a proxy as one process with its control API: from its arguments to the end.

Owns the order of the start: listen, look for the brokers, say that it is ready; and the choice of
operations: those of a broker, with the same paths and fields, without those that need a broker's
state. It must never know requests of clients. Invariant: it says that it is ready only when clients
can connect and at least one broker can be reached; later, brokers may come and go.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Final, NamedTuple

import trio

from minibroker import __version__
from minibroker.broker.metrics import log
from minibroker.broker.settings.setting import (
    HostPort,
    parse_host_port,
    parse_plaintext_listener,
)
from minibroker.lab.control.attach import listener_url, open_listener, serve
from minibroker.lab.control.cluster import Health, ProcessHealth
from minibroker.lab.control.console import INDEX_OPERATIONS
from minibroker.lab.control.faults import FAULT_OPERATIONS
from minibroker.lab.control.journal import JOURNAL_OPERATIONS
from minibroker.lab.control.journal_collector import JournalCollector, journal_of_one_process
from minibroker.lab.control.operation import ApiOperation, Operations
from minibroker.lab.proxy.connection import ListenFailed
from minibroker.lab.proxy.faults import ProxyFaults
from minibroker.lab.proxy.journal import JournaledProcess
from minibroker.lab.proxy.server import ProxyServer
from minibroker.ready import ProxyReady
from minibroker.runtime.clock import SharedClock

if TYPE_CHECKING:
    import ssl

    from minibroker.secured import Secured

_CONTROL_HOST: Final = "127.0.0.1"
_log = log.EventLog("proxy")


class ProxyOptions(NamedTuple):
    """What a proxy is started with; port 0 selects a free port."""

    upstream: Sequence[HostPort]
    listener: HostPort
    control_port: int = 0
    upstream_tls: ssl.SSLContext | None = None
    """For connections to the brokers, which are PLAINTEXT without it."""
    secured: Secured | None = None
    """The certificate for clients, whose connections are PLAINTEXT without it."""


_TLS_SCHEME: Final = "SSL://"


def parse_listener(text: str, *, has_tls: bool) -> HostPort:
    """Parse the address for clients. Raises ``BadValueError``."""
    if has_tls:
        return parse_host_port(text.removeprefix(_TLS_SCHEME))
    return parse_plaintext_listener(text)


class ControlledProxy:
    """A running proxy. Implements ``operation.ApiContext``."""

    def __init__(self, faults: ProxyFaults, journal: JournalCollector) -> None:
        self.operations: Final = PROXY_OPERATIONS
        self.faults: Final = faults
        self.journal: Final = journal
        self.started: Final = trio.current_time()


_HEALTH_OPERATIONS: Final = Operations()


@_HEALTH_OPERATIONS.add("GET", "/v1/health", public=True)
async def get_health(proxy: ControlledProxy) -> Health:
    """Return the health of the broker; 503 until all processes that clients need are running."""
    return Health(
        ready=True,
        status="ready",
        conditions=(),
        version=__version__,
        uptime_ms=int((trio.current_time() - proxy.started) * 1000),
        processes=(ProcessHealth("proxy", os.getpid(), "running", 0),),
    )


PROXY_OPERATIONS: Final[tuple[ApiOperation, ...]] = (
    *INDEX_OPERATIONS,
    *_HEALTH_OPERATIONS,
    *FAULT_OPERATIONS,
    *JOURNAL_OPERATIONS,
)
"""The operations that a proxy has."""


class ProxyStartError(Exception):
    """The proxy cannot start; the text says why and how to fix it."""


class NoBrokerReachable(ProxyStartError):
    """None of the upstream addresses accepts connections."""


async def run_proxy(
    options: ProxyOptions,
    wait_for_end: Callable[[], Awaitable[object]],
    on_ready: Callable[[ProxyReady], None],
) -> None:
    """Run a proxy until ``wait_for_end`` returns. Raises ``ProxyStartError``."""
    failure: ProxyStartError | None = None
    async with trio.open_nursery() as nursery:

        async def end() -> None:
            await wait_for_end()
            nursery.cancel_scope.cancel()

        nursery.start_soon(end)
        try:
            await _serve(options, on_ready)
        except ProxyStartError as error:  # Raised below, where no nursery groups it.
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _serve(options: ProxyOptions, on_ready: Callable[[ProxyReady], None]) -> None:
    log.configure("proxy", SharedClock().wall_ms)
    process = JournaledProcess()
    server = ProxyServer(
        options.listener,
        process=process,
        upstream_tls=options.upstream_tls,
        client_tls=None if options.secured is None else _client_tls(options.secured),
    )
    with closing(server), _listen(server, options) as control:
        await _look_for_brokers(server, options.upstream)
        async with trio.open_nursery() as nursery:
            journal = journal_of_one_process(process, nursery.start_soon)
            proxy = ControlledProxy(server.faults, journal)
            nursery.start_soon(server.run)
            nursery.start_soon(serve, proxy, control, trio.Event())
            addresses = dict.fromkeys(map(server.listen_for, options.upstream))
            bootstrap = ",".join(map(str, addresses))
            config = "" if options.secured is None else options.secured.properties
            on_ready(ProxyReady(bootstrap, listener_url(control), os.getpid(), config))


def _client_tls(secured: Secured) -> ssl.SSLContext:
    """The context for connections of clients, as that of a broker with the same files."""
    from minibroker.broker.network.tls import tls_context
    from minibroker.broker.settings import Settings

    pairs = [f"{name}={value}" for name, value in secured.settings().items()]
    return tls_context(Settings.from_sources(pairs=pairs), "SSL").context


def _listen(server: ProxyServer, options: ProxyOptions) -> socket.socket:
    """Listen for all brokers, and return the listening socket of the control API."""
    try:
        for broker in options.upstream:
            server.listen_for(broker)
        return open_listener(_CONTROL_HOST, options.control_port)
    except ListenFailed as error:
        raise ProxyStartError(
            f"{error}; choose another address with --listener (port 0 takes a free one)"
        ) from None
    except OSError as error:
        raise ProxyStartError(f"{error}; choose another port with --control-port") from None


async def _look_for_brokers(server: ProxyServer, upstream: Sequence[HostPort]) -> None:
    failures = await server.unreachable(upstream)
    if len(failures) == len(set(upstream)):
        reasons = "\n  ".join(failures.values())
        raise NoBrokerReachable(
            f"no upstream broker answers:\n  {reasons}\n"
            "start the cluster, or name another address with --upstream HOST:PORT"
        )
    for reason in failures.values():
        _log.warning("an upstream broker does not answer", reason=reason)
