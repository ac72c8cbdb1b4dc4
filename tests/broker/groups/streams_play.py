"""A streams group under test: its records are written at once, and what is loaded is the same."""

from __future__ import annotations

from typing import Any

from minibroker.broker.groups.events import (
    Event,
    GroupAnswer,
    HoldRebalance,
    Moment,
    Persist,
    Persisted,
    StreamsHeartbeat,
    StreamsHeartbeatResult,
    TimePassed,
)
from minibroker.broker.groups.group import GroupLimits, GroupTimes, StreamsConfig, StreamsLimits
from minibroker.broker.groups.state_log import StoredGroup
from minibroker.broker.groups.streams_group import StreamsGroup
from minibroker.broker.groups.streams_topology import (
    InternalTopic,
    StreamsTopology,
    Subtopology,
)
from minibroker.broker.metadata.image import Image, Topic, TopicCreated, apply
from minibroker_protocol.errors import ErrorCode
from tests.broker.groups.consumer_play import START_MS, partitions, topic_id
from tests.broker.groups.repeated_heartbeats import RepeatedHeartbeats

OK = ErrorCode.NONE
READS = Subtopology("0", source_topics=("t",))
TOPOLOGY = StreamsTopology(0, (READS,))
STATEFUL = StreamsTopology(
    0, (Subtopology("0", source_topics=("t",), changelogs=(InternalTopic("log"),)),)
)
MISSING_INTERNAL = 3
DELAYED = 5


def limits(
    *, delay_ms: int = 0, interval_ms: int = 0, members_max: int = 100, **config: Any
) -> GroupLimits:
    times = GroupTimes(assignment_interval_ms=interval_ms)
    streams = StreamsConfig(initial_rebalance_delay_ms=delay_ms, **config)
    return GroupLimits(streams=StreamsLimits(members_max=members_max, times=times, config=streams))


def tasks(*partitions: int, subtopology: str = "0") -> frozenset[tuple[str, int]]:
    return frozenset((subtopology, each) for each in partitions)


class StreamsPlay:
    """A group and its topics; `t` has four partitions."""

    def __init__(self, group_limits: GroupLimits | None = None) -> None:
        self.limits = group_limits or limits()
        self.now = 100.0
        self.image = Image(number=1)
        self.create("t", 4)
        self.stored = StoredGroup()
        self.write_error = OK
        self.answers: list[Any] = []
        self.held: list[str] = []
        self.extensions = 0
        """Heartbeats that only extended a session."""
        self.repeats = RepeatedHeartbeats()
        self.group = StreamsGroup("g", self.limits, lambda: "id", self.time)

    @property
    def time(self) -> Moment:
        return Moment(self.now, START_MS + round((self.now - 100) * 1000))

    def create(self, name: str, size: int) -> None:
        self.image = apply(
            self.image, TopicCreated(Topic(name, topic_id(name), partitions(0, size)))
        )

    def handle(self, event: Event) -> None:
        following: Event | None = event
        self.group.image, self.group.time = self.image, self.time
        extends = isinstance(event, StreamsHeartbeat) and self.repeats.only_extends_session(
            self.group, event
        )
        self.extensions += extends
        while following is not None:
            decisions, following = self.group.handle(following, self.time), None
            for decision in decisions:
                if isinstance(decision, HoldRebalance):
                    self.held.append(decision.member_id)
                elif isinstance(decision, GroupAnswer):
                    self.answers.append(decision.result)
                elif isinstance(decision, Persist):
                    assert not extends
                    if self.write_error is OK:
                        for record in decision.records:
                            self.stored.apply(record)
                    following = Persisted(self.write_error)
        if extends:
            assert isinstance(event, StreamsHeartbeat)
            self._check_extension(event)
        self._check()

    def _check_extension(self, event: StreamsHeartbeat) -> None:
        """The answer is the one without a plan, and the deadlines are those of an extension."""
        assert self.answers[-1] == StreamsHeartbeatResult(
            member_id=event.member_id,
            member_epoch=event.member_epoch,
            heartbeat_interval_ms=self.group.times.heartbeat_interval_ms,
            acceptable_recovery_lag=self.group.config.acceptable_recovery_lag,
            task_offset_interval_ms=self.group.config.task_offset_interval_ms,
            endpoint_epoch=event.endpoint_epoch,
        )
        deadlines = dict(self.group._deadlines), self.group.next_deadline
        self.group.extend_session(event.member_id)
        assert (dict(self.group._deadlines), self.group.next_deadline) == deadlines

    def _check(self) -> None:
        data = self.group.data
        owners = [
            task
            for member in data.members.values()
            for held in (member.assigned, member.pending_revocation)
            for task in held.active
        ]
        assert len(owners) == len(set(owners)), "two members have an active task"
        records = tuple(self.stored.records.values())
        if not records or self.group.state_name == "Dead":
            return
        loaded = StreamsGroup.restore("g", records, self.limits, str, self.time)
        for name, value in vars(data).items():
            assert name == "processes" or vars(loaded.data)[name] == value, name
        assert loaded.state is self.group.state

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.handle(TimePassed())

    def beat(self, member: str, epoch: int = 0, **fields: Any) -> StreamsHeartbeatResult:
        """Send a heartbeat; one that joins has the topology."""
        if epoch == 0:
            fields = {
                "topology": TOPOLOGY,
                "process_id": f"p-{member}",
                "rebalance_timeout_ms": 60_000,
            } | fields
        self.handle(StreamsHeartbeat(member, epoch, **fields))
        result = self.answers.pop()
        assert isinstance(result, StreamsHeartbeatResult)
        return result

    def act(self, event: Event) -> Any:
        self.handle(event)
        return self.answers.pop()
