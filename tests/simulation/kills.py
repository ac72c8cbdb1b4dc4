"""Kills of processes at chosen moments of transactions and of groups.

Owns when it kills. It must never know roles beyond their names. Invariant: the moments depend on
the seed alone. A coordinator that is killed between a decision and its markers must carry the
decision out when it is back, and one that is killed while it stores an assignment or a commit must
come back with it or without it.
"""

from __future__ import annotations

from typing import Final

import trio

from minibroker.broker.process.environment import WORKER
from tests.simulation.actors import Actor

SHARE: Final = 0.12
"""Moments at which processes are killed."""
STEPS_MAX: Final = 40
"""Steps of the scheduler between a request and a kill."""
WAIT_S: Final = 0.06
"""Longest time between a request and a kill, when messages between roles are late."""


class MomentKiller(Actor):
    """Kills workers just after a client has sent an important request."""

    async def run(self) -> None:
        broker = self.world.broker
        workers = [name for name in broker.role_names if name.startswith(WORKER)]
        while await self._next_moment():
            path = self.world.moment
            if self.random.random() > SHARE:
                continue
            if self.random.random() < 0.5:
                await trio.sleep(self.random.uniform(0, WAIT_S))
            for _ in range(self.random.randrange(STEPS_MAX)):
                await trio.lowlevel.checkpoint()
            count = self.random.choice((1, len(workers)))
            victims = self.random.sample(workers, count)
            self.world.record(self.name, f"kills {' and '.join(victims)}")
            self.world.counts[path] += 1
            for victim in victims:
                self.world.kill(victim)

    async def _next_moment(self) -> bool:
        """Wait for the next moment; return False if no more kills are wanted."""
        if not self.world.faults_ended:  # They may end during a kill.
            await self.world.moment_reached.wait()
        return not self.world.faults_ended
