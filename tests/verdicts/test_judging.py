from __future__ import annotations

import pytest

from minibroker.verdicts.judging import (
    EVIDENCE_MAX,
    FINDINGS_MAX,
    RuleOutcome,
    UnknownClient,
    UnknownRule,
    judge,
)
from minibroker.verdicts.situations import BehaviorRule, Severity, Situation
from tests.verdicts.written import CLIENT, WrittenJournal


def rule(situations: list[Situation]) -> BehaviorRule:
    return BehaviorRule(
        "a-rule", "A rule.", "KIP-0", Severity.ADVICE, "anything", lambda _: iter(situations)
    )


def outcome(*situations: Situation, allowed: tuple[str, ...] = ()) -> RuleOutcome:
    journal = WrittenJournal()
    journal.ask_metadata("1")
    [verdict] = judge(
        journal.entries, CLIENT, allowed=allowed, rules=[rule(list(situations))]
    ).verdicts
    return verdict.outcome


def test_rule_without_a_situation_is_not_observed() -> None:
    assert outcome() is RuleOutcome.NOT_OBSERVED


def test_rule_is_broken_by_one_fault() -> None:
    assert outcome(Situation((1,))) is RuleOutcome.KEPT
    assert outcome(Situation((1,)), Situation((2,), "wrong")) is RuleOutcome.BROKEN


def test_findings_are_bounded_and_all_are_counted() -> None:
    journal = WrittenJournal()
    journal.ask_metadata("1")
    evidence = tuple(range(1, EVIDENCE_MAX + 5))
    situations = [Situation(evidence, "wrong")] * (FINDINGS_MAX + 3)
    report = judge(journal.entries, CLIENT, rules=[rule(situations)])
    [verdict] = report.verdicts
    assert (verdict.situations, verdict.broken) == (FINDINGS_MAX + 3, FINDINGS_MAX + 3)
    assert len(verdict.findings) == FINDINGS_MAX
    assert len(verdict.findings[0].evidence) == EVIDENCE_MAX
    assert not report.behaves_well


def test_broken_rule_can_be_allowed() -> None:
    journal = WrittenJournal(client_id=None)
    journal.ask_metadata("1")
    journal.client_id = CLIENT
    journal.ask_metadata("1")
    assert [each.rule.id for each in journal.report().broken] == ["client-id"]
    report = judge(journal.entries, CLIENT, allowed=["client-id"])
    assert report.behaves_well
    outcomes = {each.rule.id: each.outcome for each in report.verdicts}
    assert outcomes["client-id"] is RuleOutcome.ALLOWED


def test_misspelt_rule_is_an_error_with_the_nearest_one() -> None:
    with pytest.raises(UnknownRule, match="no rule 'obey-throttle'; did you mean 'obeys-throttle'"):
        judge([], CLIENT, allowed=["obey-throttle"])


def test_unknown_client_is_an_error() -> None:
    with pytest.raises(UnknownClient, match="no request of the client id 'app'"):
        judge([], CLIENT)
