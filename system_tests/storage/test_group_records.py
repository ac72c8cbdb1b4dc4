"""Groups go on in their epochs from Kafka to minibroker and back, by their records alone.

There are a consumer group, a streams group and a share group. The logs of the topics, of
`__consumer_offsets` and of `__share_group_state` are moved from one broker's directory to the
other's. A member keeps its epoch and gets no new assignment, so the hash of the topics in the
records is the same.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from minibroker_protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from minibroker_protocol.messages.find_coordinator import FindCoordinatorRequest
from minibroker_protocol.messages.streams_group_describe import StreamsGroupDescribeRequest
from minibroker_protocol.messages.streams_group_heartbeat import Topology
from minibroker_protocol.schema import Message
from system_tests.harness.brokers import (
    RunningBroker,
    format_kafka,
    launch_kafka,
    start_minibroker,
    wait_for_port,
)
from system_tests.harness.waiting import PATIENCE_S, wait_until
from system_tests.peers.streams_groups import SETTINGS as STREAMS_SETTINGS
from system_tests.peers.streams_groups import beat, first, owned, subtopology
from system_tests.storage.shared_records import SharedRecords
from tests.broker.network.raw_client import RawClient

pytestmark = [pytest.mark.java, pytest.mark.minibroker]

TOPIC, GROUP, PARTITIONS = "orders", "readers", 6
STREAMS_GROUP = "counters"
SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    **STREAMS_SETTINGS,
}
LOGS = ("__consumer_offsets", "__share_group_state")
MEMBERS = ("a", "b")
FINE = (ErrorCode.NONE, None)


def heartbeat(broker: RunningBroker, member: str, epoch: int, **fields: Any) -> Any:
    """The answer to the heartbeat of a consumer."""
    return answer_of(
        broker,
        ConsumerGroupHeartbeatRequest(
            group_id=GROUP, member_id=member, member_epoch=epoch, **fields
        ),
    )


def answer_of(broker: RunningBroker, request: Message) -> Any:
    """The answer to a heartbeat, as soon as the groups are loaded."""
    waiting = {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
    with RawClient(broker.bootstrap_servers) as client:

        def answer() -> Any:
            client.ask(FindCoordinatorRequest(coordinator_keys=[GROUP]), 4)
            response = client.ask(request, 1)
            return None if response.error_code in waiting else response

        return wait_until(answer, "the group to be loaded")


def join(broker: RunningBroker, member: str) -> Any:
    return heartbeat(
        broker,
        member,
        0,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=[TOPIC],
        topic_partitions=[],
    )


def settle(broker: RunningBroker) -> int:
    """Let two members share the topic; return their epoch."""
    for member in MEMBERS:
        join(broker, member)
    owned: dict[str, Any] = dict.fromkeys(MEMBERS)
    epochs = dict.fromkeys(MEMBERS, 0)

    def is_shared() -> bool:
        for member in MEMBERS:
            epoch = epochs[member] or join(broker, member).member_epoch
            response = heartbeat(broker, member, epoch, topic_partitions=owned[member])
            assert response.error_code == ErrorCode.NONE, response
            epochs[member] = response.member_epoch
            if response.assignment is not None:
                owned[member] = [
                    TopicPartitions(topic_id=each.topic_id, partitions=each.partitions)
                    for each in response.assignment.topic_partitions
                ]
        view = described(broker)
        return view[0] == "Stable" and all(len(each) == PARTITIONS // 2 for each in view[3])

    wait_until(is_shared, "the members to share the topic", pause_s=0.2)
    assert epochs["a"] == epochs["b"]
    return epochs["a"]


def described(broker: RunningBroker) -> tuple[str, int, int, list[list[int]]]:
    """State, epochs, and the partitions of each member."""
    with RawClient(broker.bootstrap_servers) as client:
        (group,) = client.ask(ConsumerGroupDescribeRequest(group_ids=[GROUP]), 1).groups
    members = sorted(group.members, key=lambda each: each.member_id)
    parts = [
        [at for topic in each.assignment.topic_partitions for at in topic.partitions]
        for each in members
    ]
    return group.group_state, group.group_epoch, group.assignment_epoch, parts


class Streams:
    """A streams group whose members share the tasks of the topic."""

    def __init__(self) -> None:
        self.epoch = 0
        self.topology = Topology(epoch=0, subtopologies=[subtopology("0", TOPIC)])

    def settle(self, broker: RunningBroker) -> None:
        a, b = MEMBERS
        joined = answer_of(broker, first(STREAMS_GROUP, a, self.topology))
        answer_of(broker, first(STREAMS_GROUP, b, self.topology))
        kept = answer_of(broker, beat(STREAMS_GROUP, a, joined.member_epoch)).active_tasks
        answer_of(broker, beat(STREAMS_GROUP, a, joined.member_epoch, **owned(kept)))
        self.epoch = joined.member_epoch + 1
        assert answer_of(broker, beat(STREAMS_GROUP, b, self.epoch)).active_tasks is not None
        assert self.described(broker).group_state == "Stable"

    def described(self, broker: RunningBroker) -> Any:
        with RawClient(broker.bootstrap_servers) as client:
            request = StreamsGroupDescribeRequest(group_ids=[STREAMS_GROUP])
            (group,) = client.ask(request, 1).groups
        group.members.sort(key=lambda each: each.member_id)
        return group

    def assert_goes_on(self, broker: RunningBroker, before: Any, *members: str) -> None:
        for member in members:
            response = answer_of(broker, beat(STREAMS_GROUP, member, self.epoch))
            assert (response.error_code, response.error_message) == FINE
            assert (response.member_epoch, response.active_tasks) == (self.epoch, None)
        assert self.described(broker) == before

    def shrink(self, broker: RunningBroker) -> None:
        """Let the second member leave; the first gets its tasks."""
        a, b = MEMBERS
        answer_of(broker, beat(STREAMS_GROUP, b, -1))
        response = answer_of(broker, beat(STREAMS_GROUP, a, self.epoch))
        assert response.active_tasks[0].partitions == list(range(PARTITIONS))
        self.epoch = response.member_epoch


def assert_goes_on(broker: RunningBroker, before: Any, epoch: int) -> None:
    """Each member keeps its epoch and its partitions."""
    for member in MEMBERS:
        response = heartbeat(broker, member, epoch)
        assert (response.error_code, response.error_message) == FINE
        assert (response.member_epoch, response.assignment) == (epoch, None)
    assert described(broker) == before


def move_logs(source: Path, destination: Path, *, only: str = "") -> None:
    """Replace logs by those of another directory; ``only`` of one topic, and only its records."""
    for folder in sorted(source.glob(f"{only or '*'}-[0-9]*")):
        if only == "" and folder.name.rpartition("-")[0] not in (TOPIC, *LOGS):
            continue
        target = destination / folder.name
        if not only:
            shutil.copytree(folder, target)
            continue
        for path in [*target.glob("*.log"), *target.glob("*index"), *target.glob("*.snapshot")]:
            path.unlink()
        for path in folder.glob("*.log"):
            shutil.copy(path, target / path.name)


def test_groups_go_on_from_kafka_to_minibroker_and_back(tmp_path: Path) -> None:
    shared = SharedRecords(TOPIC)
    kafka_data, data = tmp_path / "kafka", tmp_path / "data"
    properties, port = format_kafka(kafka_data, settings=SETTINGS)
    with launch_kafka(properties, port) as kafka:
        wait_for_port(kafka)
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(PATIENCE_S)
        epoch, before = settle(kafka), described(kafka)
        streams = Streams()
        streams.settle(kafka)
        counting = streams.described(kafka)
        shared.begin(kafka)
        kafka.stop()
    with start_minibroker(data_dir=data, settings=SETTINGS) as broker:
        broker.stop()
    for path in data.glob("config.sqlite*"):
        path.unlink()
    move_logs(kafka_data, data)
    with start_minibroker("--recover-topics-from-logs", data_dir=data, settings=SETTINGS) as broker:
        assert_goes_on(broker, before, epoch)
        streams.assert_goes_on(broker, counting, *MEMBERS)
        streams.shrink(broker)
        counting = streams.described(broker)
        shared.continue_there(broker)
        heartbeat(broker, MEMBERS[1], -1)

        def reassigned() -> Any:
            found = heartbeat(broker, MEMBERS[0], epoch)
            return None if found.assignment is None else found

        response = wait_until(reassigned, "all partitions")
        assert response.error_code == ErrorCode.NONE
        epoch, before = response.member_epoch, described(broker)
        broker.stop()
    (kafka_data / ".kafka_cleanshutdown").unlink(missing_ok=True)
    for name in LOGS:
        move_logs(data, kafka_data, only=name)
    with launch_kafka(properties, port) as kafka:
        wait_for_port(kafka)
        response = heartbeat(kafka, MEMBERS[0], epoch)
        assert (response.error_code, response.error_message) == FINE
        assert (response.member_epoch, response.assignment) == (epoch, None)
        assert described(kafka) == before
        streams.assert_goes_on(kafka, counting, MEMBERS[0])
        shared.end(kafka)
