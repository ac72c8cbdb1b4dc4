"""Operation of a cluster: log directories, reassignments, elections, and what is listed.

With one broker and one directory most of these find nothing to do, or an error; which error is what
the conversations compare.
"""

from __future__ import annotations

from typing import Final

from minibroker_protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from minibroker_protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from minibroker_protocol.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
)
from minibroker_protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from minibroker_protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from minibroker_protocol.messages.list_config_resources import ListConfigResourcesRequest
from minibroker_protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from minibroker_protocol.messages.unregister_broker import UnregisterBrokerRequest
from minibroker_protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from system_tests.peers.conversation import SendRequest
from system_tests.peers.topics import create, topic

CLUSTER_WIDE: Final = (4, 8)
"""Types of config resources that exist without being created: brokers and their loggers."""


def log_dirs(ask: SendRequest) -> None:
    ask("made", create(topic("on-disk", 3)), 7)
    for version in range(1, 6):
        wanted = [DescribableLogDirTopic(topic="on-disk", partitions=[2, 0, 2])]
        ask(f"two partitions, version {version}", DescribeLogDirsRequest(topics=wanted), version)
    unknown = [
        DescribableLogDirTopic(topic="on-disk", partitions=[7, -1]),
        DescribableLogDirTopic(topic="no-such", partitions=[0]),
        DescribableLogDirTopic(topic="", partitions=[]),
    ]
    ask("unknown partitions", DescribeLogDirsRequest(topics=unknown), 4)
    ask("none", DescribeLogDirsRequest(topics=[]), 4)


def moved_log_dirs(ask: SendRequest) -> None:
    ask("made", create(topic("staying", 2)), 7)
    for version in (1, 2):
        for path in ("/no/such/directory", "", "relative"):
            to = AlterReplicaLogDir(
                path=path,
                topics=[
                    AlterReplicaLogDirTopic(name="staying", partitions=[0, 1, 2]),
                    AlterReplicaLogDirTopic(name="no-such", partitions=[0]),
                    AlterReplicaLogDirTopic(name="x" * 249, partitions=[0]),
                ],
            )
            ask(f"to {path!r}, {version}", AlterReplicaLogDirsRequest(dirs=[to]), version)
    ask("nothing", AlterReplicaLogDirsRequest(dirs=[]), 2)


def described_partitions(ask: SendRequest) -> None:
    ask("made", create(topic("paged-a", 3), topic("paged-b", 2), topic("paged-c", 1)), 7)

    def page(
        *names: str, limit: int = 2000, at: tuple[str, int] | None = None
    ) -> DescribeTopicPartitionsRequest:
        cursor = None if at is None else Cursor(topic_name=at[0], partition_index=at[1])
        wanted = [TopicRequest(name=name) for name in names]
        return DescribeTopicPartitionsRequest(
            topics=wanted, response_partition_limit=limit, cursor=cursor
        )

    three = "paged-c", "paged-a", "paged-b"
    ask("three", page(*three), 0)
    ask("twice the same", page("paged-a", "paged-a"), 0)
    for limit in (-1, 0, 1, 2, 3, 4, 5, 6, 7):
        ask(f"at most {limit}", page(*three, limit=limit), 0)
    for at in (
        ("paged-a", 0),
        ("paged-a", 2),
        ("paged-a", 3),
        ("paged-a", 99),
        ("paged-b", 1),
        ("paged-c", 0),
        ("paged-c", 1),
    ):
        ask(f"at {at}", page(*three, limit=2, at=at), 0)
    ask("cursor at a topic that was not requested", page(*three, at=("paged-bb", 0)), 0)
    ask("at a topic after all", page(*three, at=("z", 0)), 0)
    ask("at a partition below 0", page(*three, at=("paged-a", -1)), 0)
    ask("unknown", page("no-such", "paged-a", "a/b"), 0)
    ask("without a name", page("paged-a", ""), 0)
    ask("unknown at the cursor", page("no-such", "paged-a", at=("no-such", 1)), 0)
    ask("unknown, one at most", page("no-such", "paged-a", "paged-zz", limit=1), 0)
    ask("every, at one that is not there", page(at=("paged-bb", 4), limit=1), 0)


