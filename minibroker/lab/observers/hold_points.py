"""The hold points of a process: asks the controller which rules hold, and waits for their release.

Owns what waits here, and the fault rules about the inside of this process. It must never know what
is held, or decide which rules fire. Invariant: everything that is held continues once, when no rule
holds it, and nothing is requested or matched while no rule has a point. Kafka has no equivalent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import trio

from minibroker.broker.groups.hooks import COMPLETING, PREPARED, REBALANCE, REVOKED
from minibroker.lab.faults.fault_rule import FaultHold
from minibroker.lab.observers.messages import FaultAct, FaultHeld, FaultMatched, FaultRules
from minibroker.runtime.rpc import Link, PeerFailed, PeerLost

if TYPE_CHECKING:
    from minibroker.lab.faults.matching import Candidate, PointMatcher
    from minibroker.lab.faults.rulebook import Firing


_GROUP, _TRANSACTION = "group", "transactional_id"
_FIELDS: Final = {
    REBALANCE: _GROUP,
    REVOKED: _GROUP,
    PREPARED: _TRANSACTION,
    COMPLETING: _TRANSACTION,
}
"""What the subject of a point is."""


class ProcessHoldPoints:
    """Implements ``coordinator.holds.HoldPoints``; ``run`` must be running."""

    def __init__(self) -> None:
        self.decisions: ControllerDecisions | None = None
        """Set before anything is held."""
        self._matcher: PointMatcher | None = None
        self._starting: list[tuple[str, str, Callable[[], object]]] = []
        self._more = trio.Event()

    def change_rules(self, rules: FaultRules) -> None:
        """Add and remove rules, or replace all."""
        if self._matcher is None or rules.replaces:
            # Loaded with the first rule: most brokers get none.
            from minibroker.lab.faults.matching import PointMatcher

            self._matcher = PointMatcher()
        for rule_id in rules.removed:
            self._matcher.remove(rule_id)
        for active in rules.added:
            self._matcher.add(active)

    def may_hold(self, point: str, subject: str) -> bool:
        """Whether a rule may hold a group or transactional id at a point."""
        return bool(self._matcher) and bool(self._candidates(point, subject))

    def hold(self, point: str, subject: str, then: Callable[[], object]) -> None:
        """Call ``then`` when no rule holds there, at the earliest after this returns."""
        self._starting.append((point, subject, then))
        self._more.set()

    def _candidates(self, point: str, subject: str) -> tuple[Candidate, ...]:
        from minibroker_protocol.meanings import Meaning

        if self._matcher is None:
            return ()
        return self._matcher.match(point, {Meaning(_FIELDS[point]): subject})

    async def run(self) -> None:
        """Wait for the release of what is held, until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                await self._more.wait()
                self._more = trio.Event()
                starting, self._starting = self._starting, []
                for each in starting:
                    nursery.start_soon(self._wait, *each)

    async def _wait(self, point: str, subject: str, then: Callable[[], object]) -> None:
        is_group = _FIELDS[point] == _GROUP
        what = FaultHold("", group=subject) if is_group else FaultHold("", transactional_id=subject)
        assert self.decisions is not None
        for each in await self.decisions.decide(self._candidates(point, subject)):
            await self.decisions.hold(each.rule_id, each.releases, what)
        then()


class ControllerDecisions:
    """Implements ``faults.execution.FaultDecisions`` by questions to the controller.

    It may restart before it answers. What a rule holds stays held then, because the rules and their
    counts survive it; an action of a rule is requested once.
    """

    def __init__(self, link: Link, process: str) -> None:
        self._link = link
        self._process = process

    async def decide(self, candidates: Sequence[Candidate]) -> Sequence[Firing]:
        """The rules that fire of those that match.

        If the controller dies before it answers, the match may be counted twice.
        """
        while candidates:
            try:
                fired: Sequence[Firing] = await self._link.request(FaultMatched(tuple(candidates)))
                return fired
            except PeerFailed:
                break
            except PeerLost:
                if self._link.is_closed:
                    break
        return ()

    async def hold(self, rule_id: str, releases: int, what: FaultHold) -> None:
        """Return when a rule has been released more often than that, or is removed."""
        held = FaultHeld(rule_id, releases, what._replace(process=self._process))
        while True:
            try:
                await self._link.request(held, may_wait=True)
            except PeerFailed:
                return
            except PeerLost:
                if self._link.is_closed:
                    return
                held = held._replace(again=True)
            else:
                return

    async def act(self, rule_id: str) -> None:
        """Carry out a rule that acts on the broker, or on another request."""
        with suppress(PeerLost, PeerFailed):  # It may be the controller that is killed.
            await self._link.request(FaultAct(rule_id), may_wait=True)
