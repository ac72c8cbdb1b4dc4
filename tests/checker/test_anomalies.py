from __future__ import annotations

from pathlib import Path

from minibroker.checker.anomalies import RULE_OF, RULES

PAGE = Path(__file__).parents[2] / "docs/guides/check-a-history.md"


def test_names_are_unique() -> None:
    assert len(RULE_OF) == len(RULES)


def test_guide_has_the_same_table() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    table = [f"| `{rule.name}` | {rule.definition} | {rule.allowed_text} |" for rule in RULES]
    assert [row for row in rows if row in table] == table
