"""Broker actions are checked: valid ones are accepted, wrong ones rejected by the field's name."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.lab.control.action_shapes import (
    ACTION_KINDS,
    ActionName,
    ActionsBackend,
    BrokerAction,
    check_action,
)
from minibroker.lab.control.backend import Backend
from minibroker.lab.control.schema import InvalidJson, component, parse

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "group": st.text(min_size=1, max_size=5),
    "member": st.text(min_size=1, max_size=5),
    "assignment": st.dictionaries(
        st.text(max_size=3),
        st.dictionaries(st.text(max_size=3), st.lists(st.integers(0, 9), max_size=2), max_size=2),
        min_size=1,
        max_size=2,
    ),
    "transactional_id": st.text(min_size=1, max_size=5),
    "topic": st.text(min_size=1, max_size=5),
    "partition": st.integers(0, 9),
    "process": st.just("worker-0"),
    "pause_ms": st.integers(0, 60_000),
}


@st.composite
def actions(draw: st.DrawFn) -> dict[str, Any]:
    """A valid action as JSON."""
    name = draw(st.sampled_from(list(ACTION_KINDS)))
    kind = ACTION_KINDS[name]
    optional = [each for each in kind.optional if draw(st.booleans())]
    fields = {each: draw(VALUES[each]) for each in [*kind.needed, *optional]}
    return {"action": name, **fields}


def rejected(action: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(InvalidJson) as caught:
        check_action(parse(BrokerAction, action))
    return {fault.path: fault.message for fault in caught.value.faults}


def test_every_action_has_a_row_and_every_field_is_used() -> None:
    assert list(ACTION_KINDS) == list(get_args(ActionName))
    used = {each for kind in ACTION_KINDS.values() for each in (*kind.needed, *kind.optional)}
    assert used == set(BrokerAction._fields) - {"action"} == set(VALUES)
    assert all(field["description"] for field in component(BrokerAction)["properties"].values())
    assert ActionsBackend in Backend.__mro__


@given(actions())
def test_any_valid_action_is_accepted(action: dict[str, Any]) -> None:
    check_action(parse(BrokerAction, action))


@given(actions(), st.data())
def test_missing_and_surplus_fields_are_rejected_by_their_names(
    action: dict[str, Any], data: st.DataObject
) -> None:
    kind = ACTION_KINDS[action["action"]]
    missing = data.draw(st.sampled_from(kind.needed))
    others = sorted(set(VALUES) - {*kind.needed, *kind.optional})
    surplus = data.draw(st.sampled_from(others))
    wrong = {**action, surplus: data.draw(VALUES[surplus])}
    del wrong[missing]
    found = rejected(wrong)
    assert found[missing] == f"is missing: the action {action['action']} needs it"
    assert found[surplus] == f"does not belong to the action {action['action']}"


@pytest.mark.parametrize(
    ("assignment", "path"),
    [
        ({"m": 5}, "assignment.m"),
        ({"m": {"t": 0}}, "assignment.m.t"),
        ({"m": {"t": [-1]}}, "assignment.m.t"),
        ({"m": {"t": [True]}}, "assignment.m.t"),
        ({"m": {"t": ["0"]}}, "assignment.m.t"),
    ],
)
def test_assignment_that_is_none_is_rejected_by_its_path(
    assignment: dict[str, Any], path: str
) -> None:
    assert path in rejected({"action": "assign", "group": "g", "assignment": assignment})
