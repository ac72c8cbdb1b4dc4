"""Judgement of a client: every rule, with what the client did in its situations.

Owns how situations add up to a verdict. It must never know a particular rule. Invariant: every
situation is counted, at most `FINDINGS_MAX` findings of a rule are kept with at most `EVIDENCE_MAX`
entries each, and a rule without a situation is neither kept nor broken.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from minibroker.config.similar_names import similar_names
from minibroker.journal.entries import JournalEntry
from minibroker.verdicts.all_rules import RULE_OF, RULES
from minibroker.verdicts.situations import BehaviorRule, Situation
from minibroker.verdicts.traffic import ClientTraffic, NoSuchClient, traffic_of

FINDINGS_MAX: Final = 8
"""Findings of each rule that a report describes."""
EVIDENCE_MAX: Final = 8
"""Entries of the journal that a finding names."""


class UnknownClient(ValueError):
    """The journal has no request of the client."""


class UnknownRule(ValueError):
    """There is no such rule."""


class RuleOutcome(StrEnum):
    """What a rule says about a client."""

    KEPT = "kept"
    BROKEN = "broken"
    ALLOWED = "allowed"
    """Broken, and the caller allows it."""
    NOT_OBSERVED = "not observed"


class Finding(NamedTuple):
    """One case in which a client broke a rule."""

    text: str
    evidence: tuple[int, ...]
    """Sequence numbers of entries in the journal."""


class Verdict(NamedTuple):
    """What one rule says about a client."""

    rule: BehaviorRule
    outcome: RuleOutcome
    situations: int
    """Number of situations of the rule."""
    broken: int
    """Number of situations in which the client broke the rule."""
    findings: tuple[Finding, ...]


class ClientReport(NamedTuple):
    """The verdicts of all rules on one client."""

    client_id: str
    connections: int
    requests: int
    dropped: int
    """Older entries that the journal did not keep."""
    verdicts: tuple[Verdict, ...]

    @property
    def broken(self) -> tuple[Verdict, ...]:
        """The verdicts of rules that the client broke, without those that are allowed."""
        return tuple(each for each in self.verdicts if each.outcome is RuleOutcome.BROKEN)

    @property
    def behaves_well(self) -> bool:
        """Whether the client broke no rule, except for those that are allowed."""
        return not self.broken


def judge(
    entries: Iterable[JournalEntry],
    client_id: str,
    *,
    allowed: Collection[str] = (),
    dropped: int = 0,
    rules: Sequence[BehaviorRule] = RULES,
) -> ClientReport:
    """Judge a client; ``*`` in the client id matches any text.

    Raises ``UnknownClient``, and ``UnknownRule`` for an ``allowed`` rule that does not exist.
    """
    for rule_id in allowed:
        _check_rule(rule_id)
    traffic = traffic_of(entries, client_id)
    if isinstance(traffic, NoSuchClient):
        raise UnknownClient(str(traffic))
    return ClientReport(
        client_id,
        len(traffic.connections),
        len(traffic.exchanges),
        dropped,
        tuple(_verdict(rule, traffic, rule.id in allowed) for rule in rules),
    )


def _check_rule(rule_id: str) -> None:
    if rule_id in RULE_OF:
        return
    similar = similar_names(rule_id, RULE_OF, count_max=1, similarity_min=0.5)
    suggestion = f"; did you mean {similar[0]!r}?" if similar else ""
    raise UnknownRule(f"there is no rule {rule_id!r}{suggestion}")


def _verdict(rule: BehaviorRule, traffic: ClientTraffic, is_allowed: bool) -> Verdict:
    situations = count = 0
    findings: list[Finding] = []
    for situation in rule.observe(traffic):
        situations += 1
        if situation.fault:
            count += 1
            if len(findings) < FINDINGS_MAX:
                findings.append(_finding(situation))
    outcome = RuleOutcome.KEPT if situations else RuleOutcome.NOT_OBSERVED
    if count:
        outcome = RuleOutcome.ALLOWED if is_allowed else RuleOutcome.BROKEN
    return Verdict(rule, outcome, situations, count, tuple(findings))


def _finding(situation: Situation) -> Finding:
    return Finding(situation.fault, tuple(situation.evidence[:EVIDENCE_MAX]))
