"""Consumer groups are steered over HTTP: targets, fences, lost answers, held revocations, times."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from minibroker.cli.app import app
from minibroker.testing import ControlError, MiniBroker, WaitTimedOut
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from minibroker_protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from minibroker_protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from minibroker_protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from minibroker_protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from tests.broker.network.raw_client import RawClient

GROUP_CONFIG = 32
HEARTBEAT, OFFSETS = "ConsumerGroupHeartbeat", ("OffsetCommit", "OffsetFetch")

SETTINGS = {
    "num.io.threads": 2,
    "group.consumer.assignment.interval.ms": 0,
    "group.consumer.min.session.timeout.ms": 100,
    "group.consumer.min.heartbeat.interval.ms": 20,
    "group.consumer.heartbeat.interval.ms": 20,
}


class Answer(NamedTuple):
    """What a heartbeat was answered with; partitions are of the one topic."""

    error: ErrorCode
    epoch: int
    partitions: set[int] | None


class Member:
    """A member of a consumer group, one heartbeat at a time."""

    def __init__(self, broker: MiniBroker, group: str, topic_id: bytes, name: str = "") -> None:
        self.member_id = name or uuid.uuid4().hex
        self.group, self.topic_id, self.epoch = group, topic_id, 0
        self.servers = broker.bootstrap_servers
        self.client = RawClient(self.servers)

    def connect_again(self) -> None:
        self.close()
        self.client = RawClient(self.servers)

    def close(self) -> None:
        self.client.__exit__(None, None, None)

    def request(self, owned: set[int] | None = None, **fields: Any) -> Any:
        stated: dict[str, Any] = {"member_epoch": self.epoch, **fields}
        if stated["member_epoch"] == 0:
            stated |= {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": [self.group]}
            owned = owned or set()
        given = [TopicPartitions(topic_id=self.topic_id, partitions=sorted(owned or ()))]
        return ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.member_id,
            topic_partitions=None if owned is None else given if owned else [],
            **stated,
        )

    def beat(self, owned: set[int] | None = None, **fields: Any) -> Answer:
        response = self.client.ask(self.request(owned, **fields), 1)
        error = ErrorCode(response.error_code)
        if error is ErrorCode.NONE:
            self.epoch = response.member_epoch
        assigned = response.assignment
        return Answer(
            error,
            response.member_epoch,
            None
            if assigned is None
            else {at for topic in assigned.topic_partitions for at in topic.partitions},
        )

    def commit(self, partition: int, *, epoch: int) -> ErrorCode:
        request = OffsetCommitRequest(
            group_id=self.group,
            member_id=self.member_id,
            generation_id_or_member_epoch=epoch,
            topics=[
                OffsetCommitRequestTopic(
                    name=self.group,
                    partitions=[
                        OffsetCommitRequestPartition(partition_index=partition, committed_offset=1)
                    ],
                )
            ],
        )
        response = self.client.ask(request, 9)
        return ErrorCode(response.topics[0].partitions[0].error_code)

    def fetch_offsets(self, *, epoch: int) -> ErrorCode:
        group = OffsetFetchRequestGroup(
            group_id=self.group, member_id=self.member_id, member_epoch=epoch, topics=None
        )
        response = self.client.ask(OffsetFetchRequest(groups=[group]), 9)
        return ErrorCode(response.groups[0].error_code)


@pytest.fixture(scope="module")
def broker() -> Iterator[MiniBroker]:
    with MiniBroker(settings=SETTINGS) as started:
        yield started


class Room:
    """A group with a topic of the same name, which has four partitions."""

    def __init__(self, broker: MiniBroker) -> None:
        self.broker, self.name = broker, f"n{uuid.uuid4().hex}"
        self.members: list[Member] = []
        broker.create_topic(self.name, partitions=4)
        with RawClient(broker.bootstrap_servers) as client:
            request = MetadataRequest(topics=[MetadataRequestTopic(name=self.name)])
            (topic,) = client.ask(request, 12).topics
        self.topic_id = topic.topic_id

    def member(self) -> Member:
        self.members.append(Member(self.broker, self.name, self.topic_id))
        return self.members[-1]

    def act(self, action: str, **fields: object) -> int:
        return self.broker.faults.act(action, group=self.name, **fields)

    def rule(self, action: str, **fields: object) -> Any:
        return self.broker.faults.add(action, group=self.name, **fields)

    def view(self) -> dict[str, Any]:
        found: dict[str, Any] = self.broker.control.get("v1", "groups", self.name)
        return found


@pytest.fixture
def room(broker: MiniBroker) -> Iterator[Room]:
    made = Room(broker)
    yield made
    for each in made.members:
        each.close()


# Targets ------------------------------------------------------------------------------------------


def test_target_is_set_by_hand(room: Room) -> None:
    member = room.member()
    assert member.beat() == (ErrorCode.NONE, 2, {0, 1, 2, 3})
    assert room.act("assign", assignment={member.member_id: {room.name: [1, 3]}}) == 1
    assert member.beat({0, 1, 2, 3}) == (ErrorCode.NONE, 2, {1, 3})
    assert member.beat({1, 3}) == (ErrorCode.NONE, 3, None)
    assert room.broker.wait_for_group(room.name, "Stable", members=1)["assignment_epoch"] == 3
    assert room.act("assign", assignment={member.member_id: {}}) == 1
    assert member.beat() == (ErrorCode.NONE, 3, set())
    assert member.beat(set()).epoch == 4


def test_target_of_two_members_is_refused_with_the_reason(room: Room) -> None:
    members = [room.member(), room.member()]
    for each in members:
        each.beat()
    targets = {each.member_id: {room.name: [0]} for each in members}
    with pytest.raises(ControlError, match="in a consumer group a partition has one member"):
        room.act("assign", assignment=targets)
    with pytest.raises(ControlError, match=r"there is no partition .*-9") as caught:
        room.act("assign", assignment={members[0].member_id: {room.name: [9]}})
    assert caught.value.status == 404


def test_actions_from_the_command_line(room: Room) -> None:
    member = room.member()
    member.beat()

    def run(*words: str) -> str:
        control = ["--control", room.broker.control_url]
        result = CliRunner().invoke(app, [*words, *control], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    group = f"group={room.name}"
    target = json.dumps({member.member_id: {room.name: [2]}})
    run("faults", "act", "assign", group, f"assignment={target}")
    assert member.beat().partitions == {2}
    member.beat({2})
    run("faults", "act", "fence_member", group, f"member={member.member_id}")
    assert member.beat().error is ErrorCode.FENCED_MEMBER_EPOCH
    run("faults", "act", "rebalance", group)
    run("faults", "act", "expire_member", group, f"member={member.member_id}")
    assert member.beat().error is ErrorCode.UNKNOWN_MEMBER_ID


def test_rebalance_gives_a_new_epoch(room: Room) -> None:
    member = room.member()
    before = member.beat().epoch
    assert room.act("rebalance") == 1
    assert member.beat().epoch == before + 1


# Fences -------------------------------------------------------------------------------------------


def test_fenced_member_is_stale_until_it_rejoins(room: Room) -> None:
    member = room.member()
    epoch = member.beat().epoch
    assert member.commit(0, epoch=epoch) is ErrorCode.NONE
    assert room.act("fence_member", member=member.member_id) == 1
    assert member.commit(0, epoch=epoch) is ErrorCode.STALE_MEMBER_EPOCH
    assert member.fetch_offsets(epoch=epoch) is ErrorCode.STALE_MEMBER_EPOCH
    assert member.beat().error is ErrorCode.FENCED_MEMBER_EPOCH
    member.epoch = 0
    assert member.beat() == (ErrorCode.NONE, epoch + 1, {0, 1, 2, 3})
    assert member.commit(0, epoch=epoch + 1) is ErrorCode.NONE
    assert member.fetch_offsets(epoch=epoch + 1) is ErrorCode.NONE


def test_place_of_a_static_member_is_taken(room: Room) -> None:
    member = room.member()
    member.beat(instance_id="i")
    assert room.act("fence_member", member=member.member_id) == 1
    assert member.beat(instance_id="i").error is ErrorCode.FENCED_INSTANCE_ID
    other = room.member()
    assert other.beat(instance_id="i").error is ErrorCode.UNRELEASED_INSTANCE_ID
    (taker,) = room.view()["members"]
    assert room.act("expire_member", member=taker["member_id"]) == 1
    assert other.beat(instance_id="i").error is ErrorCode.NONE


@pytest.mark.parametrize(
    "error",
    [
        "FENCED_MEMBER_EPOCH",
        "UNKNOWN_MEMBER_ID",
        "UNRELEASED_INSTANCE_ID",
        "FENCED_INSTANCE_ID",
        "COORDINATOR_LOAD_IN_PROGRESS",
    ],
)
def test_rule_answers_heartbeats_with_any_error(room: Room, error: str) -> None:
    member = room.member()
    member.beat()
    rule = room.rule("error", api=HEARTBEAT, member=member.member_id, error=error, first=1)
    assert room.member().beat().error is ErrorCode.NONE
    assert member.beat().error is ErrorCode[error]
    rule.wait(hits=1)
    assert member.beat().error is ErrorCode.NONE


def test_rule_answers_commits_and_fetches_of_offsets_with_a_stale_epoch(room: Room) -> None:
    member = room.member()
    epoch = member.beat().epoch
    rules = [room.rule("error", api=api, error="STALE_MEMBER_EPOCH", first=1) for api in OFFSETS]
    assert member.commit(0, epoch=epoch) is ErrorCode.STALE_MEMBER_EPOCH
    assert member.fetch_offsets(epoch=epoch) is ErrorCode.STALE_MEMBER_EPOCH
    for rule in rules:
        rule.wait(hits=1)
    assert member.commit(0, epoch=epoch) is ErrorCode.NONE
    assert member.fetch_offsets(epoch=epoch) is ErrorCode.NONE


# Lost and repeated answers ------------------------------------------------------------------------


def test_lost_answer_is_repeated_in_the_same_epoch(room: Room) -> None:
    member = room.member()
    room.rule("disconnect", api=HEARTBEAT, at="after", first=1)
    member.client.send(member.request(), 1)
    assert member.client.receive_frame() == b""
    (known,) = room.view()["members"]
    assert known["consumer"]["member_epoch"] == 2
    member.connect_again()
    first = member.beat()
    member.epoch = 0
    assert member.beat() == first == (ErrorCode.NONE, 2, {0, 1, 2, 3})


def test_heartbeat_that_is_repeated_gets_the_same_answer(room: Room) -> None:
    member = room.member()
    member.beat()
    room.act("rebalance")
    subscription = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": [room.name]}
    full = member.request({0, 1, 2, 3}, **subscription)
    answers = [member.client.ask(full, 1) for _ in range(3)]
    assert [each.member_epoch for each in answers] == [3, 3, 3]
    assert answers[0] == answers[1] == answers[2]


def test_unanswered_heartbeat_keeps_the_member(room: Room) -> None:
    member = room.member()
    member.beat()
    rule = room.rule("never_answer", api=HEARTBEAT, member=member.member_id, at="after", first=1)
    member.client.send(member.request(), 1)
    rule.wait(hits=1)
    member.connect_again()
    assert member.beat().error is ErrorCode.NONE


# Revocations that are held ------------------------------------------------------------------------


def test_revocation_is_held_and_the_view_says_so(room: Room) -> None:
    first, second = room.member(), room.member()
    first.beat()
    hold = room.rule("hold", point="group.revoked")
    second.beat()
    kept = first.beat().partitions
    assert kept is not None
    assert len(kept) == 2
    revoked = ", ".join(f"{room.name}-{at}" for at in sorted({0, 1, 2, 3} - kept))
    assert f"{first.member_id} has yet to revoke {revoked}" in room.view()["waits_for"]
    assert first.beat(kept).epoch == 2
    hold.wait(hits=1)
    assert (first.beat().epoch, second.beat().partitions) == (2, None)
    held = f"{first.member_id} has revoked {revoked}, which a fault rule holds"
    assert held in room.view()["waits_for"]
    hold.release()
    while first.beat().epoch == 2:
        pass
    assert second.beat().partitions == {0, 1, 2, 3} - kept
    assert room.broker.wait_for_group(room.name, "Stable", members=2)["waits_for"] == []
    hold.remove()


# Times and states ---------------------------------------------------------------------------------


def test_short_session_of_one_group_ends(room: Room) -> None:
    member = room.member()
    member.beat()
    config = AlterableConfig(name="consumer.session.timeout.ms", value="100")
    resource = AlterConfigsResource(
        resource_type=GROUP_CONFIG, resource_name=room.name, configs=[config]
    )
    altered = member.client.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1)
    assert altered.responses[0].error_code == ErrorCode.NONE, altered
    member.beat()
    empty = room.broker.wait_for_group(room.name, "Empty", members=0)
    assert (empty["type"], empty["members"]) == ("consumer", [])
    assert member.beat().error is ErrorCode.UNKNOWN_MEMBER_ID


def test_group_is_awaited_in_its_own_states(room: Room) -> None:
    members = [room.member(), room.member()]
    for each in members:
        each.beat()
    found = room.broker.wait_for_group(room.name, "Reconciling", members=2)
    assert found["waits_for"]
    with pytest.raises(WaitTimedOut, match="Reconciling"):
        room.broker.wait_for_group(room.name, "Stable", timeout_s=0.01)


# Metrics and journal ------------------------------------------------------------------------------


def metric(broker: MiniBroker, name: str, **labels: str) -> float:
    """The sum of a metric over all processes."""
    text = broker.control.request("GET", "/metrics").decode()
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def test_metrics_have_groups_members_and_rebalances(room: Room) -> None:
    of_type = {"type": "consumer"}
    before = metric(room.broker, "minibroker_group_rebalances", **of_type)
    members = metric(room.broker, "minibroker_group_members", **of_type)
    stable = metric(room.broker, "minibroker_groups", state="Stable", **of_type)
    room.member().beat()
    assert metric(room.broker, "minibroker_groups", state="Stable", **of_type) == stable + 1
    assert metric(room.broker, "minibroker_group_members", **of_type) == members + 1
    room.act("rebalance")
    assert metric(room.broker, "minibroker_group_rebalances", **of_type) == before + 2


def test_journal_has_the_states_of_a_group(room: Room) -> None:
    with room.broker.journal as journal:
        members = [room.member(), room.member()]
        for each in members:
            each.beat()
        states = [
            entry["details"]["to"]
            for entry in journal.entries(kind="state")
            if entry["details"]["name"] == room.name and entry["details"]["what"] == "group"
        ]
    assert states[-2:] == ["Stable", "Reconciling"]
