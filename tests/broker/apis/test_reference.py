"""The reference page of the APIs is current."""

from __future__ import annotations

from pathlib import Path

from minibroker.broker.apis.reference import page

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "apis.md"


def test_api_reference_page_matches_registry() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "mend it: python -m minibroker.broker.apis.reference > docs/reference/apis.md"
    )


def test_api_reference_shows_served_and_advertised_versions() -> None:
    assert "| 0 | Produce | 3–13 (advertised from 0) |" in page()  # noqa: RUF001 - a range
    assert "| 4 | LeaderAndIsr | 0–7 (advertised only with ZooKeeper) |" in page()  # noqa: RUF001
