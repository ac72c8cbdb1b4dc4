"""Kafka and minibroker give the same responses, errors included, except for those listed here.

Each conversation runs against both brokers. ``INTENDED`` gives the reason of each intended
difference; a difference that no longer exists fails too, so the list stays accurate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from minibroker_protocol.messages.api_versions import ApiVersionsRequest
from minibroker_protocol.registry import ApiKey
from system_tests.clients.adapters.java import JavaClient
from system_tests.connections.dialling import Client
from system_tests.harness.brokers import RunningBroker, start_kafka, start_minibroker
from system_tests.harness.jars import java_driver
from system_tests.harness.kafka_tools import KafkaTools
from system_tests.harness.waiting import TimedOut, wait_until
from system_tests.peers import (
    acls_and_users,
    compressed_batches,
    configs,
    consumer_groups,
    dead_letters,
    fetch_sessions,
    group_versions,
    groups,
    listed_transactions,
    operations,
    quotas,
    records,
    resources,
    share_delivery,
    share_groups,
    streams_groups,
    tokens,
    topics,
    transactions,
    versions,
)
from system_tests.peers.conversation import Conversation, differences, prepare, run_conversation
from system_tests.peers.stored_streams_groups import stored_groups
from system_tests.peers.streams_tool import GROUP as TOOL_GROUP
from system_tests.peers.streams_tool import use_tool
from system_tests.peers.versions import versions_of

pytestmark = [pytest.mark.minibroker, pytest.mark.java]

SETTINGS: Final = {
    "super.users": "User:ANONYMOUS",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "group.initial.rebalance.delay.ms": "0",
    "delegation.token.secret.key": "a key of the tests",
    # Retention would delete the records, whose timestamps are years old, at different times.
    "log.initial.task.delay.ms": "3600000",
    "log.retention.check.interval.ms": "3600000",
    **streams_groups.SETTINGS,
}
WITH_DESCRIPTIONS: Final = SETTINGS | streams_groups.WITH_DESCRIPTIONS

REQUESTS_MIN: Final = 3500

SETTLE_S: Final = 120.0
"""The longest time between the end of something in one broker and in the other."""

ADVERTISED_BY_ONE: Final = {
    range(80, 82): "the metadata log has no raft voters to add or remove",
    range(94, 95): "there is no other controller that could be unregistered",
}
"""APIs that only one of the brokers lists, or in other versions, by API key."""

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
    **{
        (about, f"fetched by None in {epoch}"): "Kafka fails with an internal error at"
        " an epoch of no member; here the member is unknown"
        for about, known in (("life_of_a_group", 3), ("life_of_a_streams_group", 5))
        for epoch in range(known - 1, known + 2)
    },
    ("described_partitions", "without a name"): "Kafka fails with an internal error at an empty"
    " name; here the name is invalid",
    **{
        ("with_unnamed_parts", f"{api} {version}"): "Kafka disconnects at the resource type 0,"
        " which no ACL can have; here the request is invalid"
        for api in ("CREATE_ACLS", "DELETE_ACLS")
        for version in (1, 2, 3)
    },
    (
        "with_unnamed_parts",
        "DESCRIBE_TOPIC_PARTITIONS 0",
    ): "Kafka fails with an internal error at an empty name; here the name is invalid",
    **{
        ("markers", f"{producer}, {version}"): "Kafka fails with an internal error at a negative"
        " producer id or epoch; here the producer is invalid"
        for producer in ("of no producer", "of no epoch")
        for version in (1, 2)
    },
    ("patterns", r"lt-\p{Greek}"): "there is no table of scripts; other classes are supported",
    ("patterns", "a long pattern"): "the size of patterns is limited",
    ("shared_records", "joined"): "Kafka gives a member its partitions with the second heartbeat",
    ("shared_records", "unknown topic"): "Kafka fails with an internal error if all topics of a"
    " new session are unknown; here the partition has an error",
    (
        "partitions_without_acknowledgements",
        "one of an unknown topic",
    ): "Kafka fails with an internal error at an unknown topic; here it has an error",
    **{
        ("isolation_levels", f"read_committed-{mode} offsets with another open one"): "Kafka stores"
        " a start offset before aborted records that no member gets; here it is behind them, and"
        " the lag is the same"
        for mode in (0, 1)
    },
    **{
        ("shared_records", name): "Kafka reads before it has stored the release in the same"
        " request; here the released record is there"
        for name in ("mixed", "rest")
    },
    **compressed_batches.INTENDED,
}

CONVERSATIONS: Final = [
    conversation
    for each in (
        topics,
        records,
        compressed_batches,
        fetch_sessions,
        group_versions,
        groups,
        listed_transactions,
        configs,
        consumer_groups,
        share_groups,
        streams_groups,
        share_delivery,
        dead_letters,
        quotas,
        acls_and_users,
        operations,
        resources,
        transactions,
        tokens,
        versions,
    )
    for conversation in each.CONVERSATIONS
]


@pytest.fixture(scope="module")
def brokers(
    kafka_libs: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[RunningBroker, ...]]:
    """Yield Kafka and minibroker, with the same settings."""
    folder = tmp_path_factory.mktemp("kafka")
    with (
        start_kafka(folder, settings=WITH_DESCRIPTIONS, plugins=java_driver()) as kafka,
        start_minibroker(settings=WITH_DESCRIPTIONS) as own,
    ):
        prepare(kafka)
        prepare(own)
        yield kafka, own


class Comparison(NamedTuple):
    """The responses of both brokers to one conversation, and what was requested."""

    kafka: dict[str, Any]
    own: dict[str, Any]
    asked: list[tuple[int, int]]


@pytest.fixture(scope="module")
def compare(brokers: tuple[RunningBroker, ...]) -> Callable[[Conversation], Comparison]:
    """Run a conversation with both brokers, once."""

    @cache
    def both(conversation: Conversation) -> Comparison:
        kafka, own = (run_conversation(broker, conversation) for broker in brokers)
        return Comparison(kafka.answers, own.answers, kafka.asked)

    return both


@pytest.mark.parametrize("conversation", CONVERSATIONS, ids=lambda each: each.__name__)
def test_both_answer_the_same(
    compare: Callable[[Conversation], Comparison], conversation: Conversation
) -> None:
    kafka, own, _ = compare(conversation)
    differ = {name: differences(kafka[name], own[name]) for name in kafka}
    about = conversation.__name__
    unlike = {name: lines for name, lines in differ.items() if lines}
    expected = {name for which, name in INTENDED if which == about}
    unknown = {name: lines for name, lines in unlike.items() if name not in expected}
    assert not unknown, f"Kafka's answer / ours: {unknown}"
    assert set(unlike) == expected, "these are alike by now: take them off the list"


@pytest.mark.parametrize("topic", [compressed_batches.KEPT, compressed_batches.CONVERTED])
def test_java_reads_all_accepted_batches_of_both(
    compare: Callable[[Conversation], Comparison], brokers: tuple[RunningBroker, ...], topic: str
) -> None:
    compare(compressed_batches.compressed)
    expected = compressed_batches.VALUES * len(compressed_batches.ACCEPTED)
    for broker in brokers:
        java = JavaClient(broker.bootstrap_servers)
        try:
            records = java.read(topic, 0, 0, len(expected))
        finally:
            java.close()
        assert [record.value for record in records] == expected, broker.kind


def test_both_store_streams_groups_in_the_same_records(
    compare: Callable[[Conversation], Comparison], brokers: tuple[RunningBroker, ...]
) -> None:
    for conversation in streams_groups.CONVERSATIONS:
        compare(conversation)
    stored: list[dict[str, list[str]]] = []

    def are_same() -> bool:
        """Sessions and delayed targets end a moment later in one of the brokers."""
        stored[:] = map(stored_groups, brokers)
        for found in stored:
            # Deleted with its description: Kafka notes first that its plug-in has deleted that.
            found.pop(TOOL_GROUP, None)
        kafka, own = stored
        return own == kafka

    with suppress(TimedOut):
        wait_until(are_same, "the same records of groups", within_s=SETTLE_S)
    kafka, own = stored
    assert own == kafka


def test_kafka_streams_groups_prints_the_same(brokers: tuple[RunningBroker, ...]) -> None:
    tools = KafkaTools()
    try:
        kafka, own = (use_tool(broker, tools) for broker in brokers)
    finally:
        tools.close()
    assert own == kafka


def test_every_api_is_asked_in_every_version(
    compare: Callable[[Conversation], Comparison], brokers: tuple[RunningBroker, ...]
) -> None:
    asked = [each for conversation in CONVERSATIONS for each in compare(conversation).asked]
    print(f"{len(asked)} requests compared, {len(set(asked))} versions of APIs")
    assert len(asked) >= REQUESTS_MIN
    by_both = set.intersection(*({*_versions(advertised(broker))} for broker in brokers))
    # Kafka and minibroker list versions of Produce that they do not serve.
    unserved = {(key, version) for key, version in by_both if version not in versions_of(key)}
    assert unserved == {(ApiKey.PRODUCE, version) for version in range(3)}
    assert by_both - unserved - set(asked) == set()


def advertised(broker: RunningBroker) -> dict[int, tuple[int, int]]:
    """The lowest and highest version of each API that the broker lists."""
    with Client(broker.address) as client:
        request = ApiVersionsRequest(client_software_name="peers", client_software_version="1")
        listed = client.ask(request, 4).api_keys
    return {each.api_key: (each.min_version, each.max_version) for each in listed}


def _versions(listed: dict[int, tuple[int, int]]) -> Iterator[tuple[ApiKey, int]]:
    for key, (low, high) in listed.items():
        if key in map(int, ApiKey):
            for version in range(low, high + 1):
                yield ApiKey(key), version


def test_other_apis_than_those_of_kafka_have_a_reason(brokers: tuple[RunningBroker, ...]) -> None:
    kafka, own = map(advertised, brokers)
    unlike = {key for key in {**kafka, **own} if kafka.get(key) != own.get(key)}
    assert unlike == {key for keys in ADVERTISED_BY_ONE for key in keys}
