"""The requests that the laboratory's parts in different processes send each other.

Owns the shapes of these messages. It must never know how they are handled. Invariant: plain data
that can be pickled, and every request is answered exactly once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from minibroker.lab.faults.fault_rule import ActiveRule, FaultHold
    from minibroker.lab.faults.matching import Candidate


class FaultRules(NamedTuple):
    """A change of the fault rules, for processors and workers. Answered with None when applied.

    ``number`` is one more than that of the change before.
    """

    number: int
    added: tuple[ActiveRule, ...] = ()
    removed: tuple[str, ...] = ()
    """Ids, of rules that were there before."""
    replaces: bool = False
    """Whether all rules are replaced by ``added``, of which none is new then."""


class FaultMatched(NamedTuple):
    """A request or connection matches fault rules.

    Answered with a tuple of ``faults.rulebook.Firing``: the rules that fire, in order.
    """

    candidates: tuple[Candidate, ...]


class FaultHeld(NamedTuple):
    """A fault rule holds something. Answered with None when the rule is released or removed.

    ``releases`` is that of its ``Firing``.
    """

    rule_id: str
    releases: int
    what: FaultHold
    again: bool = False
    """Whether a controller that died has held it already."""


class FaultAct(NamedTuple):
    """A fault rule that acts on the broker. Answered with None when that is done."""

    rule_id: str


class JournalSwitch(NamedTuple):
    """Record for the journal from now on, or stop. Answered with None."""

    is_on: bool


class JournalRequest(NamedTuple):
    """Request for records of the journal.

    Answered with a ``JournalChunk``; None if the journal was never on. ``received`` is the number
    of the last chunk of the process that arrived, or 0.
    """

    received: int


class KillProcess(NamedTuple):
    """Request to a process to save what all its roles have recorded for the journal, and to end as
    by SIGKILL. Never answered.
    """
