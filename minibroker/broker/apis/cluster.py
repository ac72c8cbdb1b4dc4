"""The requests about the cluster: its brokers, its quorum and its features.

One broker is the cluster, and its own controller. Invariant: what they describe is the image of
the cluster.
"""

from __future__ import annotations

from typing import Final

from minibroker.broker.apis.base import (
    CLUSTER_DENIED_TEXT,
    SPECIAL,
    Context,
    ControllerRequest,
    ControllerScope,
    Requires,
    at_controller,
    without_owner,
)
from minibroker.broker.metadata.features import FeatureUpdate, UpgradeType
from minibroker.broker.security.acl import CLUSTER_OPERATIONS, OPERATIONS_NOT_ASKED, Operation
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from minibroker_protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeQuorumResponsePartitionData,
    DescribeQuorumResponseTopicData,
    Listener,
    Node,
    ReplicaState,
)
from minibroker_protocol.messages.unregister_broker import (
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from minibroker_protocol.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from minibroker_protocol.registry import ApiKey

# DescribeCluster (60) -----------------------------------------------------------------------------
#
# The brokers, the controller and the cluster's id. Versions 0-2. Brokers are listed with their
# endpoints on the listener of the request. From version 1 on the client sends the expected endpoint
# type, which here is always a broker. No broker is ever fenced, so including fenced ones (version
# 2) adds none. In Kafka: ``AuthHelper.computeDescribeClusterResponse``.


BROKERS = 1
CONTROLLERS = 2


def _describe_cluster(ctx: Context, request: DescribeClusterRequest) -> DescribeClusterResponse:
    if request.endpoint_type != BROKERS:
        known = request.endpoint_type == CONTROLLERS
        return DescribeClusterResponse(
            error_code=(
                ErrorCode.MISMATCHED_ENDPOINT_TYPE if known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
            ),
            error_message=(
                f"This is an endpoint of brokers ({BROKERS}), not of type {request.endpoint_type}."
            ),
        )
    operations = OPERATIONS_NOT_ASKED
    if request.include_cluster_authorized_operations:
        operations = CLUSTER_OPERATIONS
    return DescribeClusterResponse(
        cluster_id=ctx.image.cluster_id,
        controller_id=ctx.image.controller_id,
        brokers=[
            DescribeClusterBroker(
                broker_id=broker.broker_id, host=host, port=port, rack=broker.rack
            )
            for broker, host, port in ctx.image.brokers_at(
                ctx.caller.listener, ctx.caller.connected_to
            )
        ],
        cluster_authorized_operations=operations,
    )


DESCRIBE_CLUSTER = without_owner(
    _describe_cluster,
    key=ApiKey.DESCRIBE_CLUSTER,
    versions=(0, 2),
    requires=SPECIAL,
)


# DescribeQuorum (55) ------------------------------------------------------------------------------
#
# The state of the metadata log's quorum (KIP-595, KIP-836). Versions 0-2. The quorum of this broker
# is its own controller: the leader and only voter, whose epoch is that of the controller. The log
# end offset and the high watermark are the number of the last metadata change, and the voter's
# directory is the data directory. The only partition is 0 of ``__cluster_metadata``; a request for
# anything else gets UNKNOWN_TOPIC_OR_PARTITION. In Kafka:
# ``KafkaRaftClient.handleDescribeQuorumRequest``.


METADATA_TOPIC: Final = "__cluster_metadata"
METADATA_PARTITION: Final = 0


async def _describe_quorum(
    scope: ControllerScope, request: ControllerRequest[DescribeQuorumRequest]
) -> DescribeQuorumResponse:
    """Describe the controller as a quorum of one."""
    message, listener = request.message, request.caller.listener
    wanted = [
        (topic.topic_name, partition.partition_index)
        for topic in message.topics
        for partition in topic.partitions
    ]
    if wanted != [(METADATA_TOPIC, METADATA_PARTITION)] or len(message.topics) != 1:
        return _unknown_quorum(message)
    image = scope.image
    own = ReplicaState(
        replica_id=image.controller_id,
        replica_directory_id=scope.directory_id,
        log_end_offset=image.number,
        last_fetch_timestamp=request.wall_ms,
        last_caught_up_timestamp=request.wall_ms,
    )
    partition = DescribeQuorumResponsePartitionData(
        partition_index=METADATA_PARTITION,
        leader_id=image.controller_id,
        leader_epoch=image.controller_epoch,
        high_watermark=image.number,
        current_voters=[own],
    )
    topic = DescribeQuorumResponseTopicData(topic_name=METADATA_TOPIC, partitions=[partition])
    nodes = [
        Node(
            node_id=broker.broker_id,
            listeners=[Listener(name=listener, host=host, port=port)],
        )
        for broker, host, port in image.brokers_at(listener, request.caller.connected_to)
        if broker.broker_id == image.controller_id
    ]
    return DescribeQuorumResponse(topics=[topic], nodes=nodes)


def _unknown_quorum(request: DescribeQuorumRequest) -> DescribeQuorumResponse:
    return DescribeQuorumResponse(
        topics=[
            DescribeQuorumResponseTopicData(
                topic_name=topic.topic_name,
                partitions=[
                    DescribeQuorumResponsePartitionData(
                        partition_index=partition.partition_index,
                        error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                        error_message="This server does not host this topic-partition.",
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


DESCRIBE_QUORUM = at_controller(
    _describe_quorum,
    key=ApiKey.DESCRIBE_QUORUM,
    versions=(0, 2),
    requires=(Requires(Operation.DESCRIBE, Meaning.CLUSTER, text=CLUSTER_DENIED_TEXT),),
)


# UpdateFeatures (57) ------------------------------------------------------------------------------
#
# Change finalized feature levels (KIP-584, KIP-778). Versions 0-2. A request changes all of its
# features or none; a lower level needs the upgrade type of a downgrade. Version 1 can only
# validate, and version 2 has no result for each feature. The new level is stored and applies to
# every request after the response. In Kafka: ``FeatureControlManager.updateFeatures``.


async def _update_features(
    scope: ControllerScope, request: ControllerRequest[UpdateFeaturesRequest]
) -> UpdateFeaturesResponse:
    """Validate, store, and wait until every process has applied the change."""
    message = request.message
    rejection, updates = await scope.cluster.update_features(
        tuple(_feature_update(request.version, update) for update in message.feature_updates),
        validate_only=message.validate_only,
    )
    await scope.publish(updates)
    if rejection is not None:
        return UpdateFeaturesResponse(error_code=rejection.code, error_message=rejection.text)
    return UpdateFeaturesResponse(
        error_message=None,
        results=[
            UpdatableFeatureResult(
                feature=update.feature,
                error_code=ErrorCode.NONE,
                error_message=ErrorCode.NONE.name,
            )
            for update in message.feature_updates
        ],
    )


def _feature_update(version: int, update: FeatureUpdateKey) -> FeatureUpdate:
    upgrade_type = update.upgrade_type
    if version == 0:
        is_downgrade = update.allow_downgrade
        upgrade_type = UpgradeType.SAFE_DOWNGRADE if is_downgrade else UpgradeType.UPGRADE
    return FeatureUpdate(update.feature, update.max_version_level, upgrade_type)


UPDATE_FEATURES = at_controller(
    _update_features,
    key=ApiKey.UPDATE_FEATURES,
    versions=(0, 2),
    requires=(Requires(Operation.ALTER, Meaning.CLUSTER, text=CLUSTER_DENIED_TEXT),),
    left_out=("features other than transaction.version: they have no effect here",),
)


# UnregisterBroker (64) ----------------------------------------------------------------------------
#
# Remove the registration of a broker from the cluster (KIP-919). Version 0. An unknown id gets
# BROKER_ID_NOT_REGISTERED. This broker stays registered while it runs, so its own id gets
# INVALID_REQUEST; Kafka would remove the registration and not add it again. In Kafka:
# ``ClusterControlManager`` and ``QuorumController.unregisterBroker``.


def _unregister_broker(ctx: Context, request: UnregisterBrokerRequest) -> UnregisterBrokerResponse:
    broker_id = request.broker_id
    if broker_id not in ctx.image.brokers:
        return UnregisterBrokerResponse(
            error_code=ErrorCode.BROKER_ID_NOT_REGISTERED,
            error_message=f"Broker ID {broker_id} is not currently registered",
        )
    return UnregisterBrokerResponse(
        error_code=ErrorCode.INVALID_REQUEST,
        error_message=f"Broker ID {broker_id} is in use: stop the broker instead",
    )


UNREGISTER_BROKER = without_owner(
    _unregister_broker,
    key=ApiKey.UNREGISTER_BROKER,
    versions=(0, 0),
    requires=(Requires(Operation.ALTER, Meaning.CLUSTER, text=CLUSTER_DENIED_TEXT),),
    left_out=("removing the only broker: it is registered as long as it runs",),
)


APIS = (
    DESCRIBE_CLUSTER,
    DESCRIBE_QUORUM,
    UPDATE_FEATURES,
    UNREGISTER_BROKER,
)
