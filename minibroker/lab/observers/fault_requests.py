"""Questions about fault rules to the controller, which may restart before it answers.

Owns the repetition of these questions. It must never know rules. Invariant: what a rule holds stays
held while the controller restarts, because the rules and their counts survive it; an action of a
rule is requested once. Kafka has no equivalent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from minibroker.lab.observers.messages import FaultHeld, FaultMatched
from minibroker.runtime.rpc import Link, PeerFailed, PeerLost

if TYPE_CHECKING:
    from minibroker.lab.faults.matching import Candidate
    from minibroker.lab.faults.rulebook import Firing


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
