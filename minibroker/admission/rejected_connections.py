"""Connections that are turned away at the door: noted, counted and closed.

Owns them from the decision to their close, which in a storm comes later (``connections.refusals``);
never who decides. Invariant: nothing is read from them nor said to them, they are in no count of
connections, and each is counted as closed when it is. Time for them is real, since they are held
for the machine's sake: a clock that stands still in a test leaves nobody hanging. Kafka's
``ConnectionQuotas`` closes at once, or after a delay if an address was too fast.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import trio

from minibroker.admission.acceptor_messages import Accepted
from minibroker.admission.connection_events import Happenings, Limit
from minibroker.connections.delayed_close import HELD_MAX, TICK_S, Refusals
from minibroker.observability.definitions import CloseReason
from minibroker.observability.log import ConnectionCloses
from minibroker.observability.metrics import Fill
from minibroker.process.environment import Environment
from minibroker.runtime.handoff import Connection

QUEUE = "refused"
"""Its name on ``/metrics``."""

ACCEPTED_IN_STORM: Final = 4
"""Connections accepted in a row in a storm of those who are turned away."""


class _Refused(NamedTuple):
    accepted: Accepted
    connection: Connection
    reason: CloseReason


class TurnedAway:
    """Those of one process; ``run`` must be running for those that are held."""

    def __init__(
        self,
        env: Environment,
        happenings: Happenings,
        closes: ConnectionCloses,
        *,
        processor: int | None = None,
        sharing: int = 1,
    ) -> None:
        """``processor`` is the one that accepts for itself, of ``sharing`` processes that do."""
        self._env = env
        self._happenings = happenings
        self._closes = closes
        self._processor = processor
        self._refusals: Refusals[_Refused] = Refusals(sharing)
        self._more = trio.Event()
        env.metrics.watch_queue(QUEUE, self._fill)

    def _fill(self) -> Fill:
        return Fill(self._refusals.held, HELD_MAX, self._refusals.most_held)

    def refuse(
        self, accepted: Accepted, connection: Connection, reason: CloseReason, limit: Limit | None
    ) -> None:
        """Turns somebody away, for a limit that was met if there is one."""
        self._happenings.refuse(accepted, reason.value, limit, self._processor)
        refused = _Refused(accepted, connection, reason)
        if self._refusals.add(refused):
            self._close(refused)
        self._more.set()

    def _close(self, refused: _Refused) -> None:
        accepted = refused.accepted
        refused.connection.close()
        self._closes.refused(accepted.listener, refused.reason, client=accepted.peer)

    @property
    def is_storm(self) -> bool:
        """Whether there were so many that some had to be held, and it still goes on."""
        return self._refusals.is_storm

    def most_in_a_row(self, otherwise: int) -> int:
        """How many are accepted before others get their turn; ``otherwise`` without a storm."""
        return ACCEPTED_IN_STORM if self.is_storm else otherwise

    async def pause(self) -> None:
        """Call it when somebody was let in: in a storm the next one comes in a little later.

        They all ask at once for what only newcomers want, and would otherwise leave together, to
        be followed by as many others.
        """
        pause_s = self._refusals.pause_s
        if pause_s > 0:
            await self._env.clock.sleep_real(pause_s)

    def close_all(self) -> None:
        """Closes those that are held: it is over, or their descriptors are needed."""
        for refused in self._refusals.let_go():
            self._close(refused)

    async def run(self) -> None:
        """Closes whose turn it is; until cancelled, which closes all."""
        try:
            while True:
                await self._more.wait()
                while not self._refusals.are_calm:
                    await self._env.clock.sleep_real(TICK_S)
                    for refused in self._refusals.tick():
                        self._close(refused)
                self._more = trio.Event()
        finally:
            self.close_all()
