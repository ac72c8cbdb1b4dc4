"""A share group assigns the partitions that have a state to its members."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from minibroker.broker.groups.events import (
    ActionTaken,
    CommitRequested,
    CommitResult,
    Event,
    GroupAnswer,
    MemberExpired,
    Moment,
    Persist,
    Persisted,
    Removed,
    Restored,
    ShareHeartbeat,
    ShareHeartbeatResult,
    SharesChanged,
    TimePassed,
)
from minibroker.broker.groups.group import GroupLimits, GroupTimes
from minibroker.broker.groups.share_group import ShareGroup
from minibroker.broker.groups.share_state import SharedPartitions
from minibroker.broker.groups.state_log import StoredGroup
from minibroker.broker.metadata.image import (
    ConfigChanged,
    Image,
    PartitionsAdded,
    Topic,
    TopicCreated,
    apply,
)
from minibroker_protocol.errors import ErrorCode
from tests.broker.groups.consumer_play import START_MS, partitions, topic_id
from tests.broker.groups.repeated_heartbeats import RepeatedHeartbeats

OK = ErrorCode.NONE
T, U = topic_id("t"), topic_id("u")


class SharePlay:
    """A group whose records are written at once; a group that is loaded from them is the same."""

    def __init__(self, limits: GroupLimits | None = None) -> None:
        self.limits = limits or GroupLimits(share_times=GroupTimes(assignment_interval_ms=0))
        self.now = 100.0
        self.image = Image(number=1)
        for name, size in (("t", 3), ("u", 2)):
            topic = Topic(name, topic_id(name), partitions(0, size))
            self.image = apply(self.image, TopicCreated(topic))
        self.stored = StoredGroup()
        self.write_error = OK
        self.answers: list[Any] = []
        self.extensions = 0
        """Heartbeats that had to extend a session and do nothing else, and did so."""
        self.repeats = RepeatedHeartbeats()
        self.group = ShareGroup("g", self.limits, lambda: "id", self.time)

    @property
    def time(self) -> Moment:
        return Moment(self.now, START_MS + round((self.now - 100) * 1000))

    def handle(self, event: Event) -> None:
        following: Event | None = event
        self.group.image, self.group.time = self.image, self.time
        extends = isinstance(event, ShareHeartbeat) and self.repeats.only_extends_session(
            self.group, event
        )
        self.extensions += extends
        while following is not None:
            decisions, following = self.group.handle(following, self.time), None
            for decision in decisions:
                if isinstance(decision, GroupAnswer):
                    self.answers.append(decision.result)
                elif isinstance(decision, Persist):
                    assert not extends
                    if self.write_error is OK:
                        for record in decision.records:
                            self.stored.apply(record)
                    following = Persisted(self.write_error)
        if extends:
            assert isinstance(event, ShareHeartbeat)
            interval_ms = self.group.times.heartbeat_interval_ms
            expected = OK, None, event.member_id, event.member_epoch, interval_ms, None
            assert self.answers[-1] == expected
            deadline = self.group.next_deadline
            self.group.extend_session(event.member_id)
            assert self.group.next_deadline == deadline
        self._check()

    def _check(self) -> None:
        records = tuple(self.stored.records.values())
        if not records or self.group.state_name == "Dead":
            return
        loaded = ShareGroup.restore("g", records, self.limits, str, self.time)
        data = self.group.data
        assert loaded.data.members == data.members
        assert loaded.data.targets == data.targets
        assert loaded.data.shared == data.shared
        assert loaded.data.assignment_timestamp == data.assignment_timestamp
        assert (loaded.epoch, loaded.data.assignment_epoch) == (
            self.group.epoch,
            data.assignment_epoch,
        )

    def beat(
        self, member: str, epoch: int = 0, topics: Sequence[str] | None = None, **fields: Any
    ) -> ShareHeartbeatResult:
        names = None if topics is None else tuple(topics)
        self.handle(ShareHeartbeat(member, epoch, topics=names, **fields))
        result = self.answers.pop()
        assert isinstance(result, ShareHeartbeatResult)
        return result

    def share(self) -> None:
        """Give a state to all partitions that need one."""
        self.group.image = self.image
        self.handle(SharesChanged(self.group.unshared_partitions))
        assert self.answers.pop() == ActionTaken()

    def join(self, member: str, *topics: str) -> ShareHeartbeatResult:
        """Join as the service lets a member: with states for its topics."""
        first = self.beat(member, 0, topics)
        assert first.error is OK
        self.share()
        return self.beat(member, first.member_epoch, topics, assigns_now=True)


@pytest.fixture
def play() -> SharePlay:
    return SharePlay()


def given(result: ShareHeartbeatResult) -> dict[bytes, set[int]] | None:
    if result.assignment is None:
        return None
    return {topic: set(partitions) for topic, partitions in result.assignment}


def test_partitions_are_assigned_when_they_have_a_state(play: SharePlay) -> None:
    first = play.beat("m", 0, ["t"])
    assert (first.member_epoch, given(first)) == (2, {})
    assert play.group.unshared_partitions == {T: frozenset({0, 1, 2})}
    play.share()
    second = play.beat("m", 2)
    assert (second.member_epoch, given(second)) == (3, {T: {0, 1, 2}})
    assert given(play.beat("m", 3)) is None
    assert play.group.unshared_partitions == {}


def test_heartbeat_that_changes_nothing_only_extends_the_session(play: SharePlay) -> None:
    epoch = play.join("m", "t").member_epoch
    play.beat("m", epoch)  # The image has not changed since the hash of the topics was computed.
    before = play.extensions
    play.beat("m", epoch)
    assert play.extensions == before + 1
    play.now += 40
    play.beat("m", epoch)
    assert play.repeats.count >= 1
    play.now += 40
    play.handle(TimePassed())
    assert play.group.members_count == 1
    play.image = apply(play.image, PartitionsAdded("t", partitions(3, 5)))
    for fields in ({}, {"rack_id": "r"}, {"client_id": "c"}, {"topics": ["t"]}):
        shown = ShareHeartbeat("m", epoch, **fields)
        play.group.image = play.image
        assert not play.group.only_extends_session(shown)


def test_heartbeat_only_extends_the_session_while_the_next_target_is_not_due() -> None:
    play = SharePlay(GroupLimits(share_times=GroupTimes(assignment_interval_ms=1_000)))
    epoch = play.join("m", "t").member_epoch
    assert play.beat("n", 0, ["t"]).member_epoch == epoch  # Within the assignment interval.
    play.beat("m", epoch)  # Computes the hash of the topics again.
    before = play.extensions
    assert play.beat("m", epoch).member_epoch == epoch
    assert play.extensions == before + 1
    play.now += 1
    assert play.beat("m", epoch).member_epoch > epoch
    assert play.extensions == before + 1


def test_members_share_partitions(play: SharePlay) -> None:
    for member in ("m", "n", "o", "p"):
        play.join(member, "t")
    epoch = play.group.epoch
    for member in ("m", "n", "o", "p"):
        play.beat(member, play.group.data.members[member].member_epoch)
        assert play.group.data.members[member].member_epoch == epoch
    held = [set(each.assigned[T]) for each in play.group.data.members.values()]
    assert set().union(*held) == {0, 1, 2}
    assert all(held)


def test_new_partitions_of_a_topic_are_assigned(play: SharePlay) -> None:
    epoch = play.join("m", "t").member_epoch
    play.image = apply(play.image, PartitionsAdded("t", partitions(3, 5)))
    assert play.group.unshared_partitions == {}
    epoch = play.beat("m", epoch).member_epoch
    assert play.group.unshared_partitions == {T: frozenset({3, 4})}
    play.share()
    assert given(play.beat("m", epoch)) == {T: {0, 1, 2, 3, 4}}


def test_member_changes_its_topics(play: SharePlay) -> None:
    epoch = play.join("m", "t").member_epoch
    changed = play.beat("m", epoch, ["u"])
    assert given(changed) == {}
    play.share()
    assert given(play.beat("m", changed.member_epoch)) == {U: {0, 1}}


def test_assignment_waits_for_its_interval() -> None:
    times = GroupTimes(assignment_interval_ms=1_000)
    play = SharePlay(GroupLimits(share_times=times))
    play.join("m", "t")
    late = play.beat("n", 0, ["t"])
    assert (late.member_epoch, given(late)) == (play.group.data.assignment_epoch, {})
    play.now += 1
    assert given(play.beat("n", late.member_epoch)) != {}


@pytest.mark.parametrize(
    ("member", "epoch", "error", "text"),
    [
        ("m", 9, ErrorCode.FENCED_MEMBER_EPOCH, "greater member epoch (9) than the one known"),
        ("m", 1, ErrorCode.FENCED_MEMBER_EPOCH, "does not match the previous member epoch (2)"),
        ("x", 1, ErrorCode.UNKNOWN_MEMBER_ID, "Member x is not a member of group g."),
        ("x", -1, ErrorCode.UNKNOWN_MEMBER_ID, "Member x is not a member of group g."),
    ],
)
def test_wrong_epoch_is_fenced(
    play: SharePlay, member: str, epoch: int, error: ErrorCode, text: str
) -> None:
    play.join("m", "t")
    result = play.beat(member, epoch)
    assert result.error is error
    assert text in (result.message or "")
    assert play.group.members_count == 1


def test_heartbeat_whose_answer_was_lost_is_answered_again(play: SharePlay) -> None:
    play.join("m", "t")
    again = play.beat("m", 2)
    assert (again.error, again.member_epoch) == (OK, 3)
    rejoined = play.beat("m", 0, ["t"])
    assert (rejoined.member_epoch, given(rejoined)) == (3, {T: {0, 1, 2}})


def test_full_group_accepts_its_members_only() -> None:
    play = SharePlay(GroupLimits(share_members_max=1))
    play.join("m", "t")
    assert play.beat("n", 0, ["t"]).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert play.beat("m", 0, ["t"]).error is OK


def test_group_that_is_left_is_empty_and_stays(play: SharePlay) -> None:
    epoch = play.join("m", "t").member_epoch
    assert play.group.validate_delete() is ErrorCode.NON_EMPTY_GROUP
    left = play.beat("m", -1)
    assert (left.error, left.member_id, left.member_epoch) == (OK, "m", -1)
    assert (play.group.state_name, play.group.epoch) == ("Empty", epoch + 1)
    assert play.group.validate_delete() is OK
    assert not play.group.is_idle
    assert play.group.data.shared.initialized == {T: frozenset({0, 1, 2})}


def test_silent_member_is_removed_after_its_session(play: SharePlay) -> None:
    play.join("m", "t")
    play.now += 44
    play.join("n", "t")
    play.now += 1
    assert play.group.next_deadline == play.now
    play.handle(TimePassed())
    assert set(play.group.data.members) == {"n"}


def test_configs_of_the_group_set_its_times(play: SharePlay) -> None:
    values = {"share.session.timeout.ms": "50000", "share.heartbeat.interval.ms": "7000"}
    play.image = apply(play.image, ConfigChanged("groups", "g", values))
    assert play.beat("m", 0, ["t"]).heartbeat_interval_ms == 7000
    assert play.group.next_deadline == play.now + 50


def test_loaded_group_gives_its_members_a_whole_session(play: SharePlay) -> None:
    play.join("m", "t")
    play.now += 1000
    play.handle(Restored())
    assert play.group.next_deadline == play.now + 45
    assert play.group.members_count == 1


def test_failed_write_changes_nothing(play: SharePlay) -> None:
    epoch = play.join("m", "t").member_epoch
    play.write_error = ErrorCode.NOT_COORDINATOR
    assert play.beat("n", 0, ["t"]).error is ErrorCode.NOT_COORDINATOR
    assert play.beat("m", -1).error is ErrorCode.NOT_COORDINATOR
    assert (play.group.epoch, play.group.members_count) == (epoch, 1)


def test_topics_whose_states_are_deleted_are_no_longer_assigned(play: SharePlay) -> None:
    epoch = play.join("m", "t").member_epoch
    play.beat("m", -1)
    play.handle(SharesChanged(deleting=frozenset({T})))
    assert play.group.data.shared.deleting == {T}
    play.handle(SharesChanged(deleted=frozenset({T})))
    assert play.group.data.shared == SharedPartitions()
    assert given(play.beat("m", 0, ["t"])) == {}
    assert play.group.epoch > epoch


def test_offsets_cannot_be_committed(play: SharePlay) -> None:
    play.join("m", "t")
    play.handle(CommitRequested("m", 2))
    assert play.answers.pop() == CommitResult(ErrorCode.GROUP_ID_NOT_FOUND)
    assert play.group.validate_offset_fetch("m", 1) is ErrorCode.GROUP_ID_NOT_FOUND
    assert play.group.validate_offset_delete() is ErrorCode.GROUP_ID_NOT_FOUND


def test_actions_of_tests(play: SharePlay) -> None:
    play.join("m", "t")
    play.handle(MemberExpired("x"))
    assert play.answers.pop().error is ErrorCode.UNKNOWN_MEMBER_ID
    play.handle(MemberExpired("m"))
    assert play.answers.pop() == ActionTaken(affected=1)
    assert play.group.members_count == 0
    play.handle(Removed())
    assert play.group.state_name == "Dead"


def test_tombstones_delete_everything(play: SharePlay) -> None:
    play.join("m", "t")
    play.beat("m", -1)
    for record in play.group.data.tombstones():
        play.stored.apply(record)
    assert play.stored.records == {}
