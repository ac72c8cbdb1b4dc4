from __future__ import annotations

import re
from pathlib import Path

from minibroker.lab.verdicts.all_rules import RULE_OF, RULES

GUIDE = Path(__file__).parents[3] / "docs/guides/judge-a-client.md"


def test_ids_are_unique_and_spelled_alike() -> None:
    assert len(RULE_OF) == len(RULES)
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", rule.id) for rule in RULES)


def test_statements_are_single_sentences() -> None:
    for rule in RULES:
        assert rule.statement.endswith(".")
        assert rule.statement.count(". ") == 0
        assert rule.source
        assert rule.situation[0].islower() or rule.situation[0].isdigit() or "A" in rule.situation


def test_guide_has_the_same_table() -> None:
    table = [
        f"| `{rule.id}` | {rule.statement} | {rule.source} | {rule.severity} |" for rule in RULES
    ]
    rows = [line for line in GUIDE.read_text().splitlines() if line.startswith("| `")]
    assert rows == table