def reassigned(ask: SendRequest) -> None:
    ask("made", create(topic("settled", 2)), 7)

    def alter(
        name: str, index: int, *replicas: int, cancel: bool = False, resize: bool = True
    ) -> AlterPartitionReassignmentsRequest:
        part = ReassignablePartition(
            partition_index=index, replicas=None if cancel else list(replicas)
        )
        return AlterPartitionReassignmentsRequest(
            topics=[ReassignableTopic(name=name, partitions=[part])],
            allow_replication_factor_change=resize,
        )

    for version in (0, 1):
        ask(f"as it is, {version}", alter("settled", 0, 1), version)
        ask(f"to another, {version}", alter("settled", 0, 2), version)
        ask(f"to both, {version}", alter("settled", 0, 1, 2), version)
        ask(f"to none, {version}", alter("settled", 0), version)
        ask(f"to one twice, {version}", alter("settled", 0, 1, 1), version)
        ask(f"to a negative one, {version}", alter("settled", 0, -1), version)
        ask(f"cancelled, {version}", alter("settled", 0, cancel=True), version)
        ask(f"unknown partition, {version}", alter("settled", 9, 1), version)
        ask(f"unknown topic, {version}", alter("no-such", 0, 1), version)
        ask(f"unknown topic cancelled, {version}", alter("no-such", 0, cancel=True), version)
        ask(f"nothing, {version}", AlterPartitionReassignmentsRequest(topics=[]), version)
    for replicas in ((1,), (1, 1), (1, 2), ()):
        ask(f"same number, {replicas}", alter("settled", 1, *replicas, resize=False), 1)
    ask("every", ListPartitionReassignmentsRequest(topics=None), 0)
    listed = [
        ListPartitionReassignmentsTopics(name="settled", partition_indexes=[0, 9]),
        ListPartitionReassignmentsTopics(name="no-such", partition_indexes=[0]),
    ]
    ask("some", ListPartitionReassignmentsRequest(topics=listed), 0)
    ask("none", ListPartitionReassignmentsRequest(topics=[]), 0)


def elected(ask: SendRequest) -> None:
    ask("made", create(topic("led", 2)), 7)
    some = [
        TopicPartitions(topic="led", partitions=[0, 1, 2, -1]),
        TopicPartitions(topic="no-such", partitions=[0]),
    ]
    for version in range(3):
        ask(f"some, {version}", ElectLeadersRequest(topic_partitions=some), version)
        ask(f"none, {version}", ElectLeadersRequest(topic_partitions=[]), version)
    for kind in (1, 2, -1):
        request = ElectLeadersRequest(topic_partitions=some, election_type=kind)
        ask(f"of type {kind}", request, 2)


def features(ask: SendRequest) -> None:
    def update(
        name: str, level: int, *, kind: int = 1, downgrade: bool = False, trial: bool = False
    ) -> UpdateFeaturesRequest:
        change = FeatureUpdateKey(
            feature=name, max_version_level=level, upgrade_type=kind, allow_downgrade=downgrade
        )
        return UpdateFeaturesRequest(feature_updates=[change], validate_only=trial)

    for version in range(3):
        ask(f"unknown, {version}", update("no.such.feature", 1), version)
        ask(f"too high, {version}", update("transaction.version", 3), version)
        ask(f"negative, {version}", update("transaction.version", -1), version)
        ask(f"as it is, {version}", update("transaction.version", 2), version)
        ask(f"lower, {version}", update("transaction.version", 1), version)
        ask(f"nothing, {version}", UpdateFeaturesRequest(feature_updates=[]), version)
    ask("downgrade not needed", update("transaction.version", 2, downgrade=True), 0)
    for kind in (0, 1, 2, 3, 4, -1):
        ask(f"type {kind}", update("transaction.version", 2, kind=kind, trial=True), 1)
    ask("lower, to try", update("transaction.version", 1, kind=2, trial=True), 1)
    both = UpdateFeaturesRequest(
        feature_updates=[
            FeatureUpdateKey(feature="transaction.version", max_version_level=2),
            FeatureUpdateKey(feature="no.such.feature", max_version_level=1),
        ]
    )
    for version in (1, 2):
        ask(f"both, {version}", both, version)


def listed(ask: SendRequest) -> None:
    ask("client metrics", ListConfigResourcesRequest(), 0)
    for kind in (16, 32, *CLUSTER_WIDE):
        ask(f"type {kind}", ListConfigResourcesRequest(resource_types=[kind]), 1)
    for kinds in ([0], [1], [64], [-1], [4, 64], [16, 16, 32]):
        ask(f"types {kinds}", ListConfigResourcesRequest(resource_types=kinds), 1)


def unregistered(ask: SendRequest) -> None:
    for broker in (7, -1):
        ask(f"broker {broker}", UnregisterBrokerRequest(broker_id=broker), 0)


CONVERSATIONS: Final = (
    log_dirs,
    moved_log_dirs,
    described_partitions,
    reassigned,
    elected,
    features,
    listed,
    unregistered,
)
