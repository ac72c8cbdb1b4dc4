"""Kafka and minibroker give the same responses, errors included, except for those listed here.

Each conversation runs against both brokers. ``INTENDED`` gives the reason of each intended
difference; a difference that no longer exists fails too, so the list stays accurate.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from system_tests.harness.brokers import RunningBroker, start_kafka, start_minibroker
from system_tests.peers import (
    acls_and_users,
    configs,
    fetch_sessions,
    groups,
    operations,
    quotas,
    records,
    resources,
    topics,
    transactions,
)
from system_tests.peers.conversation import Conversation, differences, prepare, run_conversation

pytestmark = [pytest.mark.minibroker, pytest.mark.java]

SETTINGS: Final = {
    "super.users": "User:ANONYMOUS",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "group.initial.rebalance.delay.ms": "0",
}

INTENDED: Final = {
    ("creation", "colliding with made_7"): "Kafka creates two topics of one request whose"
    " metric names collide, because it checks existing topics only",
    (
        "configured",
        "retention.bytes=-2",
    ): "values below -1 (no limit) have no meaning and are rejected",
    ("metadata", "neither"): "Kafka fails on a topic without name and id; here it is ignored",
    (
        "produced",
        "times of the log",
    ): "Kafka is meant to reject batches that"
    " claim LogAppendTime, but does so only in topics with LogAppendTime",
    ("bad_records", "ones, NONE"): "Kafka fails with an internal error on a varint of more than"
    " ten bytes; here the record is invalid",
    ("fetched", "a partition's limit of -1"): "Kafka fails on a limit below 0; here it means 0",
    ("fetched", "a limit of -1"): "the same",
    ("fetched", "isolated somehow"): "Kafka fails on an unknown isolation level; here it reads all",
    ("described_partitions", "without a name"): "Kafka fails with an internal error at an empty"
    " name; here the name is invalid",
    ("of_topics", "described"): "compression levels of topics have no broker-wide default",
}

CONVERSATIONS: Final = [
    conversation
    for each in (
        topics,
        records,
        fetch_sessions,
        groups,
        configs,
        quotas,
        acls_and_users,
        operations,
        resources,
        transactions,
    )
    for conversation in each.CONVERSATIONS
]


@pytest.fixture(scope="module")
def brokers(
    kafka_libs: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[RunningBroker, ...]]:
    """Yield Kafka and minibroker, with the same settings."""
    started = []
    try:
        folder = tmp_path_factory.mktemp("kafka")
        started = [start_kafka(folder, settings=SETTINGS), start_minibroker(settings=SETTINGS)]
        for broker in started:
            prepare(broker)
        yield tuple(started)
        assert "Traceback" not in started[1].printed()
    finally:
        for broker in started:
            broker.stop()
            broker.forget()


@pytest.mark.parametrize("conversation", CONVERSATIONS, ids=lambda each: each.__name__)
def test_both_answer_the_same(
    brokers: tuple[RunningBroker, ...], conversation: Conversation
) -> None:
    kafka, own = (run_conversation(broker, conversation) for broker in brokers)
    differ = {name: differences(kafka[name], own[name]) for name in kafka}
    about = conversation.__name__
    unlike = {name: lines for name, lines in differ.items() if lines}
    expected = {name for which, name in INTENDED if which == about}
    unknown = {name: lines for name, lines in unlike.items() if name not in expected}
    assert not unknown, f"Kafka's answer / ours: {unknown}"
    assert set(unlike) == expected, "these are alike by now: take them off the list"
