"""Serves the requests of each connection in order, from authentication to the last response.

Owns what happens between two requests of a connection: reauthentication, the end of a throttle, and
fairness to other connections. It must never know what a request does, or why a connection closes.
While a connection waits for its next request, the selector reads its socket, and serves requests
that can be answered at once; its task, which is started when it is needed, serves all others.
Invariant: at most one request of a connection is served at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from minibroker.broker.metrics.definitions import CloseReason
from minibroker.broker.network.request_reader import SCRATCH_BYTES, RequestReader
from minibroker.broker.network.selector import Selector
from minibroker.broker.settings import SOCKET_REQUEST_MAX_BYTES
from minibroker.runtime.arena import ArenaPart, Block
from minibroker.runtime.stream import StreamClosed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from minibroker.broker.admission.new_connection_pacer import NewConnectionPacer
    from minibroker.broker.network.authenticator import Authenticator
    from minibroker.broker.network.client_connection import ClientConnection
    from minibroker.broker.network.request_cost import RequestCost
    from minibroker.broker.network.request_handler import RequestHandler
    from minibroker.broker.process.environment import Environment


class RequestLoop:
    """Serves the requests of one processor's connections."""

    def __init__(
        self,
        env: Environment,
        part: ArenaPart,
        pacer: NewConnectionPacer,
        authenticator: Authenticator,
        request_handler: RequestHandler,
        *,
        start_task: Callable[[ClientConnection], None],
        on_use: Callable[[int], None],
        on_end: Callable[[ClientConnection], None],
    ) -> None:
        """``start_task`` starts a task that calls `take_over`.

        ``on_use`` is called with the number of a connection that sent a request, ``on_end`` when
        the client of a connection without a task has disconnected.
        """
        self._env = env
        self._part = part
        self._pacer = pacer
        self._authenticator = authenticator
        self._request_handler = request_handler
        self._on_use = on_use
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.selector = Selector(
            self._start_body,
            request_handler.respond,
            request_handler.delayed,
            pacer,
            scratch=self._scratch,
            work_time=env.work_time,
            start_task=start_task,
            on_end=on_end,
        )

    def attend(self, client: ClientConnection) -> None:
        """Serve a connection that needs no authentication, without a task until it needs one."""
        client.reader = self._reader(client)
        self.selector.attend(client)

    def _reader(self, client: ClientConnection) -> RequestReader:
        return RequestReader(
            client.stream,
            self._part,
            self._env.settings[SOCKET_REQUEST_MAX_BYTES],
            self._scratch,
            self._env.clock.real_s,
            number=client.number,
            address=client.caller.client_host,
        )

    async def take_over(self, client: ClientConnection) -> None:
        """Serve a connection that had no task until the client disconnects or the broker stops."""
        reader = client.reader
        assert reader is not None
        rest = self.selector.taken_over(client)
        is_open = True
        if rest is None:
            await trio.lowlevel.checkpoint_if_cancelled()
            is_open = await self._serve_next(client, reader)
        else:
            await self._finish(client, rest)
        await self._serve(client, reader, is_open=is_open)

    async def run(self, client: ClientConnection) -> None:
        """Authenticate, then serve requests until the client disconnects or the broker stops."""
        client.reader = reader = self._reader(client)
        if not await self._authenticator.authenticate(client, reader):
            return
        self._note_session(client, is_first=True)
        is_open = await self._serve_next(client, reader)
        await self._serve(client, reader, is_open=is_open)

    async def _serve(
        self, client: ClientConnection, reader: RequestReader, *, is_open: bool
    ) -> None:
        while is_open and not self._env.stopping.is_set():
            # Sessions that expire need reauthentication, which waits.
            rest = None
            if client.session_expires_at is None:
                rest = await self.selector.wait(client)
            if rest is None:
                is_open = await self._serve_next(client, reader)
            else:
                await self._finish(client, rest)
        if is_open:
            client.close_reason = CloseReason.STOPPING

    def _note_session(self, client: ClientConnection, *, is_first: bool) -> None:
        for observer in self._request_handler.observers:
            observer.authenticated(client, is_first=is_first)

    async def _serve_next(self, client: ClientConnection, reader: RequestReader) -> bool:
        """Read and serve one request; return whether the client is still connected."""
        stream = client.stream
        waits = stream.waits
        try:
            body = await reader.next_body()
        except StreamClosed:
            await self._pacer.wait_turn()
            raise
        if body is None:
            await self._pacer.wait_turn()
            return False
        if client.is_new and stream.waits > waits:  # Others were opened while it waited.
            await self._pace(body)
        if client.session_expires_at is not None:
            self._on_use(client.number)
            block = await reader.store(body) if isinstance(body, bytes) else body
            if await self._authenticator.reauthenticate(client, reader, block):
                self._note_session(client, is_first=False)
                return True
            body = block
        self._note_request(client)
        rest = self._request_handler.serve(client, body)
        was_throttled = rest is not None and await self._finish(client, rest)
        if stream.waits == waits and not was_throttled:
            # A client that pipelines requests may not have waited anywhere above, and would
            # otherwise keep other connections from being served.
            await trio.lowlevel.checkpoint()
        return True

    def _start_body(self, client: ClientConnection, body: bytes) -> RequestCost | Awaitable[None]:
        self._note_request(client)
        return self._request_handler.start(client, body)

    def _note_request(self, client: ClientConnection) -> None:
        if client.is_new:
            client.is_new = False
        else:
            self._pacer.note_served()
        self._on_use(client.number)

    async def _finish(self, client: ClientConnection, rest: Awaitable[None]) -> bool:
        """Complete a request, and the throttle that it caused; return whether there was one."""
        await rest
        if client.throttle_end is None:
            return False
        await client.throttle_end.wait()
        client.throttle_end = None
        return True

    async def _pace(self, first: bytes | Block) -> None:
        try:
            await self._pacer.wait_turn()
        except BaseException:
            if isinstance(first, Block):
                first.release()
            raise
