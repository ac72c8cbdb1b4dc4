"""Hold points agree with the coordinators, and with the definition of a rule."""

from __future__ import annotations

from typing import get_args

from minibroker.broker.groups import hooks
from minibroker.lab.faults.actions import Hold
from minibroker.lab.faults.fault_rule import FaultHold, FaultRule
from minibroker.lab.faults.places import (
    APPLIED,
    ENTITY_FIELDS,
    POINTS,
    SELECTORS,
    FaultPoint,
)
from minibroker_protocol import registry
from minibroker_protocol.entities import selectable
from minibroker_protocol.messages import share_acknowledge as acknowledging
from minibroker_protocol.messages import share_fetch as fetching
from minibroker_protocol.types import ZERO_UUID


def test_every_point_has_a_row() -> None:
    assert list(POINTS) == list(get_args(FaultPoint))
    assert {hooks.REBALANCE, hooks.REVOKED, hooks.PREPARED, hooks.COMPLETING, APPLIED} == {
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


def test_requests_without_records_or_acknowledgements_do_not_reach_the_share_points() -> None:
    found = fetching.PartitionData(partition_index=0, records=b"")
    topic = fetching.ShareFetchableTopicResponse(topic_id=ZERO_UUID, partitions=[found])
    fetched = fetching.ShareFetchResponse(responses=[topic])
    assert not POINTS["share.acquired"].is_reached(fetched)
    found.acquired_records = [fetching.AcquiredRecords(first_offset=0, last_offset=0)]
    assert POINTS["share.acquired"].is_reached(fetched)
    result = acknowledging.PartitionData(partition_index=0, error_code=121)
    other = acknowledging.ShareAcknowledgeTopicResponse(topic_id=ZERO_UUID, partitions=[result])
    acknowledged = acknowledging.ShareAcknowledgeResponse(responses=[other])
    assert not POINTS["share.acknowledged"].is_reached(acknowledged)
    result.error_code = 0
    assert POINTS["share.acknowledged"].is_reached(acknowledged)
