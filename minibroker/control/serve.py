"""The control API's two entrances: its listening socket, and serving a backend on it.

Owns what the launcher and the controller role call. Must never import the web framework before
somebody asks: the launcher imports this before the fork, only one process serves, and many a
broker is never asked. The invariant: the socket is made once and outlives any process that serves
on it, so that a restarted controller is found at the same port. Nothing of Kafka's.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import trio

from minibroker.config.listeners import META_ADDRESSES
from minibroker.observability.log import Log

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from minibroker.control.backend import Backend

_log = Log("control")

LOAD_RETRY_S: Final = 1.0
"""The pause before the control API is loaded again."""

LISTEN_BACKLOG: Final = 64
"""Connections the kernel holds while the controller is busy or being restarted."""


def open_listener(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one.

    Raises ``OSError`` whose text names the address, if it can't be had.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        return _listening(socket.socket(family, kind, protocol), address)
    except OSError as error:
        # With one argument, as with two the text would begin with a number.
        what = f"the control API can't listen at {host}:{port}: {error.strerror}"
        raise OSError(what) from error


def _listening(listener: socket.socket, address: Any) -> socket.socket:
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(LISTEN_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def listener_url(listener: socket.socket) -> str:
    """Where people reach the listener, e.g. ``http://127.0.0.1:8080``; loopback for any address."""
    host, port = listener.getsockname()[:2]
    if host in META_ADDRESSES:
        host = "::1" if ":" in host else "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def serve(
    make_backend: Callable[[], Backend],
    listener: socket.socket,
    stopping: trio.Event,
    *,
    allowed_hosts: Iterable[str] = (),
    sleep: Callable[[float], Awaitable[None]] = trio.sleep,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the control API on ``listener`` until ``stopping`` is set.

    Started at once, as the socket listens: the first request waits while what answers it is
    loaded, and ``make_backend`` called. Returns when those at work at the end are answered; cancel
    it if that takes too long.
    ``sleep`` waits in real time; what cannot be loaded, e.g. for want of descriptors, is tried
    again. ``allowed_hosts`` are names, besides IP addresses and ``localhost``, that requests may
    give for this broker.
    """
    task_status.started()
    if not await _somebody_asks(listener, stopping):
        return
    while (app := _load(make_backend, allowed_hosts)) is None:
        await sleep(LOAD_RETRY_S)
    from minibroker.control.server import serve_app

    await serve_app(app, listener, stopping)


def _load(make_backend: Callable[[], Backend], allowed_hosts: Iterable[str]) -> ASGIApp | None:
    try:
        from minibroker.control import server  # noqa: F401
        from minibroker.control.http import make_app

        return make_app(make_backend(), allowed_hosts)
    except (OSError, ImportError) as error:
        _log.error("the control API can't be loaded; it is tried again", why=error)
        return None


async def _somebody_asks(listener: socket.socket, stopping: trio.Event) -> bool:
    """Whether a connection came before ``stopping`` was set."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_cancel_when, stopping, nursery.cancel_scope)
        await trio.lowlevel.wait_readable(listener)
        nursery.cancel_scope.cancel()
    return not stopping.is_set()


async def _cancel_when(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()
