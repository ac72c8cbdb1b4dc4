"""HTTP/1.1 for one ASGI application on trio: small, bounded, and independent of any clock.

Owns the sockets of the control API and their bytes, using h11. It must never know what the
application does. Invariant: at most ``CONNECTIONS_MAX`` connections are open, and a slow or silent
client keeps its connection only until another client needs it. Nothing has a timeout, because the
broker's clock can be frozen or advanced by years. For that reason, and because it loads 3 to 4 MB
less than hypercorn, this is not a library.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from itertools import count
from typing import Any, Final, cast
from urllib.parse import unquote

import h11
import trio
from starlette.types import ASGIApp, Message

from minibroker.broker.metrics.log import EventLog
from minibroker.lab.errors import error_json

CONNECTIONS_MAX: Final = 64
"""Open connections: enough for a console, a scraper and a few dozen test workers."""

HEAD_MAX_BYTES: Final = 16 * 1024
"""Request line and headers together."""

READ_BYTES: Final = 16 * 1024

LINGER_MAX_BYTES: Final = 1024 * 1024
"""Bytes of an unwanted body that are read and dropped, so that its sender sees our answer."""

_OUT_OF_FILES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

_log = EventLog("control")


async def serve_app(
    app: ASGIApp,
    listener: socket.socket,
    stopping: trio.Event,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve ``app`` on a listening socket until ``stopping`` is set.

    Then idle connections are closed at once and current requests are completed; the caller may
    cancel that. The socket is not closed: it may belong to the parent process.
    """
    listening = trio.socket.from_stdlib_socket(listener.dup())
    server = _Server(app)
    with listening:
        async with trio.open_nursery() as connections:
            async with trio.open_nursery() as accepting:
                accepting.start_soon(server.accept, listening, connections)
                task_status.started()
                await stopping.wait()
                accepting.cancel_scope.cancel()
            server.stop()


class _Server:
    """The open connections of one listener."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._open: set[_Connection] = set()
        self._changed = trio.Event()
        """Set when a connection ends or starts to wait for its client."""
        self._ticks = count()

    async def accept(self, listening: trio.socket.SocketType, nursery: trio.Nursery) -> None:
        """Accept connections; at the limit, close the one that is idle for longest.

        Raises the ``OSError`` if the process is out of descriptors and there are no connections
        that could free any: the process is then restarted.
        """
        while True:
            try:
                accepted, _ = await listening.accept()
            except OSError as error:
                if error.errno in _OUT_OF_FILES:
                    if not self._open:
                        raise
                    self._make_way()
                    await self._changed.wait()
                await trio.lowlevel.checkpoint()
                continue
            if len(self._open) >= CONNECTIONS_MAX and not self._make_way():
                _log.warning("control connection rejected: all are busy", limit=CONNECTIONS_MAX)
                accepted.close()
                continue
            connection = _Connection(
                self._app, trio.SocketStream(accepted), self._ticks, self._notify
            )
            self._open.add(connection)
            nursery.start_soon(self._serve, connection)

    async def _serve(self, connection: _Connection) -> None:
        try:
            await connection.serve()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the client disconnected during the request
        finally:
            self._open.discard(connection)
            self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _make_way(self) -> bool:
        waiting = [connection for connection in self._open if connection.waits]
        if not waiting:
            return False
        oldest = min(waiting, key=lambda connection: connection.since)
        self._open.discard(oldest)
        oldest.cancel()
        return True

    def stop(self) -> None:
        """Close connections that wait for a client; let running requests finish."""
        for connection in self._open:
            connection.stop()


class _Connection:
    """One connection: requests one after the other, answered in order."""

    def __init__(
        self,
        app: ASGIApp,
        stream: trio.SocketStream,
        ticks: count[int],
        began_waiting: Callable[[], None],
    ) -> None:
        self._app = app
        self._stream = stream
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_MAX_BYTES)
        self._scope = trio.CancelScope()
        self._ticks = ticks
        self._on_waiting = began_waiting
        self._stopping = False
        self.waits = True
        """Whether the server waits for the client."""
        self.since = next(ticks)
        """Start of the wait, in steps of the server."""

    def cancel(self) -> None:
        """Close the connection immediately."""
        self._scope.cancel()

    def stop(self) -> None:
        """Close the connection after the current response."""
        self._stopping = True
        if self._http.our_state not in {h11.SEND_RESPONSE, h11.SEND_BODY}:
            self._scope.cancel()

    async def serve(self) -> None:
        """Answer requests until either side ends the connection, then close the stream."""
        async with self._stream:
            with self._scope:
                try:
                    while not self._stopping and await self._serve_one():
                        self._http.start_next_cycle()
                except h11.RemoteProtocolError as error:
                    await self._refuse(error)
                if self._http.their_state in {h11.SEND_BODY, h11.ERROR} and not self._stopping:
                    await self._linger()

    async def _serve_one(self) -> bool:
        """Answer one request; return whether the connection can be reused."""
        request = await self.next_event()
        if not isinstance(request, h11.Request):
            return False  # the client has closed its side
        await _Exchange(self, request, self._app).run()
        await self._drop_body()
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE

    async def _drop_body(self) -> None:
        """Read the rest of the body, so that the next request can be found."""
        left = LINGER_MAX_BYTES
        while self._http.their_state is h11.SEND_BODY and left > 0:
            event = await self.next_event()
            left -= len(event.data) if isinstance(event, h11.Data) else 0

    async def next_event(self) -> h11.Event:
        """Return the client's next event. Raises ``h11.RemoteProtocolError`` if it is not HTTP."""
        while True:
            event = self._http.next_event()
            if event is not h11.NEED_DATA:
                return cast("h11.Event", event)
            if self._http.they_are_waiting_for_100_continue:
                await self.send(h11.InformationalResponse(status_code=100, headers=[]))
            self._http.receive_data(await self._wait(self._stream.receive_some, READ_BYTES))

    async def send(self, *events: h11.Event) -> None:
        """Send events in one piece."""
        data = b"".join(self._http.send(event) or b"" for event in events)
        await self._wait(self._stream.send_all, data)

    def peers(self) -> tuple[tuple[str, int], tuple[str, int]]:
        """Addresses of the client and of the server."""
        client, server = self._stream.socket.getpeername(), self._stream.socket.getsockname()
        return (client[0], client[1]), (server[0], server[1])

    async def _wait(self, operation: Any, argument: Any) -> Any:
        self.waits, self.since = True, next(self._ticks)
        self._on_waiting()
        try:
            return await operation(argument)
        finally:
            self.waits = False

    async def _refuse(self, error: h11.RemoteProtocolError) -> None:
        _log.debug("control request is not HTTP", error=error)
        if self._http.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            status = error.error_status_hint
            await self.send(*_plain_answer(status, "BAD_HTTP", str(error)))

    async def _linger(self) -> None:
        """Read remaining bytes, because closing with unread bytes would destroy the response."""
        await self._stream.send_eof()
        left = LINGER_MAX_BYTES
        while left > 0:
            data = await self._wait(self._stream.receive_some, READ_BYTES)
            if not data:
                return
            left -= len(data)


