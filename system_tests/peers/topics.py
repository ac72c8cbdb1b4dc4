"""Topics: made, made larger, described and deleted, and everything that can be wrong with that."""

from __future__ import annotations

from typing import Final

from minibroker_protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from minibroker_protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from minibroker_protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from minibroker_protocol.messages.describe_cluster import DescribeClusterRequest
from minibroker_protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from minibroker_protocol.types import Uuid
from system_tests.peers.conversation import SendRequest

TIMEOUT_MS: Final = 10_000
NONE: Final = Uuid(bytes(15) + b"\x07")


def topic(
    name: str, partitions: int = 1, replicas: int = 1, *given: list[int], **configs: str | None
) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=brokers)
            for index, brokers in enumerate(given)
        ],
        configs=[
            CreatableTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in configs.items()
        ],
    )


def create(*topics: CreatableTopic, validate_only: bool = False) -> CreateTopicsRequest:
    return CreateTopicsRequest(
        topics=list(topics), timeout_ms=TIMEOUT_MS, validate_only=validate_only
    )


def creation(ask: SendRequest) -> None:
    for version in (2, 4, 5, 7):
        ask(f"one, version {version}", create(topic(f"made-{version}", 2)), version)
    ask("again", create(topic("made-7")), 7)
    ask("validate only", create(topic("tried", 3), validate_only=True), 7)
    ask("validate only, existing", create(topic("made-7"), validate_only=True), 7)
    ask("defaults", create(topic("by-default", -1, -1)), 7)
    ask("defaults before version 4", create(topic("by-default-3", -1, -1)), 3)
    ask("same name twice", create(topic("twice"), topic("twice")), 7)
    ask("none", create(), 7)
    for name in ("", ".", "..", "a/b", "a b", "é", "x" * 249, "x" * 250, "a\0b", "-", "_"):
        ask(f"named {name!r}", create(topic(name)), 7)
    ask("colliding with made_7", create(topic("made.7"), topic("made_7")), 7)
    ask("colliding with a dot", create(topic("with.dot")), 7)
    ask("colliding with an underscore", create(topic("with_dot")), 7)
    for partitions in (0, -2):
        ask(f"{partitions} partitions", create(topic("wrong", partitions)), 7)
    for replicas in (0, 2, -2):
        ask(f"{replicas} replicas", create(topic("wrong", 1, replicas)), 7)
    ask("assigned", create(topic("assigned", -1, -1, [1], [1])), 7)
    ask("assigned to an unknown broker", create(topic("wrong", -1, -1, [77])), 7)
    ask("assigned twice", create(topic("wrong", -1, -1, [1, 1])), 7)
    ask("assigned to no broker", create(topic("wrong", -1, -1, [])), 7)
    ask("assigned and counted", create(topic("wrong", 1, 1, [1])), 7)
    ask("assigned and counted only", create(topic("wrong", 1, -1, [1])), 7)
    gap = topic("wrong", -1, -1, [1])
    gap.assignments[0].partition_index = 1
    ask("assigned with a gap", create(gap), 7)


def configured(ask: SendRequest) -> None:
    ask("one", create(topic("configured", retention_ms="1000")), 7)
    for key, value in {
        "retention.ms": "soon",
        "retention.bytes": "-2",
        "cleanup.policy": "burn",
        "compression.type": "lz5",
        "no.such.config": "1",
        "max.message.bytes": "-1",
        "min.insync.replicas": "0",
        "segment.bytes": "1",
        "message.timestamp.type": "Now",
        "unclean.leader.election.enable": "maybe",
    }.items():
        wrong = create(topic(f"wrong-{key}", 1, 1, **{key.replace(".", "_"): value}))
        ask(f"{key}={value}", wrong, 7)
    ask("null", create(topic("nulled", 1, 1, retention_ms=None)), 7)
    twice = topic("wrong", 1, 1, retention_ms="1")
    twice.configs *= 2
    ask("the same twice", create(twice), 7)


