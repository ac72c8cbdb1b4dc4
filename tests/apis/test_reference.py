"""The reference page of the APIs is current."""

from __future__ import annotations

from pathlib import Path

from minibroker.apis.reference import page

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "apis.md"


def test_the_committed_page_is_what_the_registry_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "mend it: python -m minibroker.apis.reference > docs/reference/apis.md"
    )


def test_a_narrower_range_than_advertised_is_told() -> None:
    assert "| 0 | Produce | 3–13 (advertised from 0) |" in page()  # noqa: RUF001 - a range
