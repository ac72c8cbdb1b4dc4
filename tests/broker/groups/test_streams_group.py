"""A streams group: members, epochs, internal topics and tasks."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from minibroker.broker.groups.description import describe_streams_group
from minibroker.broker.groups.events import (
    ActionTaken,
    AssignmentPlanned,
    CommitRequested,
    CommitResult,
    ConsumerHeartbeat,
    EndpointPartitions,
    JoinRequested,
    MemberExpired,
    MemberFenced,
    Persist,
    RebalanceReleased,
    RebalanceRequested,
    Removed,
    Restored,
    ShareHeartbeat,
    StreamsHeartbeat,
    TaskOffset,
    Tasks,
    UserEndpoint,
)
from minibroker.broker.groups.membership import encode_assignment
from minibroker.broker.groups.streams_group import StreamsGroup
from minibroker.broker.groups.streams_records import StreamsGroupRecord, StreamsRecordKind
from minibroker.broker.groups.streams_topology import (
    StreamsStatus,
    StreamsTopology,
    Subtopology,
)
from minibroker.broker.metadata.image import GROUP, ConfigChanged, apply
from minibroker_protocol.errors import ErrorCode
from tests.broker.groups.streams_play import (
    DELAYED,
    MISSING_INTERNAL,
    OK,
    READS,
    STATEFUL,
    TOPOLOGY,
    StreamsPlay,
    limits,
    tasks,
)

NONE_OWNED = Tasks()
DELAY = StreamsStatus(DELAYED, "Assignment delayed due to the configured initial rebalance delay.")


@pytest.fixture
def play() -> StreamsPlay:
    return StreamsPlay()


def two_members(play: StreamsPlay) -> tuple[int, int]:
    """Let a and b join, and a give up what b gets; return their epochs."""
    first = play.beat("a")
    play.beat("b")
    epoch = play.beat("a", first.member_epoch).member_epoch
    kept = play.group.data.targets["a"].active
    one = play.beat("a", epoch, owned=Tasks(kept)).member_epoch
    two = play.beat("b", play.group.data.members["b"].member_epoch, owned=NONE_OWNED).member_epoch
    assert play.group.state_name == "Stable"
    return one, two


def test_first_member_gets_all_tasks(play: StreamsPlay) -> None:
    result = play.beat("a")
    assert (result.error, result.member_id, result.member_epoch) == (OK, "a", 2)
    assert result.tasks == Tasks(tasks(0, 1, 2, 3))
    assert (result.statuses, result.missing_topics) == ((), ())
    assert (play.group.state_name, play.group.epoch) == ("Stable", 2)
    assert play.beat("a", 2).tasks is None


def test_second_member_waits_until_the_first_has_given_up_tasks(play: StreamsPlay) -> None:
    play.beat("a")
    second = play.beat("b")
    assert second.tasks == NONE_OWNED
    assert play.group.state_name == "Reconciling"
    revoking = play.beat("a", 2)
    assert revoking.member_epoch == 2
    kept = revoking.tasks
    assert kept is not None
    assert len(kept.active) == 2
    waiting = play.group.data.members["b"]
    assert len(play.group.awaited_tasks(waiting)) == 2
    assert play.beat("b", 3).tasks is None
    assert play.beat("a", 2, owned=kept).member_epoch == 3
    given = play.beat("b", 3).tasks
    assert given is not None
    assert given.active | kept.active == tasks(0, 1, 2, 3)
    assert play.group.state_name == "Stable"


def test_internal_topics_are_requested_and_then_tasks_assigned(play: StreamsPlay) -> None:
    result = play.beat("a", topology=STATEFUL)
    (missing,) = result.missing_topics
    assert (missing.name, missing.partitions) == ("log", 4)
    (status,) = result.statuses
    assert status == StreamsStatus(MISSING_INTERNAL, "Internal topics are missing: log")
    assert (result.tasks, play.group.state_name) == (NONE_OWNED, "NotReady")
    play.create("log", 4)
    following = play.beat("a", 2)
    assert (following.statuses, following.tasks) == ((), Tasks(tasks(0, 1, 2, 3)))
    assert (following.member_epoch, play.group.state_name) == (3, "Stable")


def test_missing_source_topic_is_stated(play: StreamsPlay) -> None:
    topology = StreamsTopology(0, (Subtopology("0", source_topics=("u",)),))
    result = play.beat("a", topology=topology)
    assert result.statuses == (StreamsStatus(1, "Source topics u are missing."),)
    assert play.group.state_name == "NotReady"


def test_first_target_waits_for_further_members() -> None:
    play = StreamsPlay(limits(delay_ms=3_000))
    assert play.beat("a").statuses == (DELAY,)
    second = play.beat("b")
    assert (second.statuses, second.tasks, second.member_epoch) == ((DELAY,), NONE_OWNED, 1)
    play.wait(2.9)
    assert play.group.state_name == "Assigning"
    play.wait(0.2)
    assert play.group.state_name == "Reconciling"
    given = [play.beat(member, 1).tasks for member in ("a", "b")]
    assert [len(each.active) for each in given if each] == [2, 2]
    assert play.group.state_name == "Stable"


def test_target_waits_for_the_assignment_interval() -> None:
    play = StreamsPlay(limits(interval_ms=1_000))
    play.beat("a")
    text = "Assignment delayed due to the configured assignment interval."
    assert play.beat("b").statuses == (StreamsStatus(DELAYED, text),)
    assert play.group.state_name == "Assigning"
    play.wait(1)
    assert play.beat("b", 2).statuses == ()
    assert play.group.state_name == "Reconciling"


def test_other_topology_is_rejected_and_an_older_one_is_stale(play: StreamsPlay) -> None:
    play.beat("a", topology=StreamsTopology(2, (READS,)))
    for epoch in (2, 3):
        result = play.beat("b", topology=StreamsTopology(epoch, ()))
        assert result.error is ErrorCode.INVALID_REQUEST
        assert result.message == "Topology updates are not supported yet."
    result = play.beat("b", topology=StreamsTopology(1, ()))
    text = "The member's topology epoch 1 is behind the group's topology epoch 2."
    assert result.statuses == (StreamsStatus(0, text),)


@pytest.mark.parametrize(
    ("epoch", "owned", "error"),
    [
        (3, None, OK),
        (2, Tasks(tasks(0, 1, 2, 3)), OK),
        (2, Tasks(tasks(0, 1), tasks(2)), ErrorCode.FENCED_MEMBER_EPOCH),
        (2, None, ErrorCode.FENCED_MEMBER_EPOCH),
        (1, NONE_OWNED, ErrorCode.FENCED_MEMBER_EPOCH),
        (4, NONE_OWNED, ErrorCode.FENCED_MEMBER_EPOCH),
        (0, None, OK),
    ],
)
def test_only_the_current_epoch_and_a_lost_answer_are_accepted(
    play: StreamsPlay, epoch: int, owned: Tasks | None, error: ErrorCode
) -> None:
    play.beat("a")
    play.beat("a", 2, rack_id="r")
    assert play.group.data.members["a"].member_epoch == 3
    result = play.beat("a", epoch, owned=owned)
    assert result.error is error
    if error is not OK:
        size = "greater" if epoch > 3 else "smaller"
        assert f"a {size} member epoch ({epoch})" in str(result.message)


def test_tasks_that_do_not_exist_are_rejected(play: StreamsPlay) -> None:
    play.beat("a")
    unknown = play.beat("a", 2, owned=Tasks(tasks(0, subtopology="9")))
    assert unknown.message == "Subtopology 9 does not exist in the topology."
    invalid = play.beat("a", 2, owned=Tasks(tasks(4)))
    assert invalid.error is ErrorCode.INVALID_REQUEST
    assert invalid.message == (
        "Task 4 for subtopology 0 is invalid. Number of tasks for this subtopology: 4"
    )


def test_member_leaves(play: StreamsPlay) -> None:
    one, _ = two_members(play)
    result = play.beat("b", -1)
    assert (result.member_id, result.member_epoch, result.statuses) == ("b", -1, ())
    assert play.group.state_name == "Assigning"
    assert play.beat("a", one).tasks == Tasks(tasks(0, 1, 2, 3))
    play.beat("a", -1)
    assert (play.group.state_name, play.group.is_idle) == ("Empty", True)
    assert play.beat("a", -1).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_silent_member_is_removed(play: StreamsPlay) -> None:
    one, _ = two_members(play)
    play.wait(44)
    play.beat("a", one)
    play.wait(2)
    assert list(play.group.data.members) == ["a"]
    assert play.beat("b", 3).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_member_that_does_not_give_up_tasks_is_removed(play: StreamsPlay) -> None:
    play.beat("a", rebalance_timeout_ms=10_000)
    play.beat("b")
    play.beat("a", 2)
    for _ in range(2):
        play.wait(5)
        play.beat("b", 3)
    assert list(play.group.data.members) == ["b"]


def test_static_member_that_returns_has_its_tasks(play: StreamsPlay) -> None:
    play.beat("a", instance_id="one")
    taken = play.beat("b", instance_id="one")
    assert taken.error is ErrorCode.UNRELEASED_INSTANCE_ID
    assert play.beat("b", 2, instance_id="one").error is ErrorCode.FENCED_INSTANCE_ID
    assert play.beat("b", 2, instance_id="two").error is ErrorCode.UNKNOWN_MEMBER_ID
    assert play.beat("a", -2, instance_id="one").member_epoch == -2
    returned = play.beat("b", instance_id="one", process_id="p-a")
    assert (returned.member_epoch, returned.tasks) == (2, Tasks(tasks(0, 1, 2, 3)))
    assert list(play.group.data.members) == ["b"]
    assert play.group.epoch == 2


def test_target_of_a_static_member_that_returns_is_written_once(play: StreamsPlay) -> None:
    play.beat("a", instance_id="one")
    play.beat("a", -2, instance_id="one")
    back = StreamsHeartbeat(
        "b", 0, "one", topology=TOPOLOGY, process_id="other", rebalance_timeout_ms=60_000
    )
    decisions = play.group.handle(back, play.time)
    [persist] = [each for each in decisions if isinstance(each, Persist)]
    kinds = Counter(
        record.kind
        for record in persist.records
        if isinstance(record, StreamsGroupRecord) and record.name == "b"
    )
    assert kinds[StreamsRecordKind.TARGET] == 1
    assert kinds[StreamsRecordKind.MEMBER] == 2


def test_full_group_takes_no_more_members() -> None:
    play = StreamsPlay(limits(members_max=1))
    play.beat("a", instance_id="one")
    result = play.beat("b")
    assert result.error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert result.message == "The streams group has reached its maximum capacity of 1 members."
    assert play.beat("a", 2, instance_id="one").error is OK


def test_standby_tasks_follow_the_config(play: StreamsPlay) -> None:
    play.create("log", 4)
    play.beat("a", topology=STATEFUL)
    play.beat("b", topology=STATEFUL)
    assert not any(each.standby for each in play.group.data.targets.values())
    config = {"streams.num.standby.replicas": "1"}
    play.image = apply(play.image, ConfigChanged(GROUP, "g", config))
    play.beat("b", 3)
    targets = play.group.data.targets
    assert all(len(each.active) == len(each.standby) == 2 for each in targets.values())
    assert all(not each.active & each.standby for each in targets.values())


def test_shutdown_is_passed_on_until_the_group_is_empty(play: StreamsPlay) -> None:
    play.beat("a")
    for member, epoch in (("a", 2), ("b", 0)):
        (status,) = play.beat(member, epoch, shuts_down=member == "a").statuses
        assert (status.code, "member a" in status.detail) == (4, True)
    play.beat("a", -1)
    play.beat("b", -1)
    assert play.beat("c").statuses == ()


def test_missing_tags_are_stated_to_clients_that_know_the_status() -> None:
    play = StreamsPlay(limits(rack_aware_tags=("zone", "rack")))
    (status,) = play.beat("a", client_tags={"zone": "z"}).statuses
    assert (status.code, "[rack]" in status.detail) == (6, True)
    assert play.beat("a", 2, knows_tags=False).statuses == ()


def test_endpoints_are_told_until_members_know_them(play: StreamsPlay) -> None:
    here, there = UserEndpoint("a.example", 1), UserEndpoint("b.example", 2)
    first = play.beat("a", endpoint=here)
    whole = EndpointPartitions(here, (("t", (0, 1, 2, 3)),), ())
    assert (first.endpoint_epoch, first.endpoints) == (0, (whole,))
    assert play.beat("a", 2, endpoint_epoch=0).endpoints is None
    joined = play.beat("b", endpoint=there)
    assert (joined.endpoint_epoch, joined.endpoints) == (
        1,
        (whole, EndpointPartitions(there, (), ())),
    )
    revoking = play.beat("a", 2, endpoint_epoch=0)
    assert (revoking.endpoint_epoch, revoking.endpoints is None) == (2, False)


def test_offsets_of_tasks_are_kept_and_no_duplicates_accepted(play: StreamsPlay) -> None:
    offset = TaskOffset(("0", 1), 7)
    play.beat("a", task_offsets=(offset,))
    play.beat("a", 2, task_end_offsets=(offset,))
    reported = play.group.offsets_of_tasks["a"]
    assert reported == ((offset,), (offset,))
    result = play.beat("a", 2, task_offsets=(offset, offset))
    assert result.message == (
        "Task offsets contain a duplicate entry for subtopology 0 and partition 1."
    )


@pytest.mark.parametrize(
    ("member", "epoch", "fields", "error"),
    [
        ("a", 3, {}, OK),
        ("a", 4, {}, ErrorCode.STALE_MEMBER_EPOCH),
        ("a", 2, {"partitions": (("t", 0),)}, OK),
        ("a", 1, {"partitions": (("t", 0),)}, ErrorCode.STALE_MEMBER_EPOCH),
        ("a", 2, {"partitions": (("u", 0),)}, ErrorCode.STALE_MEMBER_EPOCH),
        ("x", 3, {}, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", -1, {}, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", -1, {"transactional": True}, OK),
        ("a", 3, {"knows_epochs": False}, ErrorCode.UNSUPPORTED_VERSION),
    ],
)
def test_commits_are_fenced_by_the_epochs_of_tasks(
    play: StreamsPlay, member: str, epoch: int, fields: dict[str, object], error: ErrorCode
) -> None:
    play.beat("a")
    play.beat("a", 2, rack_id="r")
    event = CommitRequested(member, epoch, **fields)  # type: ignore[arg-type]
    assert play.act(event) == CommitResult(error)


def test_offsets_are_fetched_in_the_current_epoch(play: StreamsPlay) -> None:
    validate = play.group.validate_offset_fetch
    assert play.act(CommitRequested("", -1)) == CommitResult(OK)
    play.beat("a")
    assert validate(None, -1) is OK
    assert validate("a", 2) is OK
    assert validate("a", 1) is ErrorCode.STALE_MEMBER_EPOCH
    assert validate("b", 2) is ErrorCode.UNKNOWN_MEMBER_ID
    assert play.group.is_subscribed("t")
    assert not play.group.is_subscribed("log")
    assert play.group.validate_delete() is ErrorCode.NON_EMPTY_GROUP


def test_requests_of_other_groups_are_refused(play: StreamsPlay) -> None:
    play.beat("a")
    for event in (ConsumerHeartbeat("a", 0), ShareHeartbeat("a", 0)):
        assert play.act(event).error is ErrorCode.GROUP_ID_NOT_FOUND
    assert JoinRequested not in StreamsGroup.HANDLERS
    assert not StreamsGroup.takes_classic_requests


def test_failed_write_changes_nothing(play: StreamsPlay) -> None:
    play.write_error = ErrorCode.NOT_COORDINATOR
    assert play.beat("a").error is ErrorCode.NOT_COORDINATOR
    assert (play.group.state_name, play.group.epoch) == ("Empty", 1)


def test_loaded_members_expire_unless_they_send_heartbeats(play: StreamsPlay) -> None:
    play.beat("a")
    records = tuple(play.stored.records.values())
    play.group = StreamsGroup.restore("g", records, play.limits, str, play.time)
    play.handle(Restored())
    assert play.group.state_name == "Stable"
    play.wait(46)
    assert play.group.state_name == "Empty"


def test_removed_group_is_dead(play: StreamsPlay) -> None:
    play.beat("a")
    play.handle(Removed())
    assert (play.group.state_name, play.group.next_deadline) == ("Dead", None)


def test_test_requests_rebalance_expiry_and_fence(play: StreamsPlay) -> None:
    one, _ = two_members(play)
    assert play.act(RebalanceRequested()) == ActionTaken(affected=2)
    assert play.group.state_name == "Assigning"
    one = play.beat("a", one).member_epoch
    assert play.act(MemberFenced("a")) == ActionTaken(affected=1)
    assert play.beat("a", one, owned=NONE_OWNED).error is ErrorCode.FENCED_MEMBER_EPOCH
    assert play.beat("a").error is OK
    assert play.act(MemberExpired("b")) == ActionTaken(affected=1)
    assert list(play.group.data.members) == ["a"]
    assert play.act(MemberFenced("b")).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_test_sets_the_tasks_of_members(play: StreamsPlay) -> None:
    one, _ = two_members(play)
    moved = {"b": encode_assignment({"0": (0, 1, 2, 3)}, 1)}
    assert play.act(AssignmentPlanned(moved)) == ActionTaken(affected=1)
    assert play.group.data.targets == {"a": Tasks(), "b": Tasks(tasks(0, 1, 2, 3))}
    assert play.beat("a", one).tasks == NONE_OWNED
    assert play.beat("a", one, owned=NONE_OWNED).member_epoch == one + 1
    wrong = {"a": encode_assignment({"0": (9,)}, 1)}
    assert play.act(AssignmentPlanned(wrong)).error is ErrorCode.INVALID_REQUEST
    unknown = {"x": encode_assignment({"0": (0,)}, 1)}
    assert play.act(AssignmentPlanned(unknown)).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_given_up_tasks_are_held_until_they_are_released(play: StreamsPlay) -> None:
    play.beat("a")
    play.beat("b")
    kept = play.beat("a", 2).tasks
    play.group.holds_rebalances = True
    assert play.beat("a", 2, owned=kept).member_epoch == 2
    assert play.held == ["a"]
    play.group.holds_rebalances = False
    assert play.beat("a", 2, owned=kept).member_epoch == 2
    assert play.beat("b", 3).tasks is None
    shown = {each.member_id: each.is_held for each in describe_streams_group(play.group).members}
    assert shown == {"a": True, "b": False}
    play.handle(RebalanceReleased("a"))
    assert play.beat("a", 2).member_epoch == 3
    assert play.beat("b", 3).tasks is not None
    assert play.group.state_name == "Stable"


def test_member_that_rejoins_is_no_longer_held(play: StreamsPlay) -> None:
    play.beat("a")
    play.beat("b")
    kept = play.beat("a", 2).tasks
    play.group.holds_rebalances = True
    play.beat("a", 2, owned=kept)
    play.beat("a", owned=None)
    assert play.group.held_revocations == {}


def test_heartbeat_without_news_only_extends_the_session(play: StreamsPlay) -> None:
    def extends(epoch: int, **fields: Any) -> bool:
        return play.group.only_extends_session(StreamsHeartbeat("a", epoch, **fields))

    known: dict[str, Any] = {"endpoint_epoch": 0}
    assert not extends(0, **known)
    play.beat("a")
    play.beat("a", 2)  # Only now the topology is the stored one.
    assert extends(2, **known)
    assert play.beat("a", 2, **known).tasks is None
    assert play.extensions == 1
    play.beat("a", 2, **known)
    assert play.repeats.count == 1
    for fields in (
        {"endpoint_epoch": 1},
        {"owned": NONE_OWNED},
        {"task_offsets": ()},
        {"rack_id": "r"},
        {"shuts_down": True},
    ):
        assert not extends(2, **{**known, **fields})
    assert not extends(1, **known)
    play.create("u", 1)
    play.group.image = play.image
    assert not extends(2, **known)
    play.beat("a", 2)
    assert extends(2, **known)
    play.beat("b")
    assert not extends(2, **known)
