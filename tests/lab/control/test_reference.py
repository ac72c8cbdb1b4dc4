"""The reference page of the control API is current."""

from __future__ import annotations

from pathlib import Path

from minibroker.lab.control.operations import OPERATIONS
from minibroker.lab.control.reference import page

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "control-api.md"


def test_control_api_page_matches_operations() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "mend it: python -m minibroker.lab.control.reference > docs/reference/control-api.md"
    )


def test_control_api_page_lists_every_operation_and_type() -> None:
    text = page()
    for operation in OPERATIONS:
        assert f"`{operation.method} {operation.path}`" in text
        for kind in (operation.body, operation.answer):
            if isinstance(kind, type):
                assert f"\n### {kind.__name__}\n" in text
