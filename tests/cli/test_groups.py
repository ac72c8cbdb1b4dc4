from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from minibroker.cli.groups import assigned, awaited_steps, lag_rows
from minibroker.client.errors import BrokerError
from minibroker.client.kafka_client import KafkaClient
from minibroker.testing import MiniBroker
from minibroker_protocol.compiler import encode
from minibroker_protocol.messages.consumer_group_describe import (
    Assignment,
    DescribedGroup,
    Member,
    TopicPartitions,
)
from minibroker_protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from minibroker_protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    TopicPartition,
)


def consume(command: Any, topic: str, group: str, count: int) -> list[str]:
    options = ("--group", group, "--from-beginning", "--max-messages", str(count), "--timeout", "5")
    lines: list[str] = command("consume", topic, *options).stdout.splitlines()
    return lines


def test_group_resumes_at_committed_offset(
    command: Any, minibroker_topic: str, minibroker_group: str
) -> None:
    command("produce", minibroker_topic, "a", "b", "c")
    assert consume(command, minibroker_topic, minibroker_group, 2) == ["a", "b"]
    assert consume(command, minibroker_topic, minibroker_group, 1) == ["c"]


def test_group_is_listed_described_and_deleted(
    command: Any, minibroker_topic: str, minibroker_group: str
) -> None:
    command("produce", minibroker_topic, "a", "b", "c")
    consume(command, minibroker_topic, minibroker_group, 2)
    lines = command("groups", "list", "--json").stdout.splitlines()
    listed = {"group": minibroker_group, "state": "Empty", "type": "consumer"}
    assert listed in map(json.loads, lines)
    assert minibroker_group in command("groups", "list").stdout
    described = command("groups", "describe", minibroker_group).stdout.splitlines()
    assert described[0] == f"group {minibroker_group}: Empty, 0 members"
    assert described[2].split() == [minibroker_topic, "0", "2", "3", "1"]
    as_json = json.loads(command("groups", "describe", minibroker_group, "--json").stdout)
    offset = {"topic": minibroker_topic, "partition": 0, "committed": 2, "end": 3, "lag": 1}
    assert as_json == {
        "group": minibroker_group,
        "state": "Empty",
        "members": [],
        "offsets": [offset],
    }
    deleted = command("groups", "delete", minibroker_group)
    assert deleted.stdout == f"deleted group {minibroker_group}\n"
    with pytest.raises(BrokerError, match="GROUP_ID_NOT_FOUND"):
        command("groups", "describe", minibroker_group)


def test_lag_of_deleted_topic_is_unknown(
    minibroker: MiniBroker, minibroker_topic: str, minibroker_group: str
) -> None:
    offsets = {(minibroker_topic, 0): 0, (minibroker_group, 7): 42}
    with KafkaClient(minibroker.bootstrap_servers) as client:
        rows = lag_rows(client, offsets)
    assert sorted(rows) == sorted(
        [(minibroker_topic, 0, 0, 0, 0), (minibroker_group, 7, 42, "-", "-")]
    )


def member(minibroker: MiniBroker, topic: str, group: str) -> subprocess.Popen[str]:
    """Start a consumer process."""
    command = [sys.executable, "-m", "minibroker", "consume", topic, "--group", group]
    return subprocess.Popen(
        [*command, "-b", minibroker.bootstrap_servers],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def partitions(consumer: subprocess.Popen[str]) -> str:
    """Wait for the consumer's assignment and return it."""
    assert consumer.stderr is not None
    return consumer.stderr.readline().strip().partition(": partitions ")[2]


def test_second_member_takes_over_all_partitions(
    command: Any, minibroker: MiniBroker, minibroker_group: str
) -> None:
    topic = minibroker.create_topic(f"{minibroker_group}-topic", 2)
    first = member(minibroker, topic, minibroker_group)
    assert partitions(first) == "0, 1"
    second = member(minibroker, topic, minibroker_group)
    assert {partitions(first), partitions(second)} == {"0", "1"}
    described = command("groups", "describe", minibroker_group).stdout
    assert f"group {minibroker_group}: Stable, 2 members" in described
    assert f"{topic}-0\n" in described
    first.send_signal(2)
    assert first.wait() == 130
    assert partitions(second) == "0, 1"
    second.send_signal(2)
    assert second.wait() == 130
    for consumer in (first, second):
        consumer.communicate()


def test_assignments_are_shown_as_partitions() -> None:
    given = ConsumerProtocolAssignment(
        assigned_partitions=[TopicPartition(topic="cats", partitions=[0, 2])]
    )
    assert assigned(b"\x00\x00" + encode(given, 0)) == "cats-0,cats-2"
    assert assigned(b"") == ""
    assert assigned(b"\x00\x00\x7f") == "?"


def test_consumer_group_is_described_with_epochs_and_targets(
    minibroker: MiniBroker, command: Any, minibroker_topic: str, minibroker_group: str
) -> None:
    command("produce", minibroker_topic, "a")
    join = ConsumerGroupHeartbeatRequest(
        group_id=minibroker_group,
        member_id="m",
        rebalance_timeout_ms=30_000,
        subscribed_topic_names=[minibroker_topic],
        topic_partitions=[],
    )
    with KafkaClient(minibroker.bootstrap_servers) as client:
        coordinator = client.coordinator(minibroker_group)
        assert client.send(join, ConsumerGroupHeartbeatResponse, coordinator).error_code == 0
        first, _, row = command("groups", "describe", minibroker_group).stdout.splitlines()[:3]
        assert first == (
            f"group {minibroker_group}: Stable, 1 members, consumer group in epoch 2, target of "
            "epoch 2 by uniform"
        )
        assert row.split()[0] == "m"
        shown = json.loads(command("groups", "describe", minibroker_group, "--json").stdout)
        assert (shown["type"], shown["group_epoch"], shown["waits_for"]) == ("consumer", 2, [])
        [member] = shown["members"]
        assert member["target"] == member["partitions"] == [f"{minibroker_topic}-0"]
        leave = ConsumerGroupHeartbeatRequest(
            group_id=minibroker_group, member_id="m", member_epoch=-1
        )
        client.send(leave, ConsumerGroupHeartbeatResponse, coordinator)


def test_steps_name_the_member_that_has_yet_to_revoke() -> None:
    def assignment(*partitions: int) -> Assignment:
        topic = TopicPartitions(topic_name="t", partitions=list(partitions))
        return Assignment(topic_partitions=[topic])

    group = DescribedGroup(
        group_epoch=4,
        assignment_epoch=3,
        members=[
            Member(member_id="a", assignment=assignment(0, 1), target_assignment=assignment(0)),
            Member(member_id="b", assignment=assignment(), target_assignment=assignment(1)),
        ],
    )
    assert awaited_steps(group) == [
        "the target of epoch 4 is not computed yet",
        "a has yet to revoke t-1",
        "b waits for t-1, which a has",
    ]