def growth(ask: SendRequest) -> None:
    def grow(name: str, count: int, *given: list[int], validate_only: bool = False) -> None:
        assignments = [CreatePartitionsAssignment(broker_ids=brokers) for brokers in given]
        wanted = CreatePartitionsTopic(name=name, count=count, assignments=assignments or None)
        request = CreatePartitionsRequest(
            topics=[wanted], timeout_ms=TIMEOUT_MS, validate_only=validate_only
        )
        ask(f"{name} to {count} by {given}, {validate_only}", request, 3)

    ask("created", create(topic("growing", 2)), 7)
    grow("growing", 4, validate_only=True)
    for count in (2, 1, 0, -1):
        grow("growing", count)
    grow("growing", 3)
    grow("growing", 4, [1])
    grow("growing", 6, [1])
    grow("growing", 5, [99])
    grow("growing", 5, [1, 1])
    grow("growing", 5, [])
    grow("missing", 5)
    grow("", 5)
    twice = [CreatePartitionsTopic(name="growing", count=count) for count in (8, 9)]
    ask("twice", CreatePartitionsRequest(topics=twice, timeout_ms=TIMEOUT_MS), 3)
    ask("none", CreatePartitionsRequest(topics=[], timeout_ms=TIMEOUT_MS), 3)


def deletion(ask: SendRequest) -> None:
    def by_name(*names: str) -> DeleteTopicsRequest:
        states = [DeleteTopicState(name=name) for name in names]
        return DeleteTopicsRequest(topics=states, topic_names=list(names), timeout_ms=TIMEOUT_MS)

    for version in (1, 4, 5, 6):
        ask(f"created {version}", create(topic(f"dying-{version}")), 7)
        ask(f"deleted {version}", by_name(f"dying-{version}"), version)
        ask(f"deleted again {version}", by_name(f"dying-{version}"), version)
    ask("empty name", by_name(""), 6)
    ask("none", by_name(), 6)
    ask("created for twice", create(topic("dying-twice")), 7)
    ask("twice", by_name("dying-twice", "dying-twice"), 6)
    for name, state in {
        "no such id": DeleteTopicState(name=None, topic_id=NONE),
        "neither": DeleteTopicState(name=None),
        "both": DeleteTopicState(name="dying-6", topic_id=NONE),
    }.items():
        ask(name, DeleteTopicsRequest(topics=[state], timeout_ms=TIMEOUT_MS), 6)


def metadata(ask: SendRequest) -> None:
    def named(*names: str | None, create_missing: bool = False) -> MetadataRequest:
        topics = [MetadataRequestTopic(name=name) for name in names]
        return MetadataRequest(topics=topics, allow_auto_topic_creation=create_missing)

    ask("created", create(topic("described", 2)), 7)
    for version in (1, 4, 7, 9, 12, 13):
        ask(f"described {version}", named("described"), version)
        if version >= 4:  # In earlier versions the request creates the topic.
            ask(f"missing {version}", named("missing"), version)
        ask(f"none {version}", named(), version)
        ask(f"twice {version}", named("described", "described"), version)
        ask(f"named badly {version}", named("a/b", "", "x" * 250), version)
    ask("missing, no creation of a bad name", named("a/b", create_missing=True), 12)
    by_id = MetadataRequest(topics=[MetadataRequestTopic(topic_id=NONE, name=None)])
    ask("no such id", by_id, 12)
    ask("neither", named(None), 12)
    rights = named("described")
    rights.include_topic_authorized_operations = True
    ask("rights", rights, 12)
    missing = named("not-there")
    missing.include_topic_authorized_operations = True
    ask("rights to a missing topic", missing, 12)
    old = MetadataRequest(topics=[], include_cluster_authorized_operations=True)
    ask("rights to the cluster", old, 8)


def cluster(ask: SendRequest) -> None:
    ask("brokers", DescribeClusterRequest(endpoint_type=1), 2)
    ask("controllers", DescribeClusterRequest(endpoint_type=2), 2)
    ask("unknown endpoint type", DescribeClusterRequest(endpoint_type=9), 2)
    old = DescribeClusterRequest(include_cluster_authorized_operations=True)
    ask("rights", old, 0)


CONVERSATIONS: Final = (creation, configured, growth, deletion, metadata, cluster)
