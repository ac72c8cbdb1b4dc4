"""A pause of all requests of one processor, while the broker takes a snapshot or returns to one.

Owns the requests that arrive in the pause, which are executed afterwards. It must never know what
happens in the pause. Invariant: after `start` no request is being executed, except for those that
wait for records or for other members of a group; a pause that disconnects has closed the
connections of these, so no response of an earlier state of the broker is sent. Without a pause,
requests cost nothing more. Kafka has no equivalent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import trio

from minibroker.broker.metrics.definitions import CloseReason
from minibroker.broker.network.client_connection import ChannelState

if TYPE_CHECKING:
    from minibroker.broker.network.client_connection import ClientConnection
    from minibroker.broker.network.request_handler import RequestHandler
    from minibroker.broker.process.environment import Environment
    from minibroker.runtime.arena import Block

WAITED_STEPS: Final = 10
"""Steps of the other tasks after which the processor sleeps until requests are executed."""

WAIT_S: Final = 0.001

_IDLE: Final = frozenset({ChannelState.NOT_MUTED, ChannelState.THROTTLED, ChannelState.CLOSED})


class RequestPause:
    """The pause of one processor."""

    def __init__(
        self,
        env: Environment,
        clients: Mapping[int, ClientConnection],
        handler: RequestHandler,
    ) -> None:
        self._clients = clients
        self._handler = handler
        self._sleep_real = env.clock.sleep_real
        self._ended = trio.Event()
        self._ended.set()

    async def start(self, *, disconnect: bool) -> None:
        """Execute no further request until `end`; return when none is being executed."""
        if self._ended.is_set():
            self._ended = trio.Event()
            self._handler.start = self._start_later
        if disconnect:
            for client in self._in_flight():
                client.close(CloseReason.SNAPSHOT_RESTORED)
            await self._wait(lambda: not self._in_flight())
            self._handler.fetch_sessions.clear()
        else:
            await self._wait(lambda: all(client.interruptible for client in self._in_flight()))

    def end(self) -> None:
        """Execute requests again."""
        self._handler.start = self._handler.start_now
        self._ended.set()

    def _in_flight(self) -> list[ClientConnection]:
        return [client for client in self._clients.values() if client.state.state not in _IDLE]

    async def _wait(self, is_done: Callable[[], bool]) -> None:
        for _ in range(WAITED_STEPS):
            if is_done():
                return
            await trio.lowlevel.checkpoint()
        while not is_done():
            await self._sleep_real(WAIT_S)

    async def _start_later(self, client: ClientConnection, body: bytes | Block) -> None:
        await self._ended.wait()
        rest = self._handler.serve(client, body)
        if rest is not None:
            await rest
