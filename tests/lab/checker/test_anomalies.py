from __future__ import annotations

from pathlib import Path

from minibroker.lab.checker.anomalies import LISTED_MAX, RULE_OF, RULES, listed

PAGE = Path(__file__).parents[3] / "docs/guides/check-a-history.md"


def test_names_are_unique() -> None:
    assert len(RULE_OF) == len(RULES)


def test_guide_has_the_same_table() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    table = [f"| `{rule.name}` | {rule.definition} | {rule.allowed_text} |" for rule in RULES]
    assert [row for row in rows if row in table] == table


def test_long_lists_are_cut() -> None:
    assert listed(["a", "b"], "; ") == "a; b"
    parts = [str(number) for number in range(LISTED_MAX + 3)]
    assert listed(parts, " ") == "0 1 2 3 4 5 6 7 3 more"
