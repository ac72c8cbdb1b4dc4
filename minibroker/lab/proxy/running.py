"""Runs a proxy as one process: from its arguments to the end.

Owns the order of the start: listen, look for the brokers, say that it is ready. It must never know
requests. Invariant: it says that it is ready only when clients can connect and at least one broker
can be reached; later, brokers may come and go.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, cast

import trio

from minibroker.broker.metrics import log
from minibroker.broker.settings.types import HostPort
from minibroker.lab.control.journal_shapes import JournalBackend
from minibroker.lab.control.serve import listener_url, open_listener, serve
from minibroker.lab.proxy.addresses import ListenFailed
from minibroker.lab.proxy.backend import PROXY_OPERATIONS, ProxyBackend
from minibroker.lab.proxy.journal import JournaledProcess
from minibroker.lab.proxy.server import ProxyServer
from minibroker.ready import ProxyReady
from minibroker.runtime.clock import SharedClock

if TYPE_CHECKING:
    import ssl

    from minibroker.lab.control.backend import Backend

_CONTROL_HOST: Final = "127.0.0.1"
_log = log.EventLog("proxy")


KeepJournal: TypeAlias = Callable[[JournaledProcess, Callable[..., None]], JournalBackend]
"""Returns the journal of a process; the second argument starts a task."""


class ProxyOptions(NamedTuple):
    """What a proxy is started with; port 0 selects a free port."""

    upstream: Sequence[HostPort]
    listener: HostPort
    control_port: int = 0
    upstream_tls: ssl.SSLContext | None = None
    """For connections to the brokers, which are PLAINTEXT without it."""


class ProxyStartError(Exception):
    """The proxy cannot start; the text says why and how to fix it."""


class NoBrokerReachable(ProxyStartError):
    """None of the upstream addresses accepts connections."""


async def run_proxy(
    options: ProxyOptions,
    wait_for_end: Callable[[], Awaitable[object]],
    on_ready: Callable[[ProxyReady], None],
    keep_journal: KeepJournal,
) -> None:
    """Run a proxy until ``wait_for_end`` returns. Raises ``ProxyStartError``."""
    failure: ProxyStartError | None = None
    async with trio.open_nursery() as nursery:

        async def end() -> None:
            await wait_for_end()
            nursery.cancel_scope.cancel()

        nursery.start_soon(end)
        try:
            await _serve(options, on_ready, keep_journal)
        except ProxyStartError as error:  # Raised below, where no nursery groups it.
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _serve(
    options: ProxyOptions, on_ready: Callable[[ProxyReady], None], keep_journal: KeepJournal
) -> None:
    log.configure("proxy", SharedClock().wall_ms)
    process = JournaledProcess()
    server = ProxyServer(options.listener, process=process, upstream_tls=options.upstream_tls)
    with closing(server), _listen(server, options) as control:
        await _look_for_brokers(server, options.upstream)
        async with trio.open_nursery() as nursery:
            journal = keep_journal(process, nursery.start_soon)
            make_backend = partial(ProxyBackend, server.faults, journal)
            nursery.start_soon(server.run)
            nursery.start_soon(
                partial(
                    serve,
                    cast("Callable[[], Backend]", make_backend),
                    control,
                    trio.Event(),
                    operations=PROXY_OPERATIONS,
                )
            )
            addresses = dict.fromkeys(map(server.listen_for, options.upstream))
            bootstrap = ",".join(map(str, addresses))
            on_ready(ProxyReady(bootstrap, listener_url(control), os.getpid()))


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
