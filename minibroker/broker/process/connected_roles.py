"""The processors, recorder and workers that are connected to one I/O worker.

Owns their connections. It must never know what they request. Invariant: when a role is registered,
the connection of its former process is closed and none of its requests is executed. Kafka has no
equivalent.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import trio

from minibroker.broker.process.environment import WORKER, Environment
from minibroker.broker.process.messages import RegisterRole
from minibroker.runtime.channel import Channel
from minibroker.runtime.rpc import RpcConnection

STOP_S: Final = 3.0
"""How long, in real time, processors and the recorder may take to stop after the broker: more than
they take to send the last responses and events."""


class _Connection:
    """One process of a role."""

    def __init__(self, channel: Channel, handle: Callable[[_Connection, Any], Any]) -> None:
        self.rpc = RpcConnection(channel, partial(handle, self))
        self.closed = trio.Event()


class ConnectedRoles:
    """The connections of one worker; ``run`` must be running."""

    def __init__(self, env: Environment, handle: Callable[[Any], Any]) -> None:
        """``handle`` executes a request and returns its reply, or an awaitable of it."""
        self._env = env
        self._handle = handle
        self._connections: dict[tuple[str, int], _Connection] = {}

    async def run(self) -> None:
        """Accept and serve connections until cancelled."""
        listener = self._env.transport.listen(self._env.name)
        async with trio.open_nursery() as nursery:
            while True:
                nursery.start_soon(self._serve, await listener.accept())

    async def wait_disconnected(self) -> None:
        """Execute the last requests of processors and the recorder that stop at the same time."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cancel_after_limit, nursery.cancel_scope)
            for (role, _), connection in list(self._connections.items()):
                if role != WORKER:  # Otherwise two workers would wait for each other.
                    await connection.closed.wait()
            nursery.cancel_scope.cancel()

    async def _cancel_after_limit(self, scope: trio.CancelScope) -> None:
        await self._env.clock.sleep_real(STOP_S)
        scope.cancel()

    async def _serve(self, channel: Channel) -> None:
        connection = _Connection(channel, self._handle_request)
        try:
            await connection.rpc.run()
        finally:
            connection.closed.set()

    def _handle_request(self, connection: _Connection, request: Any) -> Any:
        if isinstance(request, RegisterRole):
            return self._register(connection, request)
        return self._handle(request)

    async def _register(self, connection: _Connection, registration: RegisterRole) -> None:
        process = registration.role, registration.number
        previous = self._connections.get(process)
        self._connections[process] = connection
        if previous is not None:
            previous.rpc.close()
            await previous.closed.wait()
