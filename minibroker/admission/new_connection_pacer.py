"""The turnstile: how many connections begin or end in one turn of a processor's loop.

Owns whose turn it is to get past, in order of coming; it must never know what is done behind it.
A hundred connections that come or go together are work for tens of milliseconds; whoever has been
there before, and asks for something meanwhile, must not wait for more than a few of them. Where
nobody has done so lately all get past at once, which takes them a third less in all.
Invariant: in each turn of the loop somebody gets past as long as anybody waits; while others are
served no more than ``PER_TURN`` do, or twice that at most, where a crowd ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

PER_TURN: Final = 2
"""Each takes a tenth of a millisecond or two, and the turn itself some hundredths."""

LATELY_TURNS: Final = 2000
"""So long others are thought of after they were served last: some seconds if there is much to do,
and longer if there is not, when it does not matter.
"""


class NewConnectionPacer:
    """That of one loop; ``run`` must be running."""

    def __init__(self, turns: Callable[[], int]) -> None:
        """``turns`` counts those of the loop."""
        self._turns = turns
        self._turn = turns()
        self._left = PER_TURN
        self._spared_until = self._turn
        self._waiting = trio.lowlevel.ParkingLot()
        self._crowded = trio.Event()

    def others_are_served(self) -> None:
        """Somebody is served who began long ago."""
        self._spared_until = self._turns() + LATELY_TURNS

    @property
    def spares_others(self) -> bool:
        """Whether anybody is there who must not wait for newcomers."""
        return self._turns() < self._spared_until

    async def enter(self) -> None:
        """Gets past it, at once where few did in this turn."""
        turn = self._turns()
        if turn != self._turn:
            self._turn = turn
            self._left = PER_TURN
        if (self._left > 0 and not self._waiting) or turn >= self._spared_until:
            self._left -= 1
            return
        self._crowded.set()
        await self._waiting.park()

    async def run(self) -> None:
        """Lets those in who wait, a few in each turn, until cancelled."""
        while True:
            await self._crowded.wait()
            self._crowded = trio.Event()
            while self._waiting:
                self._waiting.unpark(count=PER_TURN)
                await trio.lowlevel.checkpoint()
