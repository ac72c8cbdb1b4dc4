"""Actions are checked, and change groups, transactions, logs and processes of a broker."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from hypothesis import given
from hypothesis import strategies as st

from minibroker.lab.control.actions import (
    BROKER_ACTIONS,
    BrokerAction,
    check_action,
)
from minibroker.lab.schema import InvalidJson, component, parse, record_fields
from minibroker.testing import ControlError, MiniBroker
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.heartbeat import HeartbeatRequest
from minibroker_protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from minibroker_protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.broker.network.raw_client import RawClient

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "group": st.text(min_size=1, max_size=5),
    "member": st.text(min_size=1, max_size=5),
    "assignment": st.dictionaries(
        st.text(max_size=3),
        st.dictionaries(st.text(max_size=3), st.lists(st.integers(0, 9), max_size=2), max_size=2),
        min_size=1,
        max_size=2,
    ),
    "transactional_id": st.text(min_size=1, max_size=5),
    "topic": st.text(min_size=1, max_size=5),
    "partition": st.integers(0, 9),
    "process": st.just("worker-0"),
    "pause_ms": st.integers(0, 60_000),
    "epochs": st.integers(1, 1000),
    "delivery_count": st.integers(1, 9),
    "first_offset": st.integers(0, 9),
    "last_offset": st.integers(0, 9),
}


@st.composite
def actions(draw: st.DrawFn) -> dict[str, Any]:
    """A valid action as JSON."""
    name = draw(st.sampled_from(list(BROKER_ACTIONS)))
    known = record_fields(BROKER_ACTIONS[name]).items()
    given = [each for each, is_needed in known if is_needed or draw(st.booleans())]
    return {"action": name, **{each: draw(VALUES[each]) for each in given}}


def rejected(action: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(InvalidJson) as caught:
        check_action(parse(BrokerAction, action))
    return {fault.path: fault.message for fault in caught.value.faults}


def test_every_action_and_field_is_described() -> None:
    properties = component(BrokerAction)["properties"]
    assert list(BROKER_ACTIONS) == properties["action"]["enum"]
    assert all(kind.__doc__ for kind in BROKER_ACTIONS.values())
    assert properties.keys() - {"action"} == set(VALUES)
    assert all(field["description"] for field in properties.values())


@given(actions())
def test_any_valid_action_is_accepted(action: dict[str, Any]) -> None:
    check_action(parse(BrokerAction, action))


@given(actions(), st.data())
def test_missing_and_surplus_fields_are_rejected_by_their_names(
    action: dict[str, Any], data: st.DataObject
) -> None:
    known = record_fields(BROKER_ACTIONS[action["action"]])
    missing = data.draw(st.sampled_from([each for each, is_needed in known.items() if is_needed]))
    others = sorted(VALUES.keys() - known)
    surplus = data.draw(st.sampled_from(others))
    wrong = {**action, surplus: data.draw(VALUES[surplus])}
    del wrong[missing]
    found = rejected(wrong)
    assert found[missing] == f"is missing: the action {action['action']} needs it"
    assert found[surplus] == f"does not belong to the action {action['action']}"


@pytest.mark.parametrize(
    ("assignment", "path"),
    [
        ({"m": 5}, "assignment.m"),
        ({"m": {"t": 0}}, "assignment.m.t"),
        ({"m": {"t": [-1]}}, "assignment.m.t"),
        ({"m": {"t": [True]}}, "assignment.m.t"),
        ({"m": {"t": ["0"]}}, "assignment.m.t"),
    ],
)
def test_assignment_that_is_none_is_rejected_by_its_path(
    assignment: dict[str, Any], path: str
) -> None:
    assert path in rejected({"action": "assign", "group": "g", "assignment": assignment})


RETENTION = {"retention.ms": 1, "segment.bytes": 1_000_000}


@pytest.fixture(scope="module")
def broker() -> Iterator[MiniBroker]:
    settings = {
        "process.mode": "separate",
        "num.io.threads": 2,
        "group.initial.rebalance.delay.ms": 0,
    }
    with MiniBroker(settings=settings) as started:
        yield started


@pytest.fixture
def name() -> str:
    return f"n{uuid.uuid4().hex}"


def produce(broker: MiniBroker, topic: str, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce(topic, b"one", partition=partition)
    assert producer.flush(30) == 0


def consumer(broker: MiniBroker, name: str, **config: object) -> Consumer:
    """A consumer that has partitions."""
    made = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": name,
            "heartbeat.interval.ms": 50,
            **config,
        }
    )
    made.subscribe([name])
    while not made.assignment():
        made.poll(0.05)
    return made


def members(broker: MiniBroker, group: str) -> dict[str, list[int]]:
    """Assigned partitions by member id."""
    found = broker.control.get("v1", "groups", group)["members"]
    return {
        each["member_id"]: [at for topic in each["assignment"] for at in topic["partitions"]]
        for each in found
    }


def test_group_rebalances(broker: MiniBroker, name: str) -> None:
    broker.create_topic(name, partitions=2)
    reader = consumer(broker, name)
    before = broker.control.get("v1", "groups", name)["generation"]
    assert broker.faults.act("rebalance", group=name) == 1
    while broker.control.get("v1", "groups", name)["generation"] == before:
        reader.poll(0.05)
    reader.close()


def test_assignment_is_set_by_hand(broker: MiniBroker, name: str) -> None:
    broker.create_topic(name, partitions=2)
    reader = consumer(broker, name)
    (member,) = members(broker, name)
    assert broker.faults.act("assign", group=name, assignment={member: {name: [1]}}) == 1
    while [each.partition for each in reader.assignment()] != [1]:
        reader.poll(0.05)
    assert members(broker, name) == {member: [1]}
    reader.close()


def test_member_expires(broker: MiniBroker, name: str) -> None:
    broker.create_topic(name)
    reader = consumer(broker, name)
    (member,) = members(broker, name)
    assert broker.faults.act("expire_member", group=name, member=member) == 1
    with RawClient(broker.bootstrap_servers) as client:
        beat = HeartbeatRequest(group_id=name, member_id=member, generation_id=1)
        assert client.ask(beat, 3).error_code == 25
    while member in members(broker, name) or not reader.assignment():
        reader.poll(0.05)
    reader.close()


def test_static_member_is_fenced(broker: MiniBroker, name: str) -> None:
    broker.create_topic(name)
    reader = consumer(broker, name, **{"group.instance.id": "i"})
    (member,) = members(broker, name)
    assert broker.faults.act("fence_member", group=name, member=member) == 1
    errors: list[str] = []
    while not errors:
        message = reader.poll(0.05)
        if message is not None and message.error():
            errors.append(message.error().name())
    assert errors == ["_FATAL"]
    with pytest.raises(ControlError, match="there is no member"):
        broker.faults.act("fence_member", group=name, member=member)


def test_transaction_is_aborted_and_its_producer_fenced(broker: MiniBroker, name: str) -> None:
    broker.create_topic(name)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": name})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(name, b"one", partition=0)
    assert producer.flush(30) == 0
    assert broker.faults.act("expire_transaction", transactional_id=name) == 1
    with pytest.raises(KafkaException):
        producer.commit_transaction(30)
    with pytest.raises(ControlError) as caught:
        broker.faults.act("expire_transaction", transactional_id=name)
    assert caught.value.code in {"INVALID_TXN_STATE", "CONCURRENT_TRANSACTIONS"}


def test_segments_are_rolled_and_dropped(broker: MiniBroker, name: str) -> None:
    broker.freeze()
    broker.create_topic(name, partitions=3, configs=RETENTION)
    for partition in (0, 2):
        produce(broker, name, partition)
    assert broker.faults.act("roll", topic=name, partition=1) == 0
    assert broker.faults.act("roll", topic=name) == 2
    assert broker.faults.act("roll", topic=name) == 0
    broker.advance(60_000)
    broker.freeze(False)
    assert broker.faults.act("retain", topic=name, partition=2) == 1
    assert broker.faults.act("retain", topic=name) == 1
    partitions = broker.control.get("v1", "topics", name)["partitions"]
    assert [each["log_start_offset"] for each in partitions] == [1, 0, 1]


def test_leader_epoch_is_raised_in_metadata_logs_and_fences(broker: MiniBroker, name: str) -> None:
    broker.create_topic(name, partitions=2)
    produce(broker, name, 0)
    assert broker.faults.act("bump_leader_epoch", topic=name, partition=0) == 1
    assert broker.faults.act("bump_leader_epoch", topic=name, epochs=3) == 2
    produce(broker, name, 0)
    with RawClient(broker.bootstrap_servers) as client:
        metadata = client.ask(MetadataRequest(topics=[MetadataRequestTopic(name=name)]), 12)
        (topic,) = metadata.topics
        epochs = {each.partition_index: each.leader_epoch for each in topic.partitions}
        assert epochs == {0: 4, 1: 3}
        asked = [(3, 0), (5, 0), (4, 0), (4, 3), (4, 4)]
        assert [end_of_epoch(client, name, *each) for each in asked] == [
            ("FENCED_LEADER_EPOCH", -1, -1),
            ("UNKNOWN_LEADER_EPOCH", -1, -1),
            ("NONE", 0, 1),
            ("NONE", 0, 1),
            ("NONE", 4, 2),
        ]


def end_of_epoch(client: RawClient, topic: str, known: int, asked: int) -> tuple[str, int, int]:
    """The error, epoch and end offset that OffsetForLeaderEpoch answers."""
    partition = OffsetForLeaderPartition(
        partition=0, current_leader_epoch=known, leader_epoch=asked
    )
    request = OffsetForLeaderEpochRequest(
        topics=[OffsetForLeaderTopic(topic=topic, partitions=[partition])]
    )
    found = client.ask(request, 4).topics[0].partitions[0]
    return ErrorCode(found.error_code).name, found.leader_epoch, found.end_offset


def test_process_is_paused_and_killed(broker: MiniBroker) -> None:
    assert broker.faults.act("pause", process="worker-1", pause_ms=1) == 1
    assert broker.faults.act("kill", process="worker-1") == 1
    while not restarts(broker, "worker-1"):
        pass


def restarts(broker: MiniBroker, name: str) -> int:
    with suppress(ControlError):  # Until the broker is ready again.
        found = broker.control.get("v1", "health")["processes"]
        return sum(each["restarts"] for each in found if each["name"] == name)
    return 0


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"action": "rebalance", "group": "none"}, "GROUP_ID_NOT_FOUND"),
        ({"action": "roll", "topic": "none"}, "UNKNOWN_TOPIC_OR_PARTITION"),
        ({"action": "bump_leader_epoch", "topic": "none"}, "UNKNOWN_TOPIC_OR_PARTITION"),
        ({"action": "bump_leader_epoch", "topic": "__consumer_offsets"}, "INVALID_REQUEST"),
        (
            {"action": "expire_transaction", "transactional_id": "none"},
            "TRANSACTIONAL_ID_NOT_FOUND",
        ),
        ({"action": "kill", "process": "worker-9"}, "INVALID_REQUEST"),
        ({"action": "roll"}, "INVALID_REQUEST"),
    ],
)
def test_impossible_action_is_rejected(
    broker: MiniBroker, fields: dict[str, str], code: str
) -> None:
    action, *_ = fields.values()
    with pytest.raises(ControlError) as caught:
        broker.faults.act(action, **{key: fields[key] for key in fields if key != "action"})
    assert caught.value.code == code
