"""The reference page of the metrics is current."""

from __future__ import annotations

from pathlib import Path

from minibroker.broker.metrics.reference import page

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "metrics.md"


def test_metrics_page_matches_definitions() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "mend it: python -m minibroker.broker.metrics.reference > docs/reference/metrics.md"
    )
