"""The state of a streams group follows from its records."""

from __future__ import annotations

import pytest

from minibroker.broker.groups.events import Tasks
from minibroker.broker.groups.group import RequestRejected, check_instance
from minibroker.broker.groups.streams_member import HeldTasks, StreamsMember
from minibroker.broker.groups.streams_state import (
    StreamsGroupData,
    StreamsGroupState,
    stored_topology,
    topology_of,
)
from minibroker.broker.groups.streams_topology import (
    CopartitionGroup,
    InternalTopic,
    StreamsTopology,
    Subtopology,
)
from minibroker_protocol.errors import ErrorCode
from tests.broker.groups.streams_play import TOPOLOGY, tasks

TASK = ("0", 1)


def member(member_id: str, process_id: str, **held: object) -> StreamsMember:
    assigned = HeldTasks(**held)  # type: ignore[arg-type]
    return StreamsMember(
        member_id=member_id, member_epoch=3, process_id=process_id, assigned=assigned
    )


def put(data: StreamsGroupData, *members: StreamsMember) -> None:
    for each in members:
        data.apply(each.metadata_record("g"))
        data.apply(each.assignment_record("g"))


def test_topology_is_stored_whole() -> None:
    log = InternalTopic("log", 0, 3, {"cleanup.policy": "compact"})
    between = InternalTopic("between", 4)
    topology = StreamsTopology(
        7,
        (
            Subtopology("0", ("t", "u"), (), ("between",), (), (log,), (CopartitionGroup((0, 1)),)),
            Subtopology("1", (), (), (), (between,), (), (CopartitionGroup((), (), (0,)),)),
        ),
    )
    assert topology_of(stored_topology(topology)) == topology
    data = StreamsGroupData("g")
    data.apply(data.topology_record(topology))
    assert data.topology == topology


def test_processes_of_tasks_follow_from_the_members() -> None:
    data = StreamsGroupData("g")
    one = member("a", "p", active={TASK: 3})
    two = member("b", "q", standby=frozenset({TASK}), warmup=frozenset({("0", 2)}))
    put(data, one, two)
    assert data.processes.active(TASK) == "p"
    assert data.processes.standby(TASK) == {"q"}
    assert data.processes.warmup(("0", 2)) == {"q"}
    for record in (*data.removal("a"), *data.removal("b")):
        data.apply(record)
    assert data.members == {}
    assert data.processes.active(TASK) is None
    assert not data.processes.standby(TASK)
    assert not data.processes.warmup(("0", 2))


def test_state_follows_from_topology_epochs_and_members() -> None:
    data = StreamsGroupData("g")
    assert data.current_state() is StreamsGroupState.EMPTY
    put(data, member("a", "p"))
    assert data.current_state() is StreamsGroupState.NOT_READY
    data.apply(data.topology_record(TOPOLOGY))
    data.apply(data.epoch_record(4, 9, TOPOLOGY.epoch, {"num.standby.replicas": "1"}))
    assert data.current_state() is StreamsGroupState.ASSIGNING
    data.apply(data.target_epoch_record(4, 1))
    assert data.current_state() is StreamsGroupState.RECONCILING
    data.apply(data.epoch_record(3))
    data.apply(data.target_epoch_record(3, 1))
    assert data.current_state() is StreamsGroupState.STABLE
    assert (data.metadata_hash, data.assignment_configs) == (9, {"num.standby.replicas": "1"})


def test_tombstones_delete_everything() -> None:
    data = StreamsGroupData("g")
    put(data, member("a", "p", active={TASK: 3}))
    data.apply(data.topology_record(TOPOLOGY))
    data.apply(data.target_record("a", Tasks(tasks(1))))
    for record in data.tombstones():
        data.apply(record)
    assert (data.members, data.targets, data.topology) == ({}, {}, None)


def test_members_are_found_by_id_and_instance_id() -> None:
    data = StreamsGroupData("g")
    put(data, StreamsMember(member_id="a", instance_id="i"))
    assert data.static_member("i") is data.member("a")
    assert check_instance(data.static_member("i"), "a", "i") is data.member("a")
    for member_id, instance_id, error in (
        ("b", "i", ErrorCode.FENCED_INSTANCE_ID),
        ("b", "j", ErrorCode.UNKNOWN_MEMBER_ID),
    ):
        with pytest.raises(RequestRejected) as rejected:
            check_instance(data.static_member(instance_id), member_id, instance_id)
        assert rejected.value.error is error
    with pytest.raises(RequestRejected):
        data.member("b")
