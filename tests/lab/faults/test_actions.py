"""Actions and hold points agree with the definition of a rule; damage hits only what is named."""

from __future__ import annotations

from typing import get_args

import pytest

from minibroker.broker.groups import hooks
from minibroker.lab.faults.actions import (
    ACTIONS,
    APPLIED,
    ENTITY_FIELDS,
    POINTS,
    SELECTORS,
    UNKNOWN_TAG,
    FaultPlace,
    FaultPoint,
    Hold,
    add_tagged_field,
    damage_crc,
    damage_frame,
)
from minibroker.lab.faults.fault_rule import COUNTS, WHEN_FIELDS, FaultHold, FaultRule
from minibroker.lab.schema import component, record_fields
from minibroker_protocol import registry
from minibroker_protocol.compiler import decode, encode
from minibroker_protocol.entities import selectable
from minibroker_protocol.messages.heartbeat import HeartbeatResponse

FIELDS = component(FaultRule)["properties"]


def test_every_action_is_described() -> None:
    assert list(ACTIONS) == FIELDS["action"]["enum"]
    assert all(kind.__doc__ and kind.name == name for name, kind in ACTIONS.items())


def test_every_field_of_a_rule_has_one_purpose() -> None:
    of_actions = {field for kind in ACTIONS.values() for field in record_fields(kind)}
    purposes = [*SELECTORS, *WHEN_FIELDS, *of_actions, "action", "name"]
    assert sorted(purposes) == sorted(FIELDS)


def test_places_and_selectors_of_actions_are_fields() -> None:
    for kind in ACTIONS.values():
        assert set(kind.places) <= set(get_args(FaultPlace))
        assert set(kind.selectors) <= set(SELECTORS)
    assert set(COUNTS) < set(WHEN_FIELDS)


def test_every_point_has_a_row() -> None:
    assert list(POINTS) == list(get_args(FaultPoint))
    assert {hooks.REBALANCE, hooks.PREPARED, hooks.COMPLETING, APPLIED} == {
        name for name, point in POINTS.items() if point.api is None
    }


def test_requests_at_a_point_have_what_can_be_selected_there() -> None:
    for point in POINTS.values():
        assert set(point.selectors) <= set(SELECTORS)
        if point.api is not None:
            known = selectable(registry.schema(point.api).request)
            chosen = [ENTITY_FIELDS[each] for each in point.selectors if each in ENTITY_FIELDS]
            assert set(chosen) == known & set(ENTITY_FIELDS.values())


def test_what_can_be_selected_inside_of_the_broker_is_shown_while_it_is_held() -> None:
    for point in POINTS.values():
        if point.api is None:
            assert set(point.selectors) <= set(FaultHold._fields)


def test_rules_without_a_point_have_no_selectors_of_one() -> None:
    assert FaultRule(Hold()).point is None
    inside = FaultRule(Hold(point="transaction.prepared"))
    assert inside.point is not None
    assert inside.point.selectors == ("transactional_id",)
    assert inside.is_inside
    assert not FaultRule(Hold(point="produce.appended")).is_inside


FRAME = (14).to_bytes(4, "big") + (7).to_bytes(4, "big") + b"0123456789"


def test_crc_of_first_batch_is_changed_and_nothing_else() -> None:
    records = bytes(range(80))
    damaged = damage_crc(records)
    assert [at for at in range(80) if damaged[at] != records[at]] == [17]


def test_records_without_complete_batch_are_unchanged() -> None:
    assert damage_crc(b"") == b""
    assert damage_crc(bytes(20)) == bytes(20)


@pytest.mark.parametrize(("position", "at"), [(None, 4 + 7), (0, 4), (5, 9), (1000, 17)])
def test_one_bit_is_changed(position: int | None, at: int) -> None:
    damaged = damage_frame(FRAME, "bit", position)
    changed = [index for index in range(len(FRAME)) if damaged[index] != FRAME[index]]
    assert changed == [at]
    assert (damaged[at] ^ FRAME[at]).bit_count() == 1


def test_length_is_one_too_large() -> None:
    assert damage_frame(FRAME, "length", None) == (15).to_bytes(4, "big") + FRAME[4:]


def test_correlation_id_is_another_one() -> None:
    assert damage_frame(FRAME, "correlation_id", None) == FRAME[:7] + b"\x06" + FRAME[8:]


@pytest.mark.parametrize(("cut", "left"), [(None, 7), (3, 11), (0, 14), (99, 0)])
def test_truncated_response_has_the_length_of_what_is_left(cut: int | None, left: int) -> None:
    damaged = damage_frame(FRAME, "truncate", cut)
    assert damaged == left.to_bytes(4, "big") + FRAME[4 : 4 + left]


def test_unknown_tagged_field_is_in_flexible_versions_only() -> None:
    response = HeartbeatResponse(unknown_tagged_fields={5: b"kept"})
    add_tagged_field(response)
    assert encode(response, 3) == encode(HeartbeatResponse(), 3)
    decoded = decode(HeartbeatResponse, 4, encode(response, 4))
    assert sorted(decoded.unknown_tagged_fields or {}) == [5, UNKNOWN_TAG]
