"""Actions agree with the definition of a rule."""

from __future__ import annotations

from typing import get_args

from minibroker.lab.faults.actions import ACTIONS
from minibroker.lab.faults.fault_rule import COUNTS, WHEN_FIELDS, FaultRule
from minibroker.lab.faults.places import (
    SELECTORS,
    FaultPlace,
)
from minibroker.lab.schema import component, record_fields

FIELDS = component(FaultRule)["properties"]


def test_every_action_is_described() -> None:
    assert list(ACTIONS) == FIELDS["action"]["enum"]
    assert all(kind.__doc__ and kind.name == name for name, kind in ACTIONS.items())


def test_every_field_of_a_rule_has_one_purpose() -> None:
    of_actions = {field for kind in ACTIONS.values() for field in record_fields(kind)}
    purposes = [*SELECTORS, *WHEN_FIELDS, *of_actions, "action", "name", "namespace"]
    assert sorted(purposes) == sorted(FIELDS)


def test_places_and_selectors_of_actions_are_fields() -> None:
    for kind in ACTIONS.values():
        assert set(kind.places) <= set(get_args(FaultPlace))
        assert set(kind.selectors) <= set(SELECTORS)
    assert set(COUNTS) < set(WHEN_FIELDS)
