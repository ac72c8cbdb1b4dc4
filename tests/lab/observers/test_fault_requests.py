"""Questions about rules are repeated when the controller restarts, and end with the link."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from minibroker.lab.faults.fault_rule import FaultHold
from minibroker.lab.faults.matching import Candidate
from minibroker.lab.faults.rulebook import Firing
from minibroker.lab.observers.fault_requests import decide, hold
from minibroker.lab.observers.messages import FaultHeld, FaultMatched
from minibroker.runtime.rpc import PeerFailed, PeerLost

CANDIDATES = (Candidate("1", None),)
HELD = FaultHeld("1", 0, FaultHold("worker-0", group="g"))


class Controller:
    """A link to a controller with some answers, or errors."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.requests: list[Any] = []
        self.is_closed = False

    async def request(self, request: Any, *, may_wait: bool = False) -> Any:
        await trio.lowlevel.checkpoint()
        assert may_wait == isinstance(request, FaultHeld)
        self.requests.append(request)
        answer = self.answers.pop(0)
        self.is_closed = not self.answers
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_decision_of_the_restarted_controller_counts() -> None:
    link: Any = Controller(PeerLost("killed"), (Firing("1", 0.0, 0),))
    assert [each.rule_id for each in await decide(link, CANDIDATES)] == ["1"]
    assert link.requests == [FaultMatched(CANDIDATES)] * 2


@pytest.mark.parametrize("error", [PeerLost("stopped"), PeerFailed("broken")])
async def test_nothing_fires_without_a_controller(error: Exception) -> None:
    assert await decide(Controller(error), CANDIDATES) == ()  # type: ignore[arg-type]
    await hold(Controller(error), HELD)  # type: ignore[arg-type]


async def test_nothing_is_requested_without_candidates() -> None:
    link: Any = Controller()
    assert await decide(link, ()) == ()
    assert link.requests == []


async def test_held_stays_held_by_the_restarted_controller() -> None:
    link: Any = Controller(PeerLost("killed"), None)
    await hold(link, HELD)
    assert link.requests == [HELD, HELD._replace(again=True)]
