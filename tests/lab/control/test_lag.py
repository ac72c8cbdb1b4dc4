"""Committed offsets are reset as Kafka's tool resets them, and lag is that of all partitions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from minibroker.testing import ControlError, MiniBroker

RECORDS = 10
FIRST_MS = 1_700_000_000_000
"""Timestamp of the first record; each one is a second later."""


@pytest.fixture(scope="module")
def broker() -> Iterator[MiniBroker]:
    """A broker with one topic of two partitions, whose second one is empty."""
    with MiniBroker(settings={"process.mode": "separate", "num.io.threads": 2}) as started:
        started.create_topic("t", partitions=2)
        producer = Producer({"bootstrap.servers": started.bootstrap_servers})
        for number in range(RECORDS):
            time_ms = FIRST_MS + 1000 * number
            producer.produce("t", b"x", partition=0, timestamp=time_ms)
        assert producer.flush(30) == 0
        yield started


def consumer(broker: MiniBroker, group: str) -> Consumer:
    servers = broker.bootstrap_servers
    return Consumer({"bootstrap.servers": servers, "group.id": group, "enable.auto.commit": False})


def commit(broker: MiniBroker, group: str, offset: int) -> None:
    """Commit an offset of the first partition without a member."""
    client = consumer(broker, group)
    client.commit(offsets=[TopicPartition("t", 0, offset)], asynchronous=False)
    client.close()


def reset(broker: MiniBroker, group: str, to: str, **fields: Any) -> list[tuple[int | None, int]]:
    """The committed offset of each partition before and after a reset."""
    body = {"topic": "t", "to": to, **fields}
    changes = broker.control.post("v1", "offsets", group, **body)["changes"]
    return [(each["before"], each["after"]) for each in changes]


def committed(broker: MiniBroker, group: str) -> dict[int, int]:
    offsets = broker.control.get("v1", "groups", group)["offsets"]
    return {each["partition"]: each["offset"] for each in offsets}


@pytest.mark.parametrize(
    ("to", "value", "expected"),
    [
        ("earliest", None, 0),
        ("latest", None, 10),
        ("offset", 7, 7),
        ("offset", 99, 10),
        ("offset", -1, 0),
        ("shift", -2, 2),
        ("shift", -9, 0),
        ("timestamp", FIRST_MS + 2500, 3),
        ("timestamp", FIRST_MS + 60_000, 10),
        ("timestamp", -1, 0),
    ],
)
def test_reset_commits_an_offset_within_the_log(
    broker: MiniBroker, to: str, value: int | None, expected: int
) -> None:
    group = f"g/{to}/{value}"
    commit(broker, group, 4)
    given = {} if value is None else {"value": value}
    changes = [(4, expected), (None, 0)]
    assert reset(broker, group, to, **given, dry_run=True) == changes
    assert committed(broker, group) == {0: 4}
    assert reset(broker, group, to, **given) == changes
    assert committed(broker, group) == {0: expected, 1: 0}


def test_reset_of_chosen_partitions_leaves_the_others(broker: MiniBroker) -> None:
    commit(broker, "chosen", 4)
    assert reset(broker, "chosen", "latest", partitions=[1]) == [(None, 0)]
    assert committed(broker, "chosen") == {0: 4, 1: 0}


@pytest.mark.parametrize("group", ["..", ".", "a/b"])
def test_group_may_be_named_in_the_body(broker: MiniBroker, group: str) -> None:
    """Browsers and others remove `..` from paths."""
    commit(broker, group, 4)
    assert reset(broker, "", "offset", value=2, group_id=group) == [(4, 2), (None, 0)]
    assert committed(broker, group)[0] == 2


def test_reset_creates_a_group(broker: MiniBroker) -> None:
    assert reset(broker, "new", "offset", value=3, partitions=[0, 0]) == [(None, 3)]
    groups = {each["group_id"]: each for each in broker.control.get("v1", "lag")["groups"]}
    assert (groups["new"]["state"], groups["new"]["lag"]) == ("Empty", 7)


def test_group_with_members_is_not_reset(broker: MiniBroker) -> None:
    member = consumer(broker, "busy")
    member.subscribe(["t"])
    while not member.assignment():
        member.poll(0.05)
    with pytest.raises(ControlError, match="has 1 members") as caught:
        reset(broker, "busy", "earliest")
    assert caught.value.code == "NON_EMPTY_GROUP"
    member.close()


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"to": "offset"}, "required with offset"),
        ({"to": "latest", "value": 1}, "must be omitted with latest"),
        ({"to": "middle"}, "earliest"),
        ({"to": "latest", "topic": "none"}, "there is no topic 'none'"),
        ({"to": "latest", "partitions": [0, 2]}, "partitions 0 to 1"),
        ({"to": "latest", "partitions": []}, "partitions"),
    ],
)
def test_reset_that_is_not_possible_is_rejected_with_the_reason(
    broker: MiniBroker, fields: dict[str, Any], why: str
) -> None:
    with pytest.raises(ControlError, match=why):
        broker.control.post("v1", "offsets", "g", **{"topic": "t", **fields})


def test_sizes_are_sums_of_the_partitions(broker: MiniBroker) -> None:
    topics = broker.control.get("v1", "sizes")["topics"]
    sizes = {each["name"]: each for each in topics}
    logs = broker.control.get("v1", "topics", "t")["partitions"]
    assert sizes["t"] == {
        "name": "t",
        "internal": False,
        "partitions": 2,
        "records": RECORDS,
        "size_bytes": sum(log["size_bytes"] for log in logs),
    }
    assert sizes["__consumer_offsets"]["internal"]
    assert topics[0]["name"] == "t", "internal topics come last"
