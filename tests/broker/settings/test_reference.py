"""The reference page: generated, and current."""

from __future__ import annotations

from pathlib import Path

from minibroker.broker.settings import BROKER_SETTINGS, TOPIC_SETTINGS
from minibroker.broker.settings.reference import page

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "settings.md"


def test_settings_page_matches_definitions() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "run: python -m minibroker.broker.settings.reference > docs/reference/settings.md"
    )


def test_settings_page_describes_every_setting() -> None:
    text = page()
    for setting in (*BROKER_SETTINGS.values(), *TOPIC_SETTINGS.values()):
        assert f"| `{setting.name}` |" in text
        assert setting.doc.endswith("."), setting.name
