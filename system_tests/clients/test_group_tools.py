"""Kafka's own programs for groups: they list, describe, reset and delete groups of each type."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from confluent_kafka import Consumer, Producer

from system_tests.harness.brokers import RunningBroker
from system_tests.harness.kafka_tools import KafkaTools
from system_tests.harness.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.java

RECORDS = 10
Tool = Callable[..., list[str]]


@pytest.fixture
def tool(broker: RunningBroker, kafka_tools: KafkaTools) -> Tool:
    """Run one of Kafka's programs; gives the lines that it printed."""

    def run(program: str, *words: str) -> list[str]:
        server = ("--bootstrap-server", broker.bootstrap_servers)
        done = kafka_tools.run(f"org.apache.kafka.tools.{program}", *server, *words)
        assert done.code == 0, done.printed
        return done.lines

    return run


@pytest.fixture
def topic(broker: RunningBroker, fresh: Callable[[str], str]) -> str:
    """A topic with ten records in one partition."""
    name = fresh("t")
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in range(RECORDS):
        producer.produce(name, str(number), partition=0)
    assert producer.flush(PATIENCE_S) == 0
    return name


@pytest.fixture
def member(
    broker: RunningBroker, topic: str, fresh: Callable[[str], str]
) -> Iterator[tuple[str, Consumer]]:
    """The member of a consumer group that has read and committed everything, and its group."""
    group = fresh("g")
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": group,
            "group.protocol": "consumer",
            "client.id": "app",
            "auto.offset.reset": "earliest",
        }
    )
    with closing(consumer):
        consumer.subscribe([topic])
        read: list[object] = []

        def has_read_all() -> bool:
            message = consumer.poll(0.05)
            if message is not None:
                read.append(message)
            return len(read) == RECORDS

        wait_until(has_read_all, "the records")
        consumer.commit(asynchronous=False)
        yield group, consumer


def table(lines: list[str]) -> list[list[str]]:
    """The rows below the heading, without the member's id."""
    return [line.split() for line in lines[1:]]


def test_consumer_group_is_shown(tool: Tool, topic: str, member: tuple[str, Consumer]) -> None:
    group, _ = member
    commands = "consumer.group.ConsumerGroupCommand"
    assert [group, "Consumer", "consumer"] in table(tool("GroupsCommand", "--list", "--consumer"))
    assert [group, "Stable"] in table(tool(commands, "--list", "--state"))
    [row] = table(tool(commands, "--describe", "--group", group))
    assert [*row[:6], *row[7:]] == [group, topic, "0", "10", "10", "0", "/127.0.0.1", "app"]
    [row] = table(tool(commands, "--describe", "--group", group, "--members", "--verbose"))
    epoch, partition = row[5], f"{topic}:0"
    assert row[2:] == ["/127.0.0.1", "app", "1", epoch, partition, epoch, partition]
    [row] = table(tool(commands, "--describe", "--group", group, "--state"))
    assert row[-3:] == ["uniform", "Stable", "1"]


def test_share_group_is_read_shown_reset_and_deleted(
    tool: Tool, topic: str, fresh: Callable[[str], str]
) -> None:
    group = fresh("s")
    commands = "consumer.group.ShareGroupCommand"
    words = ("--topic", topic, "--group", group, "--timeout-ms", str(1000 * int(PATIENCE_S)))

    def consume(*more: str) -> list[str]:
        return tool("consumer.ConsoleShareConsumer", *words, *more, "--max-messages", "10")

    # A new group starts at the latest offset.
    reset = ("--reset-offsets", "--group", group, "--topic", topic, "--to-earliest", "--execute")
    assert table(tool(commands, *reset)) == [[group, topic, "0", "0"]]
    expected = [str(number) for number in range(RECORDS)]
    assert consume("--reject")[:RECORDS] == expected
    assert [group, "Share", "share"] in table(tool("GroupsCommand", "--list", "--share"))
    [row] = table(tool(commands, "--describe", "--group", group))
    assert (row[:3], row[-1]) == ([group, topic, "0"], "0")
    assert [group, "Empty"] in table(tool(commands, "--list", "--state"))
    assert tool(commands, "--describe", "--group", group, "--members") == [
        f"Share group '{group}' has no active members."
    ]
    assert table(tool(commands, *reset)) == [[group, topic, "0", "0"]]
    assert consume()[:RECORDS] == expected
    done = tool(commands, "--delete-offsets", "--group", group, "--topic", topic)
    assert table(done) == [[topic, "Successful"]]
    assert tool(commands, "--delete", "--group", group) == [
        f"Deletion of requested share groups ('{group}') was successful."
    ]
    assert group not in tool(commands, "--list")


@pytest.mark.parametrize(
    ("internal", "formatter"),
    [
        ("__consumer_offsets", "consumer.ShareGroupMessageFormatter"),
        ("__share_group_state", "consumer.group.share.ShareGroupStateMessageFormatter"),
    ],
)
def test_records_of_share_group_are_decoded(
    tool: Tool, topic: str, fresh: Callable[[str], str], internal: str, formatter: str
) -> None:
    group = fresh("s")
    reset = ("--reset-offsets", "--group", group, "--topic", topic, "--to-earliest", "--execute")
    tool("consumer.group.ShareGroupCommand", *reset)

    def groups() -> set[str]:
        printed = tool(
            "consumer.ConsoleConsumer",
            *("--topic", internal, "--from-beginning", "--timeout-ms", "2000"),
            *("--formatter", f"org.apache.kafka.tools.{formatter}"),
        )
        text, found = "".join(line for line in printed if line.startswith("{")), set()
        while text.startswith("{"):
            record, end = json.JSONDecoder().raw_decode(text)
            found.add(record["key"]["data"]["groupId"])
            text = text[end:]
        return found

    # On a busy machine the program may give up before it has read anything.
    wait_until(lambda: group in groups(), f"the records of {group}")
