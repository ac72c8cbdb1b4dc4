from __future__ import annotations

import pytest

from minibroker.lab.journal.entries import EntryKind, JournalEntry
from minibroker.lab.verdicts.all_rules import RULE_OF, RULES
from minibroker.lab.verdicts.judging import Finding, RuleOutcome, Verdict, judge
from system_tests.verdicts.causes import SCENARIO_CAUSES
from system_tests.verdicts.known_sources import KNOWN_SOURCES
from system_tests.verdicts.libraries import LIBRARIES
from system_tests.verdicts.page import ClientResult, JudgedJournal, page


def entries(client_id: str | None) -> list[JournalEntry]:
    request = JournalEntry(
        2,
        1500.0,
        EntryKind.REQUEST,
        "p",
        "1",
        client_id,
        api="Metadata",
        version=9,
        correlation_id=4,
    )
    named = JournalEntry(3, 1501.0, EntryKind.REQUEST, "p", "1", "app", api="Heartbeat", version=4)
    return [JournalEntry(1, 1000.0, EntryKind.CONNECTION_OPENED, "p", "1"), request, named]


def journal(client_id: str | None, situation: str = "") -> JudgedJournal:
    found = entries(client_id)
    return JudgedJournal(situation, judge(found, "app").verdicts, found)


def result(library: str, *client_ids: str | None) -> ClientResult:
    """A client with one run for each client id."""
    return ClientResult(library, f"{library} 1.0", [[journal(each)] for each in client_ids])


def row_of(text: str, rule: str) -> str:
    [row] = [each for each in text.splitlines() if each.startswith(f"| `{rule}`")]
    return row


def test_page_has_a_row_for_each_rule_and_a_column_for_each_client() -> None:
    text = page([result("good", "app"), result("bad", None)])
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert len(rows) == len(RULES)
    assert "| Rule | good 1.0 | bad 1.0 |" in text
    assert row_of(text, "client-id").endswith(" | kept | **broken**, 1 of 2 |")
    assert "on a broker of its own, once: " in text


def test_page_says_what_varies_between_runs() -> None:
    text = page([result("bad", "app", None)])
    assert row_of(text, "client-id").endswith(" | **broken** in 1 of 2 runs, 1 of 2 |")
    assert "Varied between the runs: `client-id` (broken in 1 of 2 runs)." in text
    assert "### bad: client-id" not in text
    twice = ClientResult("bad", "bad 1.0", [[journal(None)], [journal(None), journal(None)]])
    row = row_of(page([twice]), "client-id")
    assert row.endswith(" | **broken**, 1 to 2 of 2 to 4 |")


def test_page_shows_the_journal_in_which_a_rule_was_broken() -> None:
    found = ClientResult("bad", "bad 1.0", [[journal("app"), journal(None, "with SASL sessions")]])
    text = page([found])
    assert "- sent Metadata v9 without a client id (with SASL sessions)" in text
    assert "       2    0.500 s  request  Metadata v9  correlation id 4" in text


def test_page_says_what_the_scenario_contributes() -> None:
    assert "What the scenario contributes: Nothing" in page([result("bad", None)])
    assert SCENARIO_CAUSES.keys() == RULE_OF.keys()


def test_page_shows_entries_of_a_finding() -> None:
    text = page([result("bad", None)])
    assert "### bad: client-id" in text
    assert "- sent Metadata v9 without a client id" in text
    assert "       2    0.500 s  request  Metadata v9  correlation id 4" in text
    assert "It broke no rule." in page([result("good", "app")])


def test_known_sources_name_rules_and_clients_that_exist() -> None:
    ids = {rule.id for rule in RULES}
    assert all(rule_id in ids for _, rule_id in KNOWN_SOURCES)
    assert all(library in LIBRARIES for library, _ in KNOWN_SOURCES)


def test_page_says_what_an_author_can_do() -> None:
    assert "What an author can do: Put a client id into each request" in page([result("bad", None)])
    assert all(rule.remedy for rule in RULES)


def test_accusation_without_a_source_is_rejected() -> None:
    """An advice needs none: that of the client id has none here."""
    [warning] = [each for each in RULES if each.id == "no-busy-loop"]
    verdict = Verdict(warning, RuleOutcome.BROKEN, 1, 1, (Finding("sent", (1,)),))
    run = [JudgedJournal("", [verdict], entries("app"))]
    with pytest.raises(ValueError, match="no-busy-loop accuses bad"):
        page([ClientResult("bad", "bad 1.0", [run])])
    known = page([ClientResult("kafkajs", "kafkajs 2.2.4", [run])])
    assert "Known: [src/consumer/consumerGroup.js](https://github.com/tulios/kafkajs/" in known