class _Exchange:
    """One request and its response, in ASGI's terms."""

    def __init__(self, connection: _Connection, request: h11.Request, app: ASGIApp) -> None:
        self._connection = connection
        self._request = request
        self._app = app
        self._body_read = False
        self._head: h11.Response | None = None
        self._head_sent = False
        self._finished = trio.Event()
        self._not_http: h11.RemoteProtocolError | None = None

    async def run(self) -> None:
        """Run the application; its exceptions become a 500 response and a log line."""
        self._connection.waits = False
        try:
            await self._app(self._scope(), self._receive, self._send)
        except trio.BrokenResourceError:
            raise
        except Exception as error:  # noqa: BLE001 - an error in one response must not end the server
            if self._not_http is None:
                target = self._request.target.decode()
                _log.failure("control request failed", error, target=target)
        if self._not_http is not None:
            raise self._not_http
        if not self._finished.is_set():
            if self._head_sent:
                raise trio.BrokenResourceError("the response was aborted")
            await self._connection.send(
                *_plain_answer(500, "INTERNAL_ERROR", "the broker failed to respond")
            )

    def _scope(self) -> dict[str, Any]:
        path, _, query = self._request.target.partition(b"?")
        if not path.startswith(b"/"):  # as for a proxy: http://host/path
            path = b"/" + path.partition(b"://")[2].partition(b"/")[2]
        client, server = self._connection.peers()
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": self._request.http_version.decode(),
            "method": self._request.method.decode(),
            "scheme": "http",
            "path": unquote(path.decode()),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": list(self._request.headers),
            "client": client,
            "server": server,
        }

    async def _receive(self) -> Message:
        if self._body_read:
            await self._finished.wait()
            return {"type": "http.disconnect"}
        try:
            event = await self._connection.next_event()
        except h11.RemoteProtocolError as error:
            # Otherwise the application would report an error; for it the client has disconnected.
            self._not_http, self._body_read = error, True
            return {"type": "http.disconnect"}
        if isinstance(event, h11.Data):
            return {"type": "http.request", "body": bytes(event.data), "more_body": True}
        self._body_read = True
        if isinstance(event, h11.EndOfMessage):
            return {"type": "http.request", "body": b"", "more_body": False}
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if self._not_http is not None:
            return
        if message["type"] == "http.response.start":
            self._head = h11.Response(
                status_code=message["status"], headers=list(message.get("headers", ()))
            )
            return
        assert self._head is not None, "ASGI starts an answer before its body"
        events: list[h11.Event] = []
        if not self._head_sent:
            events.append(self._head)
            self._head_sent = True
        if message.get("body") and self._request.method != b"HEAD":
            events.append(h11.Data(data=message["body"]))
        if not message.get("more_body", False):
            events.append(h11.EndOfMessage())
        await self._connection.send(*events)
        if not message.get("more_body", False):
            self._finished.set()


def _plain_answer(status: int, code: str, message: str) -> tuple[h11.Event, ...]:
    content = error_json(code, message, "GET / lists all operations.")
    headers = [
        ("content-type", "application/json"),
        ("content-length", str(len(content))),
        ("connection", "close"),
    ]
    return (
        h11.Response(status_code=status, headers=headers),
        h11.Data(data=content),
        h11.EndOfMessage(),
    )
