from __future__ import annotations

import json

from minibroker.lab.verdicts.judging import FINDINGS_MAX, judge
from minibroker.lab.verdicts.report import escaped, report_json, report_markdown, report_text
from minibroker_protocol.registry import ApiKey
from tests.lab.verdicts.written import CLIENT, WrittenJournal


def breaking_journal(times: int = 1) -> WrittenJournal:
    journal = WrittenJournal()
    journal.ask_versions("1", {ApiKey.API_VERSIONS: (0, 4)})
    for _ in range(times):
        journal.ask_metadata("1")
    return journal


def test_text_explains_each_finding_and_what_is_unknown() -> None:
    text = report_text(breaking_journal().report())
    assert text.startswith("client id app: 2 requests on 1 connections\n\nBroken:\n")
    assert "  advertised-versions (error, KIP-35): 1 of 1 situation\n" in text
    assert "    - sent Metadata v9, which was not advertised [entries 2, 3]\n" in text
    assert "  obeys-throttle: needs a response with a throttle time on a connection" in text
    assert text.endswith("\n\nbroken: advertised-versions")


def test_text_of_a_client_without_findings_says_so() -> None:
    journal = WrittenJournal()
    journal.ask_metadata("1")
    assert report_text(journal.report()).endswith("\n\nno finding")


def test_text_of_a_client_without_findings_says_if_entries_are_lost() -> None:
    journal = WrittenJournal()
    journal.ask_versions("1", {ApiKey.METADATA: (0, 12)})
    journal.ask_metadata("1")
    text = report_text(judge(journal.entries, CLIENT, dropped=5))
    assert text.startswith("client id app: 2 requests on 1 connections; 5 entries of the journal ")
    assert "\nNot broken in what the journal has, but entries are lost:\n  advertised-ver" in text
    assert "\nKept:" not in text
    assert text.endswith("\n\nunknown: no finding, but 5 entries of the journal are lost")


def test_text_lists_allowed_rules_apart() -> None:
    report = judge(breaking_journal().entries, CLIENT, allowed=["advertised-versions"])
    text = report_text(report)
    assert "Broken, and allowed:\n  advertised-versions" in text
    assert text.endswith("no finding")


def test_findings_that_are_left_out_are_counted() -> None:
    report = breaking_journal(FINDINGS_MAX + 2).report()
    assert "    ... and 2 more" in report_text(report)
    assert "- 2 more" in report_markdown(report)


def test_json_has_every_rule() -> None:
    report = breaking_journal().report()
    document = json.loads(json.dumps(report_json(report)))
    assert document["behaves_well"] is False
    assert len(document["verdicts"]) == len(report.verdicts)
    [broken] = [each for each in document["verdicts"] if each["outcome"] == "broken"]
    assert broken["rule"] == "advertised-versions"
    assert broken["findings"] == [
        {"text": "sent Metadata v9, which was not advertised", "evidence": [2, 3]}
    ]


def test_markdown_has_a_row_for_each_rule_and_the_findings() -> None:
    page = report_markdown(breaking_journal().report())
    assert page.startswith("# Verdicts on app\n\napp: 2 requests on 1 connections.\n")
    assert "| `advertised-versions` | broken | 1 | 1 | KIP-35 |\n" in page
    assert "\n## advertised-versions\n" in page


def test_text_of_clients_is_escaped() -> None:
    assert escaped("<b>|\x1b[1m") == r"\<b\>\|?\[1m"
