"""The reference page of activity events is current, and has every field."""

from __future__ import annotations

from pathlib import Path

from minibroker.lab.activity.reference import page
from minibroker.lab.activity.schema import CHECK_FIELDS, FIELDS

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "activity.md"


def test_activity_page_matches_schema() -> None:
    assert PAGE.read_text() == page(), (
        "mend it: python -m minibroker.lab.activity.reference > docs/reference/activity.md"
    )


def test_activity_page_has_one_row_per_field() -> None:
    rows = [line.split("`")[1] for line in page().splitlines() if line.startswith("| `")]
    assert sorted(rows) == sorted(field.name for field in FIELDS + CHECK_FIELDS)
