"""Few connections start or end per turn while others are served, all at once otherwise."""

from __future__ import annotations

from collections import Counter

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from minibroker.broker.network import request_loop
from minibroker.broker.network.request_loop import PER_TURN, RECENT_TURNS, NewConnectionPacer


class Turns(trio.abc.Instrument):
    """Counts the loop's, from 1000 on."""

    def __init__(self) -> None:
        self.count = 1000

    def before_io_wait(self, timeout: float) -> None:
        self.count += 1


class Crowd:
    """Waiting connections, and the turn in which each proceeded."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.pacer = NewConnectionPacer(lambda: self.turns.count)
        self.past: list[tuple[int, int]] = []

    async def come(self, number: int) -> None:
        await self.pacer.wait_turn()
        self.past.append((self.turns.count, number))

    def most_in_a_turn(self) -> int:
        return max(Counter(turn for turn, _ in self.past).values())


def run(crowds: list[int], *, served: bool, pause: int = 0) -> Crowd:
    """Crowds that come one after the other, each in one turn and in order of their numbers."""
    crowd = Crowd()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(crowd.pacer.run)
            if served:
                crowd.pacer.note_served()
            crowd.turns.count += pause
            number = 0
            async with trio.open_nursery() as people:
                for size in crowds:
                    for _ in range(size):
                        people.start_soon(crowd.come, number)
                        number += 1
                    await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()

    trio.run(main, instruments=[crowd.turns])
    return crowd


def test_pacer_without_served_connections_delays_none() -> None:
    crowd = run([50], served=False)
    assert crowd.most_in_a_turn() == 50


def test_pacer_with_served_connections_admits_a_few_per_turn() -> None:
    crowd = run([50], served=True)
    assert len(crowd.past) == 50
    turns = Counter(turn for turn, _ in crowd.past)
    assert max(turns.values()) <= 2 * PER_TURN
    assert len(turns) >= 50 // (2 * PER_TURN)
    assert max(turns) - min(turns) <= 50 // PER_TURN + 2, "each turn lets some past"


def test_pacer_stops_delaying_some_turns_after_the_last_request() -> None:
    assert run([50], served=True, pause=RECENT_TURNS).most_in_a_turn() == 50


def test_few_connections_are_not_paced() -> None:
    assert run([PER_TURN], served=True).most_in_a_turn() == PER_TURN


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=12))
def test_pacer_admits_every_connection_few_per_turn(crowds: list[int]) -> None:
    crowd = run(crowds, served=True)
    assert sorted(number for _, number in crowd.past) == list(range(sum(crowds)))
    assert not crowd.past or crowd.most_in_a_turn() <= 2 * PER_TURN


async def test_waiting_connections_proceed_in_order_without_cancelled_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_loop, "PER_TURN", 1)
    pacer = NewConnectionPacer(lambda: 0)
    pacer.note_served()
    await pacer.wait_turn()
    past: list[int] = []

    async def come(number: int) -> None:
        await pacer.wait_turn()
        past.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(2):
            nursery.start_soon(come, number)
            await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(0):
            await come(2)
        nursery.start_soon(come, 3)
        await trio.testing.wait_all_tasks_blocked()
        assert pacer.others_served_recently
        assert not past
        nursery.start_soon(pacer.run)
        await trio.testing.wait_all_tasks_blocked()
        assert past == [0, 1, 3]
        nursery.cancel_scope.cancel()
