"""The steps of a change of a streams group leave no records if the request is rejected."""

from __future__ import annotations

import pytest

from minibroker.broker.groups.events import StreamsHeartbeat, Tasks
from minibroker.broker.groups.group import GroupTimes, RequestRejected, StreamsConfig
from minibroker.broker.groups.streams_change import StreamsChange, StreamsContext
from minibroker.broker.groups.streams_state import StreamsGroupData
from minibroker.broker.groups.streams_topology import (
    InternalTopic,
    StreamsTopology,
    Subtopology,
)
from minibroker_protocol.errors import ErrorCode
from tests.broker.groups.streams_play import TOPOLOGY, StreamsPlay, tasks


def context(data: StreamsGroupData) -> StreamsContext:
    return StreamsContext(data, StreamsPlay().image, 10, GroupTimes(), StreamsConfig(), 1, {})


def change(data: StreamsGroupData, **fields: object) -> StreamsChange:
    stated = {"topology": TOPOLOGY, "process_id": "p", "rebalance_timeout_ms": 1} | fields
    event = StreamsHeartbeat("a", 0, **stated)  # type: ignore[arg-type]
    return StreamsChange(context(data), event)


def test_first_heartbeat_writes_member_topology_epoch_target_and_tasks() -> None:
    first = change(StreamsGroupData("g"))
    first.update_member()
    first.update_topology()
    first.check_topics(None)
    first.plan_group_epoch()
    first.plan_target(is_delayed=False)
    first.plan_reconciliation()
    assert [record.kind.name for record in first.records] == [
        "MEMBER",
        "TOPOLOGY",
        "EPOCH",
        "TARGET",
        "TARGET_EPOCH",
        "CURRENT",
    ]
    assert first.after.assigned.tasks == Tasks(tasks(0, 1, 2, 3))


def test_topology_is_compared_with_topics_only_when_they_have_changed() -> None:
    data = StreamsGroupData("g")
    data.apply(data.topology_record(TOPOLOGY))
    one, two = change(data), change(data)
    two.image = one.image
    for each in (one, two):
        each.update_topology()
    one.check_topics(None)
    two.check_topics(one.checked)
    assert two.checked is one.checked


def test_topology_that_no_topics_can_satisfy_is_rejected() -> None:
    loop = Subtopology("0", (), (), ("r",), (InternalTopic("r"),))
    looping = change(StreamsGroupData("g"), topology=StreamsTopology(0, (loop,)))
    looping.update_topology()
    with pytest.raises(RequestRejected) as rejected:
        looping.check_topics(None)
    assert rejected.value.error is ErrorCode.STREAMS_INVALID_TOPOLOGY
    assert "loops in the topology" in rejected.value.text


def test_group_without_a_topology_gets_one_from_its_first_member() -> None:
    without = change(StreamsGroupData("g"), topology=None)
    with pytest.raises(RequestRejected):
        without.update_topology()
    assert without.records == []


def test_targets_of_a_topology_without_topics_are_empty() -> None:
    data = StreamsGroupData("g")
    missing = StreamsTopology(0, (Subtopology("0", ("u",)),))
    waiting = change(data, topology=missing)
    waiting.update_topology()
    waiting.check_topics(None)
    targets, records, _ = context(data).compute_targets(
        {"a": waiting.before}, 2, waiting.checked.configured
    )
    assert targets == {"a": Tasks()}
    assert [record.kind.name for record in records] == ["TARGET", "TARGET_EPOCH"]
