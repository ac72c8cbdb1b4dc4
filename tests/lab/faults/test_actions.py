"""The table of actions agrees with the definition of a rule."""

from __future__ import annotations

from typing import get_args

from minibroker.lab.faults.actions import ACTIONS, COUNTS, SELECTORS, WHEN_FIELDS
from minibroker.lab.faults.fault_rule import FaultAction, FaultPlace, FaultRule


def test_every_action_has_a_row() -> None:
    assert list(ACTIONS) == list(get_args(FaultAction))


def test_every_field_of_a_rule_has_one_purpose() -> None:
    of_actions = {field for kind in ACTIONS.values() for field in kind.fields}
    purposes = [*SELECTORS, *WHEN_FIELDS, *of_actions, "action", "name"]
    assert sorted(purposes) == sorted(FaultRule._fields)


def test_places_and_selectors_of_actions_are_fields() -> None:
    for kind in ACTIONS.values():
        assert set(kind.places) <= set(get_args(FaultPlace))
        assert set(kind.selectors) <= set(SELECTORS)
    assert set(COUNTS) < set(WHEN_FIELDS)
