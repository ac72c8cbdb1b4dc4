"""Records, counts and closes rejected connections.

Owns rejected connections until they are closed; during a connection storm the close is delayed
(``connections.delayed_close``). It must never decide to reject. Invariant: nothing is read from or
written to a rejected connection, it is in no count of connections, and it is counted as closed when
it is closed. Delays are in real time, because they protect the machine: a frozen clock in a test
must not leave connections open. Kafka's ``ConnectionQuotas`` closes at once, or after a delay if
the rate of an address was exceeded.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import trio

from minibroker.broker.admission.acceptor_messages import AcceptedConnection
from minibroker.broker.admission.connection_events import ConnectionEvents, ExceededLimit
from minibroker.broker.connections.address import client_ip
from minibroker.broker.connections.delayed_close import DELAYED_MAX, TICK_S, DelayedCloses
from minibroker.broker.metrics.definitions import CloseReason
from minibroker.broker.metrics.log import ConnectionCloses
from minibroker.broker.metrics.metrics import Fill
from minibroker.broker.process.environment import Environment
from minibroker.broker.process.notes import note
from minibroker.runtime.handoff import Connection

QUEUE = "refused"
"""Name of the queue on ``/metrics``."""

ACCEPTED_IN_STORM: Final = 4
"""Connections accepted in a row during a storm of rejected connections."""


class _Rejected(NamedTuple):
    accepted: AcceptedConnection
    connection: Connection
    reason: CloseReason


class RejectedConnections:
    """Rejected connections of one process; ``run`` must be running to close delayed ones."""

    def __init__(
        self,
        env: Environment,
        events: ConnectionEvents,
        closes: ConnectionCloses,
        *,
        processor: int | None = None,
        sharing: int = 1,
    ) -> None:
        """``processor``: the processor, if it accepts connections itself; ``sharing`` processes
        accept.
        """
        self._env = env
        self._events = events
        self._closes = closes
        self._processor = processor
        self._rejections: DelayedCloses[_Rejected] = DelayedCloses(sharing)
        self._more = trio.Event()
        env.metrics.watch_queue(QUEUE, self._fill)

    def _fill(self) -> Fill:
        return Fill(self._rejections.delayed, DELAYED_MAX, self._rejections.most_delayed)

    def reject(
        self,
        accepted: AcceptedConnection,
        connection: Connection,
        reason: CloseReason,
        limit: ExceededLimit | None,
        *,
        at: float | None = None,
    ) -> None:
        """Reject a connection, with the limit that it exceeded, if any; ``at`` as for ``note``."""
        self._events.reject(accepted, reason.value, limit, self._processor, at=at)
        if self._env.on_note is not None:
            self._note(accepted, reason, limit)
        rejected = _Rejected(accepted, connection, reason)
        if self._rejections.add(rejected):
            self._close(rejected)
        self._more.set()

    def _note(
        self, accepted: AcceptedConnection, reason: CloseReason, limit: ExceededLimit | None
    ) -> None:
        name, value = (None, None) if limit is None else limit[:2]
        details = {
            "listener": accepted.listener,
            "reason": reason.value,
            "limit": name,
            "value": value,
        }
        host, port = accepted.peer
        client = accepted.number, client_ip(host), port
        note(self._env, "connection_rejected", details, client)

    def _close(self, rejected: _Rejected) -> None:
        accepted = rejected.accepted
        rejected.connection.close()
        self._closes.refused(accepted.listener, rejected.reason, client=accepted.peer)

    @property
    def is_storm(self) -> bool:
        """Whether closes are being delayed because too many connections were rejected."""
        return self._rejections.is_storm

    def most_in_a_row(self, otherwise: int) -> int:
        """Connections to accept before others are served; ``otherwise`` without a storm."""
        return ACCEPTED_IN_STORM if self.is_storm else otherwise

    async def pause(self) -> None:
        """Delay the next connection during a storm; call it after a connection was admitted.

        Admitted clients send the same first requests at the same time and would disconnect
        together, to be followed by as many others.
        """
        pause_s = self._rejections.pause_s
        if pause_s > 0:
            await self._env.clock.sleep_real(pause_s)

    def close_all(self) -> None:
        """Close all delayed connections, at shutdown or when descriptors are needed."""
        for rejected in self._rejections.take_all():
            self._close(rejected)

    async def run(self) -> None:
        """Close delayed connections when due; runs until cancelled, then closes all."""
        try:
            while True:
                await self._more.wait()
                while not self._rejections.are_idle:
                    await self._env.clock.sleep_real(TICK_S)
                    for rejected in self._rejections.tick():
                        self._close(rejected)
                self._more = trio.Event()
        finally:
            self.close_all()
