"""Judgement of a client: every rule, with what the client did in its situations.

Owns how situations add up to a verdict. It must never know a particular rule. Invariant: every
situation is counted, at most `FINDINGS_MAX` findings of a rule are kept with at most `EVIDENCE_MAX`
entries each, and a rule without a situation is neither kept nor broken. No rule is applied across a
loss of entries, and none is kept if entries are lost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum
from itertools import chain
from typing import Final, NamedTuple

from minibroker.broker.settings.setting import similar_names
from minibroker.lab.journal.entries import EntryKind, JournalEntry, lost_entries
from minibroker.lab.journal.filters import in_namespace
from minibroker.lab.verdicts.all_rules import RULE_OF, RULES
from minibroker.lab.verdicts.situations import BehaviorRule, Situation
from minibroker.lab.verdicts.traffic import (
    CLIENT_IDS_MAX,
    ClientTraffic,
    NoSuchClient,
    traffic_of,
)

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
    UNKNOWN = "unknown"
    """Not broken in what the journal has, but entries are lost."""
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
    """Entries that the journal does not have, of any client."""
    verdicts: tuple[Verdict, ...]

    @property
    def broken(self) -> tuple[Verdict, ...]:
        """The verdicts of rules that the client broke, without those that are allowed."""
        return tuple(each for each in self.verdicts if each.outcome is RuleOutcome.BROKEN)

    @property
    def behaves_well(self) -> bool:
        """Whether the client is known to have broken no rule, except for those allowed."""
        return not self.broken and not self.dropped


def judge(
    entries: Iterable[JournalEntry],
    client_id: str,
    *,
    allowed: Collection[str] = (),
    dropped: int = 0,
    rules: Sequence[BehaviorRule] = RULES,
    namespace: str | None = None,
) -> ClientReport:
    """Judge a client; ``*`` in the client id matches any text.

    ``namespace`` leaves those connections on which the client used names of this namespace.

    ``dropped`` entries are missing in addition to the losses among ``entries``. Raises
    ``UnknownClient``, and ``UnknownRule`` for an ``allowed`` rule that does not exist.
    """
    for rule_id in allowed:
        _check_rule(rule_id)
    in_order = sorted(entries, key=lambda entry: entry.sequence)
    if namespace is not None:
        in_order = list(in_namespace(in_order, namespace))
    dropped += sum(map(lost_entries, in_order))
    traffic, others = _traffic_between_losses(in_order, client_id)
    if not traffic:
        absent = NoSuchClient(client_id, tuple(sorted(others)[:CLIENT_IDS_MAX]))
        raise UnknownClient(f"{absent}; {dropped} entries are lost" if dropped else str(absent))
    is_complete = not dropped
    return ClientReport(
        client_id,
        len({connection.name for each in traffic for connection in each.connections}),
        sum(len(each.exchanges) for each in traffic),
        dropped,
        tuple(_verdict(rule, traffic, rule.id in allowed, is_complete) for rule in rules),
    )


def _traffic_between_losses(
    entries: Iterable[JournalEntry], client_id: str
) -> tuple[list[ClientTraffic], set[str]]:
    """The traffic of a client in each part of the journal without a loss; other client ids."""
    parts: list[list[JournalEntry]] = [[]]
    clock_changes: list[JournalEntry] = []
    for entry in entries:
        if entry.kind is EntryKind.LOST:
            parts.append([*clock_changes])
            continue
        parts[-1].append(entry)
        if entry.kind is EntryKind.CLOCK:
            clock_changes.append(entry)
    traffic: list[ClientTraffic] = []
    others: set[str] = set()
    for part in parts:
        found = traffic_of(part, client_id)
        if isinstance(found, NoSuchClient):
            others.update(found.others)
        else:
            traffic.append(found)
    return traffic, others


def _check_rule(rule_id: str) -> None:
    if rule_id in RULE_OF:
        return
    similar = similar_names(rule_id, RULE_OF, count_max=1, similarity_min=0.5)
    suggestion = f"; did you mean {similar[0]!r}?" if similar else ""
    raise UnknownRule(f"there is no rule {rule_id!r}{suggestion}")


def _verdict(
    rule: BehaviorRule, traffic: Sequence[ClientTraffic], is_allowed: bool, is_complete: bool
) -> Verdict:
    situations = count = 0
    findings: list[Finding] = []
    for situation in chain.from_iterable(map(rule.observe, traffic)):
        situations += 1
        if situation.fault:
            count += 1
            if len(findings) < FINDINGS_MAX:
                findings.append(_finding(situation))
    outcome = RuleOutcome.KEPT if is_complete else RuleOutcome.UNKNOWN
    if not situations:
        outcome = RuleOutcome.NOT_OBSERVED
    if count:
        outcome = RuleOutcome.ALLOWED if is_allowed else RuleOutcome.BROKEN
    return Verdict(rule, outcome, situations, count, tuple(findings))


def _finding(situation: Situation) -> Finding:
    return Finding(situation.fault, tuple(situation.evidence[:EVIDENCE_MAX]))
