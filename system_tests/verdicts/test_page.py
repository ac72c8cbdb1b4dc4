from __future__ import annotations

from minibroker.journal.entries import EntryKind, JournalEntry
from minibroker.verdicts.all_rules import RULES
from minibroker.verdicts.judging import judge
from system_tests.verdicts.known_issues import KNOWN_ISSUES
from system_tests.verdicts.page import ClientResult, page


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


def result(library: str, client_id: str | None) -> ClientResult:
    found = entries(client_id)
    return ClientResult(library, f"{library} 1.0", judge(found, "app"), found)


def test_page_has_a_row_for_each_rule_and_a_column_for_each_client() -> None:
    text = page([result("good", "app"), result("bad", None)])
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert len(rows) == len(RULES)
    assert "| Rule | good 1.0 | bad 1.0 |" in text
    [row] = [each for each in rows if each.startswith("| `client-id`")]
    assert row.endswith(" | kept | **broken**, 1 of 2 |")


def test_page_shows_entries_of_a_finding() -> None:
    text = page([result("bad", None)])
    assert "### bad: client-id" in text
    assert "- sent Metadata v9 without a client id" in text
    assert "       2    0.500 s  request  Metadata v9  correlation id 4" in text
    assert "It broke no rule." in page([result("good", "app")])


def test_known_issues_name_rules_that_exist() -> None:
    ids = {rule.id for rule in RULES}
    assert all(rule_id in ids for _, rule_id in KNOWN_ISSUES)
