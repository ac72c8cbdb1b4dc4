"""Authorization checks of requests that operate the cluster: log directories, leaders, quorum.

Defines the operation on the cluster that each of them requires, and the shape of its error.
Invariant: each of these requests is allowed or denied as a whole, as in Kafka. In Kafka these
checks are in ``KafkaApis`` and ``ControllerApis``.
"""

from __future__ import annotations

from typing import Final

from minibroker.apis import alter_partition_reassignments as reassignments
from minibroker.apis import elect_leaders as elections
from minibroker.apis import list_partition_reassignments as listing
from minibroker.apis.authorization.authorizer_check import require_cluster
from minibroker.security.acl import Operation
from protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from protocol.messages.describe_log_dirs import DescribeLogDirsResponse
from protocol.messages.describe_quorum import DescribeQuorumResponse
from protocol.messages.list_config_resources import ListConfigResourcesResponse
from protocol.messages.unregister_broker import UnregisterBrokerResponse
from protocol.messages.update_features import UpdateFeaturesResponse

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
