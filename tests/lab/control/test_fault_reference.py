"""The reference page follows the definition of rules."""

from __future__ import annotations

from pathlib import Path

from minibroker.lab.control.fault_reference import page, plain_lines
from minibroker.lab.faults.actions import ACTIONS
from minibroker.lab.faults.fault_rule import FaultRule
from minibroker.lab.schema import component

COMMITTED = Path(__file__).parents[3] / "docs/reference/faults.md"


def test_committed_page_is_current() -> None:
    assert COMMITTED.read_text() == page()


def test_page_and_plain_list_have_all_actions_and_fields() -> None:
    plain = "\n".join(plain_lines())
    fields = component(FaultRule)["properties"].keys() - {"action"}
    for name in (*ACTIONS, *fields):
        assert f"`{name}`" in page()
        assert f"  {name} " in plain
