"""A consumer group whose records are written at once, and members that follow the protocol.

After each event it is checked that no partition has two members, that no epoch has decreased, and
that a group loaded from the records is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

from minibroker.broker.groups.consumer_group import ConsumerGroup
from minibroker.broker.groups.consumer_member import ConsumerMember
from minibroker.broker.groups.events import (
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    Event,
    GroupAnswer,
    GroupReplaced,
    Moment,
    Persist,
    Persisted,
    Restored,
    TimePassed,
)
from minibroker.broker.groups.group import GroupLimits
from minibroker.broker.groups.state_log import StoredGroup
from minibroker.broker.metadata.image import (
    ConfigChanged,
    Image,
    PartitionRegistration,
    PartitionsAdded,
    Topic,
    TopicCreated,
    apply,
)
from minibroker_protocol.errors import ErrorCode
from tests.broker.groups.repeated_heartbeats import RepeatedHeartbeats

START_MS = 1_700_000_000_000
OK = ErrorCode.NONE


def topic_id(name: str) -> bytes:
    return name.encode().ljust(16, b"\0")


def partitions(start: int, end: int) -> tuple[PartitionRegistration, ...]:
    return tuple(PartitionRegistration(at, 1, 0, (1,), (1,)) for at in range(start, end))


class ConsumerPlay:
    """One group, its clock, its records and the topics."""

    def __init__(self, limits: GroupLimits | None = None, **topics: int) -> None:
        ids = count(1)
        self.make_id: Callable[[], str] = lambda: f"id{next(ids)}"
        self.limits = limits or GroupLimits()
        self.now = 100.0
        self.image = Image(number=1)
        for name, size in topics.items():
            self.create_topic(name, size)
        self.stored = StoredGroup()
        self.records: list[Any] = []
        self.write_error = OK
        self.replaced: GroupReplaced | None = None
        self.answers: list[Any] = []
        self.extensions = 0
        """Heartbeats that had to extend a session and do nothing else, and did so."""
        self.repeats = RepeatedHeartbeats()
        self.group = ConsumerGroup("g", self.limits, self.make_id, self.time)

    @property
    def time(self) -> Moment:
        return Moment(self.now, START_MS + round((self.now - 100) * 1000))

    def create_topic(self, name: str, size: int) -> None:
        topic = Topic(name, topic_id(name), partitions(0, size))
        self.image = replace(apply(self.image, TopicCreated(topic)), number=self.image.number + 1)

    def add_partitions(self, name: str, size: int) -> None:
        added = partitions(len(self.image.topics[name].partitions), size)
        self.image = apply(self.image, PartitionsAdded(name, added))

    def configure(self, **config: str) -> None:
        values = {name.replace("_", "."): value for name, value in config.items()}
        self.image = apply(self.image, ConfigChanged("groups", "g", values))

    def handle(self, event: Event) -> Any:
        """Pass an event, write what is to be written, and return the answer, if there is one."""
        epochs = self.group.data.group_epoch, self.group.data.assignment_epoch
        self.answers = []
        self.group.image, self.group.time = self.image, self.time
        member = self._extended_by(event)
        records = len(self.records)
        following: Event | None = event
        while following is not None:
            self.group.image = self.image
            decisions = self.group.handle(following, self.time)
            following = None
            for decision in decisions:
                if isinstance(decision, GroupAnswer):
                    self.answers.append(decision.result)
                elif isinstance(decision, GroupReplaced):
                    self.replaced = decision
                elif isinstance(decision, Persist):
                    assert decision is decisions[-1]
                    following = self._write(decision)
        if self.replaced is None:
            self._check(*epochs)
        if member is not None:
            interval_ms = self.group.times.heartbeat_interval_ms
            expected = OK, None, member.member_id, member.member_epoch, interval_ms, None
            assert self.answers == [expected]
            deadlines = self.deadlines()
            self.group.extend_session(member.member_id)
            assert self.deadlines() == deadlines
            assert len(self.records) == records
        assert len(self.answers) <= 1
        return self.answers[0] if self.answers else None

    def deadlines(self) -> tuple[object, object]:
        """All deadlines of the group, and the time of its next event."""
        return dict(self.group._deadlines), self.group.next_deadline

    def _extended_by(self, event: Event) -> ConsumerMember | None:
        """The member whose session a heartbeat extends without another effect."""
        if isinstance(event, ConsumerHeartbeat) and self.repeats.only_extends_session(
            self.group, event
        ):
            self.extensions += 1
            return self.group.data.members[event.member_id]
        return None

    def _write(self, persist: Persist) -> Persisted:
        if self.write_error is not OK:
            return Persisted(self.write_error)
        for record in persist.records:
            self.records.append(record)
            self.stored.apply(record)
        return Persisted()

    def _check(self, group_epoch: int, assignment_epoch: int) -> None:
        group = self.group
        assert (group.data.group_epoch, group.data.assignment_epoch) >= (
            group_epoch,
            assignment_epoch,
        )
        owners: dict[tuple[bytes, int], str] = {}
        for member in group.data.members.values():
            for topic, epochs in (*member.assigned.items(), *member.pending_revocation.items()):
                for partition in epochs:
                    assert (topic, partition) not in owners, (topic, partition)
                    owners[topic, partition] = member.member_id
        assert owners == {each: owner.member_id for each, owner in group.data.owners.items()}
        loaded = self.load()
        assert loaded.data.members == group.data.members
        assert loaded.data.targets == group.data.targets
        assert (loaded.data.group_epoch, loaded.data.assignment_epoch) == (
            group.data.group_epoch,
            group.data.assignment_epoch,
        )
        assert loaded.state is group.state

    def load(self) -> ConsumerGroup:
        records = tuple(self.stored.records.values())
        return ConsumerGroup.restore("g", records, self.limits, self.make_id, self.time)

    def restart(self) -> None:
        self.group = self.load()
        self.handle(Restored())

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.handle(TimePassed())

    def beat(self, member_id: str, epoch: int, **fields: Any) -> ConsumerHeartbeatResult:
        result = self.handle(ConsumerHeartbeat(member_id, epoch, **fields))
        assert isinstance(result, ConsumerHeartbeatResult)
        return result

    def join(self, member_id: str, *topics: str, **fields: Any) -> ConsumerHeartbeatResult:
        stated = {"topics": topics, "rebalance_timeout_ms": 30_000, "owned": (), **fields}
        return self.beat(member_id, 0, **stated)

    def error(self, member_id: str, epoch: int, **fields: Any) -> tuple[ErrorCode, str | None]:
        return self.beat(member_id, epoch, **fields)[:2]

    def member(self, member_id: str) -> ConsumerMember:
        return self.group.data.members[member_id]


class PlayedMember:
    """A client that follows the protocol: it owns what it was assigned, and revokes at once."""

    def __init__(self, play: ConsumerPlay, member_id: str, *topics: str, **fields: Any) -> None:
        self.play, self.member_id, self.topics, self.fields = play, member_id, topics, fields
        self.epoch = 0
        self.owned: dict[bytes, tuple[int, ...]] = {}
        self.has_lost_answer = False

    def beat(self, *, is_lost: bool = False) -> ConsumerHeartbeatResult:
        """Send a heartbeat, whose answer may be lost."""
        owned = tuple(self.owned.items())
        if self.epoch == 0:
            result = self.play.join(self.member_id, *self.topics, **self.fields)
        elif self.has_lost_answer:  # As clients do, it states everything again.
            stated = {"topics": self.topics, "rebalance_timeout_ms": 30_000, **self.fields}
            result = self.play.beat(self.member_id, self.epoch, owned=owned, **stated)
        else:
            result = self.play.beat(self.member_id, self.epoch, owned=owned)
        self.has_lost_answer = is_lost
        if is_lost:
            return result
        if result.error in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
            self.epoch, self.owned = 0, {}
        elif result.error is OK:
            self.epoch = result.member_epoch
            if result.assignment is not None:
                self.owned = dict(result.assignment)
        return result

    @property
    def partitions(self) -> set[tuple[bytes, int]]:
        return {(topic, each) for topic, parts in self.owned.items() for each in parts}


def settle(play: ConsumerPlay, *members: PlayedMember, rounds: int = 12) -> None:
    """Let members send heartbeats until nothing moves."""
    for _ in range(rounds):
        play.sleep(1)
        for member in members:
            member.beat()
