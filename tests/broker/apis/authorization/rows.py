"""Requests of the table test: the error without rights, and the rights that suffice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from minibroker.broker.security.acl import CLUSTER_NAME, Operation, Resource
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages import txn_offset_commit as toc
from minibroker_protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from minibroker_protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
)
from minibroker_protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from minibroker_protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from minibroker_protocol.messages.describe_quorum import DescribeQuorumRequest
from minibroker_protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from minibroker_protocol.messages.describe_transactions import DescribeTransactionsRequest
from minibroker_protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from minibroker_protocol.messages.end_txn import EndTxnRequest
from minibroker_protocol.messages.list_config_resources import ListConfigResourcesRequest
from minibroker_protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
)
from minibroker_protocol.messages.unregister_broker import UnregisterBrokerRequest
from minibroker_protocol.messages.update_features import UpdateFeaturesRequest
from minibroker_protocol.registry import ApiKey

TOPIC, GROUP, TRANSACTION = "secret-topic", "secret-group", "secret-transaction"
NO_TOPIC, NO_GROUP, NO_CLUSTER = (
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
)
NO_TRANSACTION = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
DENIALS = {NO_TOPIC, NO_GROUP, NO_CLUSTER, NO_TRANSACTION}

Right = tuple[Operation, Resource, str]
Make = Callable[[int, bytes], Any]
"""A request of a version; the other argument is the topic's id."""


class Row(NamedTuple):
    """A request, the error of a client without rights, and the rights that suffice."""

    make: Make
    error: ErrorCode
    rights: tuple[Right, ...]


def topic(*operations: Operation) -> tuple[Right, ...]:
    return tuple((operation, Resource.TOPIC, TOPIC) for operation in operations)


def group(*operations: Operation) -> tuple[Right, ...]:
    return tuple((operation, Resource.GROUP, GROUP) for operation in operations)


def cluster(*operations: Operation) -> tuple[Right, ...]:
    return tuple((operation, Resource.CLUSTER, CLUSTER_NAME) for operation in operations)


def always(request: Any) -> Make:
    return lambda _version, _topic_id: request


def transactional_id(*operations: Operation) -> tuple[Right, ...]:
    return tuple((operation, Resource.TRANSACTIONAL_ID, TRANSACTION) for operation in operations)


def txn_offset_commit(_version: int, topic_id: bytes) -> Any:
    each = toc.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    asked = toc.TxnOffsetCommitRequestTopic(name=TOPIC, topic_id=topic_id, partitions=[each])
    return toc.TxnOffsetCommitRequest(transactional_id=TRANSACTION, group_id=GROUP, topics=[asked])


MOVED = AlterReplicaLogDir(path="/", topics=[AlterReplicaLogDirTopic(name=TOPIC, partitions=[0])])

OPERATION_ROWS: dict[ApiKey, Row] = {
    ApiKey.DESCRIBE_LOG_DIRS: Row(
        always(DescribeLogDirsRequest(topics=None)), NO_CLUSTER, cluster(Operation.DESCRIBE)
    ),
    ApiKey.ALTER_REPLICA_LOG_DIRS: Row(
        always(AlterReplicaLogDirsRequest(dirs=[MOVED])), NO_CLUSTER, cluster(Operation.ALTER)
    ),
    ApiKey.ELECT_LEADERS: Row(
        always(
            ElectLeadersRequest(topic_partitions=[TopicPartitions(topic=TOPIC, partitions=[0])])
        ),
        NO_CLUSTER,
        cluster(Operation.ALTER),
    ),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Row(
        always(AlterPartitionReassignmentsRequest()), NO_CLUSTER, cluster(Operation.ALTER)
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Row(
        always(ListPartitionReassignmentsRequest()), NO_CLUSTER, cluster(Operation.DESCRIBE)
    ),
    ApiKey.DESCRIBE_QUORUM: Row(
        always(DescribeQuorumRequest()), NO_CLUSTER, cluster(Operation.DESCRIBE)
    ),
    ApiKey.UPDATE_FEATURES: Row(
        always(UpdateFeaturesRequest(feature_updates=[])), NO_CLUSTER, cluster(Operation.ALTER)
    ),
    ApiKey.UNREGISTER_BROKER: Row(
        always(UnregisterBrokerRequest(broker_id=7)), NO_CLUSTER, cluster(Operation.ALTER)
    ),
    ApiKey.LIST_CONFIG_RESOURCES: Row(
        always(ListConfigResourcesRequest()), NO_CLUSTER, cluster(Operation.DESCRIBE_CONFIGS)
    ),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: Row(
        always(DescribeTopicPartitionsRequest(topics=[TopicRequest(name=TOPIC)])),
        NO_TOPIC,
        topic(Operation.DESCRIBE),
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: Row(
        always(AddOffsetsToTxnRequest(transactional_id=TRANSACTION, group_id=GROUP)),
        NO_TRANSACTION,
        (*transactional_id(Operation.WRITE), *group(Operation.READ)),
    ),
    ApiKey.TXN_OFFSET_COMMIT: Row(
        txn_offset_commit,
        NO_TRANSACTION,
        (*transactional_id(Operation.WRITE), *group(Operation.READ), *topic(Operation.READ)),
    ),
    ApiKey.END_TXN: Row(
        always(EndTxnRequest(transactional_id=TRANSACTION)),
        NO_TRANSACTION,
        transactional_id(Operation.WRITE),
    ),
    ApiKey.DESCRIBE_TRANSACTIONS: Row(
        always(DescribeTransactionsRequest(transactional_ids=[TRANSACTION])),
        NO_TRANSACTION,
        transactional_id(Operation.DESCRIBE),
    ),
}
