from __future__ import annotations

from collections.abc import Iterator

import pytest

from minibroker.lab.journal.entries import EntryKind
from minibroker.lab.verdicts.judging import (
    EVIDENCE_MAX,
    FINDINGS_MAX,
    RuleOutcome,
    UnknownClient,
    UnknownRule,
    judge,
)
from minibroker.lab.verdicts.situations import BehaviorRule, Severity, Situation
from minibroker.lab.verdicts.traffic import ClientTraffic
from minibroker_protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from minibroker_protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.types import ZERO_UUID
from tests.lab.verdicts.written import CLIENT, WrittenJournal


def rule(situations: list[Situation]) -> BehaviorRule:
    return BehaviorRule(
        "a-rule",
        "A rule.",
        "KIP-0",
        Severity.ADVICE,
        "anything",
        lambda _: iter(situations),
        "Wait.",
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


def test_client_is_judged_in_a_namespace_with_the_names_that_it_knows() -> None:
    journal = WrittenJournal()
    topic_id = bytes(range(1, 17))
    for connection, name in (("1", "a.orders"), ("3", "b.orders")):
        wanted = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
        topics = [
            MetadataResponseTopic(name=name, topic_id=topic_id if connection == "1" else ZERO_UUID)
        ]
        journal.ask(connection, wanted, 12, MetadataResponse(topics=topics))
    fetched = FetchRequest(topics=[FetchTopic(topic_id=topic_id, partitions=[FetchPartition()])])
    journal.ask("2", fetched, 13, FetchResponse())
    journal.ask_metadata("4")  # names nothing

    def situations(traffic: ClientTraffic) -> Iterator[Situation]:
        for connection in traffic.connections:
            for each in connection.exchanges:
                named = [topic.get("name") for topic in (each.request or {})["topics"]]
                yield Situation(each.sequences, f"{connection.name} {named}")

    shown = rule([])._replace(observe=situations)
    report = judge(journal.entries, CLIENT, rules=[shown], namespace="a")
    findings = [each.text for each in report.verdicts[0].findings]
    assert findings == ["1 ['orders']", "2 [None]"]


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


def lose(journal: WrittenJournal, entries: int) -> None:
    """Add a loss of entries."""
    details = {"entries": entries, "reason": "process_ended", "since_ms": 0.0}
    journal.add(EntryKind.LOST, details=details)


def test_no_rule_is_known_to_be_kept_if_entries_are_lost() -> None:
    journal = WrittenJournal()
    journal.ask_versions("1", {ApiKey.METADATA: (0, 12)})
    journal.ask_metadata("1")
    assert journal.report().behaves_well
    lose(journal, 7)
    report = journal.report()
    assert (report.dropped, report.broken, report.behaves_well) == (7, (), False)
    outcomes = {each.outcome for each in report.verdicts}
    assert outcomes == {RuleOutcome.UNKNOWN, RuleOutcome.NOT_OBSERVED}
    report = judge(journal.entries, CLIENT, dropped=2)
    assert report.dropped == 9


def test_broken_rule_is_broken_also_if_entries_are_lost() -> None:
    journal = WrittenJournal()
    journal.ask_versions("1", {ApiKey.PRODUCE: (0, 12)})
    journal.ask_metadata("1")
    lose(journal, 7)
    assert [each.rule.id for each in journal.report().broken] == ["advertised-versions"]


def test_rules_are_not_applied_across_a_loss() -> None:
    journal = WrittenJournal()
    for _ in range(2):
        journal.ask_metadata("1")
        lose(journal, 3)
    counted = BehaviorRule(
        "a-rule",
        "A rule.",
        "KIP-0",
        Severity.ADVICE,
        "anything",
        lambda traffic: iter([Situation((len(traffic.exchanges),))]),
        "Wait.",
    )
    report = judge(journal.entries, CLIENT, rules=[counted])
    assert (report.requests, report.connections, report.verdicts[0].situations) == (2, 1, 2)


def test_clock_that_was_frozen_before_a_loss_is_frozen_after_it() -> None:
    journal = WrittenJournal()
    journal.clock(frozen=True, rate=1)
    lose(journal, 1)
    journal.ask_metadata("1")
    steady = BehaviorRule(
        "a-rule",
        "A rule.",
        "KIP-0",
        Severity.ADVICE,
        "anything",
        lambda traffic: iter([Situation((1,), "" if traffic.is_steady(3, 4) else "not steady")]),
        "Wait.",
    )
    assert judge(journal.entries, CLIENT, rules=[steady]).verdicts[0].broken == 1


def test_client_that_is_not_in_a_journal_with_a_loss_is_unknown() -> None:
    journal = WrittenJournal()
    journal.ask_metadata("1")
    lose(journal, 7)
    with pytest.raises(UnknownClient, match=r"client ids in the journal: app; 7 entries are lost"):
        judge(journal.entries, "other")
