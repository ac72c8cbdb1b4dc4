"""Share groups are steered over HTTP and from the command line: targets, fences, locks, counts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from minibroker.cli.app import app
from minibroker.testing import ControlError, MiniBroker
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from minibroker_protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from minibroker_protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.broker.apis.share_client import GROUP_CONFIG, ShareMember, acquired, errors
from tests.broker.network.raw_client import RawClient
from tests.lab.control.test_consumer_group_actions import metric

ACCEPT, RELEASE, REJECT = 1, 2, 3
SETTINGS = {"num.io.threads": 2, "group.share.assignment.interval.ms": 0}


class Client:
    """A connection of a member."""

    def __init__(self, servers: str) -> None:
        self.raw = RawClient(servers)

    async def ask(self, request: Any, version: int) -> Any:
        return self.raw.ask(request, version)


class Room:
    """A share group whose name is also that of its topic, of two partitions."""

    def __init__(self, broker: MiniBroker, name: str) -> None:
        self.broker, self.name = broker, name
        broker.create_topic(name, partitions=2)
        self.clients = [Client(broker.bootstrap_servers)]
        topics = [MetadataRequestTopic(name=name)]
        (found,) = self.clients[0].raw.ask(MetadataRequest(topics=topics), 12).topics
        self.topic_id = found.topic_id
        self.configure("share.auto.offset.reset", "earliest")

    def configure(self, name: str, value: str) -> None:
        """Set a config of the group."""
        config = AlterableConfig(name=name, value=value)
        resource = AlterConfigsResource(
            resource_type=GROUP_CONFIG, resource_name=self.name, configs=[config]
        )
        self.clients[0].raw.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1)

    async def join(self, member_id: str) -> ShareMember:
        client: Any = Client(self.broker.bootstrap_servers)
        self.clients.append(client)
        member = ShareMember(client, self.topic_id, member_id, self.name)
        await member.heartbeat(0, [self.name])
        return member

    def close(self) -> None:
        for each in self.clients:
            each.raw.__exit__(None, None, None)

    def act(self, action: str, **fields: Any) -> int:
        return self.broker.faults.act(action, group=self.name, **fields)

    def act_on_records(self, action: str, **fields: Any) -> int:
        return self.act(action, topic=self.name, **fields)

    def run(self, *words: str) -> str:
        control = ["--control", self.broker.control_url]
        result = CliRunner().invoke(app, [*words, *control], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output


@pytest.fixture(scope="module")
def broker() -> Iterator[MiniBroker]:
    with MiniBroker(settings=SETTINGS) as broker:
        yield broker


@pytest.fixture
def room(broker: MiniBroker, request: pytest.FixtureRequest) -> Iterator[Room]:
    made = Room(broker, request.node.name.replace("[", "-").replace("]", ""))
    yield made
    made.close()


def targets(response: Any) -> set[int]:
    assert response.error_code == ErrorCode.NONE
    return {at for topic in response.assignment.topic_partitions for at in topic.partitions}


async def test_two_members_get_the_same_partition(room: Room) -> None:
    members = [await room.join("m"), await room.join("n")]
    assert room.act("assign", assignment={each: {room.name: [1]} for each in "mn"}) == 2
    assert [targets(await each.heartbeat(0, [room.name])) for each in members] == [{1}, {1}]
    assert room.act("assign", assignment={"m": {}}) == 1
    assert targets(await members[0].heartbeat()) == set()
    epoch = room.broker.wait_for_group(room.name, "Stable", members=2)["assignment_epoch"]
    assert members[0].epoch == epoch
    with pytest.raises(ControlError, match=r"there is no partition .*-9") as caught:
        room.act("assign", assignment={"m": {room.name: [9]}})
    assert caught.value.status == 404


async def test_members_are_fenced_and_expire(room: Room) -> None:
    member = await room.join("m")
    assert room.act("rebalance") == 1
    assert room.act("fence_member", member="m") == 1
    assert (await member.heartbeat()).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert targets(await member.heartbeat(0, [room.name])) == {0, 1}
    assert room.act("expire_member", member="m") == 1
    assert (await member.heartbeat()).error_code == ErrorCode.UNKNOWN_MEMBER_ID


async def test_locks_expire_and_late_acknowledgements_are_rejected(room: Room) -> None:
    room.broker.produce(room.name, [("key", value) for value in "abc"])
    first, second = await room.join("m"), await room.join("n")
    (index,) = acquired(await first.fetch(0, 1))
    assert room.act_on_records("expire_acquisition", member="n") == 0
    assert room.act_on_records("expire_acquisition", partition=1 - index) == 0
    assert room.act_on_records("expire_acquisition", member="m", first_offset=1) == 2
    late = await first.acknowledge((index, 0, 2, (ACCEPT,)))
    assert errors(late) == {index: ErrorCode.INVALID_RECORD_STATE}
    assert acquired(await second.fetch(0, 1)) == {index: [(1, 2, 2)]}
    assert room.act_on_records("expire_acquisition") == 3
    with pytest.raises(ControlError, match="there is no partition 2") as caught:
        room.act_on_records("expire_acquisition", partition=2)
    assert caught.value.status == 404


async def test_records_of_other_groups_are_refused(room: Room) -> None:
    act, topic = room.broker.faults.act, {"topic": room.name}
    with pytest.raises(ControlError, match="there is no group 'typo'") as caught:
        act("expire_acquisition", group="typo", **topic)
    assert caught.value.status == 404
    name = f"{room.name}-consumers"
    consumer = ConsumerGroupHeartbeatRequest(
        group_id=name,
        member_id="m",
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=[room.name],
        topic_partitions=[],
    )
    assert room.clients[0].raw.ask(consumer, 1).error_code == ErrorCode.NONE
    with pytest.raises(ControlError, match="is a consumer group, not a share group") as caught:
        act("set_delivery_count", group=name, delivery_count=1, **topic)
    assert caught.value.status == 409


async def test_delivery_count_is_set(room: Room) -> None:
    room.broker.produce(room.name, [("key", value) for value in "abc"])
    member = await room.join("m")
    (index,) = acquired(await member.fetch(0, 1))
    assert room.act_on_records("set_delivery_count", delivery_count=5, last_offset=0) == 1
    assert errors(await member.acknowledge((index, 0, 2, (RELEASE,)))) == {index: 0}
    count = {"delivery_count": 4, "first_offset": 1, "last_offset": 1}
    assert room.act_on_records("set_delivery_count", **count) == 1
    assert acquired(await member.fetch()) == {index: [(1, 1, 5)]}
    with pytest.raises(ControlError, match="delivery_count"):
        room.act_on_records("set_delivery_count", delivery_count=0)


async def test_actions_from_the_command_line(room: Room) -> None:
    room.broker.produce(room.name, [("key", "a")])
    member = await room.join("m")
    (index,) = acquired(await member.fetch(0, 1))
    group, topic = f"group={room.name}", f"topic={room.name}"
    room.run("faults", "act", "set_delivery_count", group, topic, "delivery_count=3", "member=m")
    room.run("faults", "act", "expire_acquisition", group, topic, f"partition={index}")
    assert acquired(await member.fetch()) == {index: [(0, 0, 4)]}
    target = json.dumps({"m": {room.name: [1 - index]}})
    room.run("faults", "act", "assign", group, f"assignment={target}")
    assert targets(await member.heartbeat()) == {1 - index}


async def test_view_has_the_records_in_flight(room: Room) -> None:
    room.broker.produce(room.name, [("key", value) for value in "abc"])
    member = await room.join("m")
    (index,) = acquired(await member.fetch(0, 1))
    await member.acknowledge((index, 0, 1, (ACCEPT, RELEASE)))
    room.act_on_records("set_delivery_count", delivery_count=3, member="m")
    view = room.broker.control.get("v1", "groups", room.name)["share_partitions"]
    (found,) = (each for each in view if each["partition"] == index)
    assert (found["start_offset"], found["acquired"], found["available"]) == (1, 1, 1)
    names = ("first_offset", "last_offset", "state", "delivery_count", "member")
    assert [tuple(each[name] for name in names) for each in found["in_flight"]] == [
        (1, 1, "available", 1, None),
        (2, 2, "acquired", 3, "m"),
    ]


async def test_dead_letters_are_noted_and_counted(room: Room) -> None:
    queue, missing = f"dlq.{room.name}", f"dlq.{room.name}.missing"
    room.broker.create_topic(queue, configs={"errors.deadletterqueue.group.enable": True})
    room.configure("errors.deadletterqueue.topic.name", queue)
    room.broker.produce(room.name, [("key", value) for value in "ab"])
    member = await room.join("m")
    (index,) = acquired(await member.fetch(0, 1))
    about = {"what": "dead_letters", "name": f"{room.name}:{room.name}-{index}"}
    room.act_on_records("set_delivery_count", delivery_count=5, last_offset=0)
    with room.broker.journal as journal:
        room.act_on_records("expire_acquisition", last_offset=0)
        journal.wait_for(kind="state", details={**about, "from": "0-0", "to": queue})
        room.configure("errors.deadletterqueue.topic.name", missing)
        await member.acknowledge((index, 1, 1, (REJECT,)))
        journal.wait_for(kind="state", details={**about, "from": "1-1", "to": None})
    (found,) = room.broker.wait_for(queue)
    assert dict(found.headers)["__dlq.errors.delivery.count"] == b"5"
    name = "minibroker_share_dead_letters"
    for result in ("written", "failed"):
        assert metric(room.broker, name, group=room.name, result=result) == 1


async def test_rules_answer_share_requests_with_errors(room: Room) -> None:
    room.broker.produce(room.name, [("key", "a")])
    member = await room.join("m")
    (index,) = acquired(await member.fetch(0, 1))
    with room.broker.faults as faults:
        for api, error in (
            ("ShareGroupHeartbeat", "FENCED_MEMBER_EPOCH"),
            ("ShareAcknowledge", "INVALID_RECORD_STATE"),
            ("ShareFetch", "SHARE_SESSION_NOT_FOUND"),
        ):
            faults.add("error", api=api, group=room.name, error=error, first=1)
        assert (await member.heartbeat()).error_code == ErrorCode.FENCED_MEMBER_EPOCH
        rejected = await member.acknowledge((index, 0, 0, (ACCEPT,)))
        found = {rejected.error_code, *errors(rejected).values()}
        assert ErrorCode.INVALID_RECORD_STATE in found
        response = await member.fetch()
        assert response.error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    (shared,) = [
        each
        for each in room.broker.control.get("v1", "groups", room.name)["share_partitions"]
        if each["partition"] == index
    ]
    assert (shared["acquired"], shared["start_offset"]) == (1, 0)


async def test_new_leader_epoch_makes_acquired_records_available(room: Room) -> None:
    room.broker.produce(room.name, [("key", "a")])
    first, second = await room.join("m"), await room.join("n")
    (index,) = acquired(await first.fetch(0, 1))
    room.broker.faults.act("bump_leader_epoch", topic=room.name, partition=index)
    assert [each[:2] for each in acquired(await second.fetch(0, 1))[index]] == [(0, 0)]


@pytest.fixture
def new_room() -> Iterator[Room]:
    """A room at a broker of its own, whose metrics have nothing of earlier tests."""
    with MiniBroker(settings=SETTINGS) as broker:
        made = Room(broker, "t")
        yield made
        made.close()


async def test_metrics_count_acknowledged_and_expired_records(new_room: Room) -> None:
    room, prefix = new_room, "minibroker_share_"
    room.broker.produce(room.name, [("key", value) for value in "abcdef"])
    member = await room.join("m")
    assert f"\n{prefix}" not in room.broker.control.request("GET", "/metrics").decode()
    (index,) = acquired(await member.fetch(0, 1))
    assert metric(room.broker, prefix + "in_flight_records", state="acquired") == 6
    await member.acknowledge((index, 0, 3, (ACCEPT, ACCEPT, RELEASE, REJECT)))
    room.act_on_records("expire_acquisition", first_offset=5)
    for kind, count in {"accept": 2, "release": 1, "reject": 1, "renew": 0}.items():
        assert metric(room.broker, prefix + "acknowledged_records", type=kind) == count
    assert metric(room.broker, prefix + "expired_records") == 1
    assert metric(room.broker, prefix + "in_flight_records", state="acquired") == 1
    assert metric(room.broker, prefix + "in_flight_records", state="available") == 2
