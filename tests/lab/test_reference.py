"""The reference pages are current, and have every setting, operation and field."""

from __future__ import annotations

from pathlib import Path

import pytest

from minibroker.broker.settings import BROKER_SETTINGS, TOPIC_SETTINGS
from minibroker.lab.activity.events import CHECK_FIELDS, FIELDS
from minibroker.lab.control.operations import OPERATIONS
from minibroker.lab.reference import PAGES

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


@pytest.mark.parametrize("name", PAGES)
def test_page_matches_definitions(name: str) -> None:
    committed = (REFERENCE / f"{name}.md").read_text(encoding="utf-8")
    assert committed == PAGES[name](), "mend it: make docs"


def test_settings_page_describes_every_setting() -> None:
    text = PAGES["settings"]()
    for setting in (*BROKER_SETTINGS.values(), *TOPIC_SETTINGS.values()):
        assert f"| `{setting.name}` |" in text
        assert setting.doc.endswith("."), setting.name


def test_control_api_page_lists_every_operation_and_type() -> None:
    text = PAGES["control-api"]()
    for operation in OPERATIONS:
        assert f"`{operation.method} {operation.path}`" in text
        for kind in (operation.body, operation.answer):
            if isinstance(kind, type):
                assert f"\n### {kind.__name__}\n" in text


def test_activity_page_has_one_row_per_field() -> None:
    page = PAGES["activity"]()
    rows = [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")]
    assert sorted(rows) == sorted(field.name for field in FIELDS + CHECK_FIELDS)


def test_api_page_shows_served_and_advertised_versions() -> None:
    page = PAGES["apis"]()
    assert "| 0 | Produce | 3–13 (advertised from 0) |" in page  # noqa: RUF001 - a range
    assert "| 4 | LeaderAndIsr | 0–7 (advertised only with ZooKeeper) |" in page  # noqa: RUF001


def test_persona_page_shows_what_is_served_and_what_is_not() -> None:
    text = PAGES["personas"]()
    assert "| Produce | 0–3 | 0–5 |" in text  # noqa: RUF001 - a range
    assert "- `kafka-4.0`: Produce 0–2, AddRaftVoter 0," in text  # noqa: RUF001
    assert "group.version 1," in text
    assert "group.version 1 (not served)" not in text
