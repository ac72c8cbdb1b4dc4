"""Authorization checks of requests that operate the cluster: log directories, leaders, quorum.

Defines the operation on the cluster that each of them requires, and the shape of its error.
Invariant: each of these requests is allowed or denied as a whole, as in Kafka. In Kafka these
checks are in ``KafkaApis`` and ``ControllerApis``.
"""

from __future__ import annotations

from typing import Final

from minibroker.broker.apis import alter_partition_reassignments as reassignments
from minibroker.broker.apis import elect_leaders as elections
from minibroker.broker.apis import list_partition_reassignments as listing
from minibroker.broker.apis.authorization.authorizer_check import require_cluster
from minibroker.broker.security.acl import Operation
from minibroker_protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from minibroker_protocol.messages.describe_log_dirs import DescribeLogDirsResponse
from minibroker_protocol.messages.describe_quorum import DescribeQuorumResponse
from minibroker_protocol.messages.list_config_resources import ListConfigResourcesResponse
from minibroker_protocol.messages.unregister_broker import UnregisterBrokerResponse
from minibroker_protocol.messages.update_features import UpdateFeaturesResponse

_TEXT: Final = "Cluster authorization failed."

describe_log_dirs: Final = require_cluster(
    Operation.DESCRIBE, lambda _, error: DescribeLogDirsResponse(error_code=error)
)
alter_replica_log_dirs: Final = require_cluster(
    Operation.ALTER,
    lambda request, error: AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirTopicResult(
                topic_name=topic.name,
                partitions=[
                    AlterReplicaLogDirPartitionResult(partition_index=index, error_code=error)
                    for index in topic.partitions
                ],
            )
            for directory in request.dirs
            for topic in directory.topics
        ]
    ),
)
elect_leaders: Final = require_cluster(Operation.ALTER, elections.refusal)
alter_partition_reassignments: Final = require_cluster(Operation.ALTER, reassignments.refusal)
list_partition_reassignments: Final = require_cluster(Operation.DESCRIBE, listing.refusal)
describe_quorum: Final = require_cluster(
    Operation.DESCRIBE,
    lambda _, error: DescribeQuorumResponse(error_code=error, error_message=_TEXT),
)
update_features: Final = require_cluster(
    Operation.ALTER,
    lambda _, error: UpdateFeaturesResponse(error_code=error, error_message=_TEXT),
)
unregister_broker: Final = require_cluster(
    Operation.ALTER,
    lambda _, error: UnregisterBrokerResponse(error_code=error, error_message=_TEXT),
)
list_config_resources: Final = require_cluster(
    Operation.DESCRIBE_CONFIGS, lambda _, error: ListConfigResourcesResponse(error_code=error)
)
