"""The reference page of the metrics is current."""

from __future__ import annotations

from pathlib import Path

from minibroker.observability.reference import page

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"


def test_metrics_page_matches_definitions() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "mend it: python -m minibroker.observability.reference > docs/reference/metrics.md"
    )
