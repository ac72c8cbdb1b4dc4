"""The reference page of the personas is current."""

from __future__ import annotations

from pathlib import Path

from minibroker.broker.apis.persona_reference import page

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "personas.md"


def test_persona_reference_page_matches_facts_and_registry() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "mend it: python -m minibroker.broker.apis.persona_reference > docs/reference/personas.md"
    )


def test_persona_reference_shows_what_is_served_and_what_is_not() -> None:
    text = page()
    assert "| Produce | 0–3 | 0–5 |" in text  # noqa: RUF001 - a range
    assert "- `kafka-4.0`: Produce 0–2, AddRaftVoter 0," in text  # noqa: RUF001
    assert "group.version 1," in text
    assert "group.version 1 (not served)" not in text
