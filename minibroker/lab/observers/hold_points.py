"""The hold points of a process: asks the controller which rules hold, and waits for their release.

Owns what waits here, and the fault rules about the inside of this process. It must never know what
is held, or decide which rules fire. Invariant: everything that is held continues once, when no rule
holds it, and nothing is requested or matched while no rule has a point. Kafka has no equivalent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import trio

from minibroker.broker.groups.hooks import COMPLETING, PREPARED, REBALANCE
from minibroker.lab.faults.fault_rule import FaultHold
from minibroker.lab.observers.messages import FaultHeld, FaultMatched, FaultRules
from minibroker.runtime.rpc import Link, PeerFailed, PeerLost

if TYPE_CHECKING:
    from minibroker.lab.faults.matching import Candidate, PointMatcher
    from minibroker.lab.faults.rulebook import Firing


_GROUP, _TRANSACTION = "group", "transactional_id"
_FIELDS: Final = {REBALANCE: _GROUP, PREPARED: _TRANSACTION, COMPLETING: _TRANSACTION}
"""What the subject of a point is."""


class ProcessHoldPoints:
    """Implements ``coordinator.holds.HoldPoints``; ``run`` must be running."""

    def __init__(self, process: str) -> None:
        self._process = process
        self.link: Link | None = None
        """The link to the controller; set before anything is held."""
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
        what = _describe(self._process, point, subject)
        candidates = self._candidates(point, subject)
        assert self.link is not None
        for each in await decide(self.link, candidates):
            await hold(self.link, FaultHeld(each.rule_id, each.releases, what))
        then()


def _describe(process: str, point: str, subject: str) -> FaultHold:
    if _FIELDS[point] == _GROUP:
        return FaultHold(process, group=subject)
    return FaultHold(process, transactional_id=subject)


# --------------------------------------------------------------------------------------------------
# Questions about fault rules to the controller, which may restart before it answers.
#
# Owns the repetition of these questions. It must never know rules. Invariant: what a rule holds
# stays held while the controller restarts, because the rules and their counts survive it; an action
# of a rule is requested once. Kafka has no equivalent.


async def decide(link: Link, candidates: Sequence[Candidate]) -> Sequence[Firing]:
    """The rules that fire of those that match.

    If the controller dies before it answers, the match may be counted twice.
    """
    while candidates:
        try:
            fired: Sequence[Firing] = await link.request(FaultMatched(tuple(candidates)))
            return fired
        except PeerFailed:
            break
        except PeerLost:
            if link.is_closed:
                break
    return ()


async def hold(link: Link, held: FaultHeld) -> None:
    """Return when a rule is released or removed."""
    while True:
        try:
            await link.request(held, may_wait=True)
        except PeerFailed:
            return
        except PeerLost:
            if link.is_closed:
                return
            held = held._replace(again=True)
        else:
            return
