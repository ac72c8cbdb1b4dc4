"""DescribeQuorum (55): the state of the metadata log's quorum (KIP-595, KIP-836).

Versions 0-2. The quorum of this broker is its own controller: the leader and only voter, whose
epoch is that of the controller. The log end offset and the high watermark are the number of the
last metadata change, and the voter's directory is the data directory. The only partition is 0 of
``__cluster_metadata``; a request for anything else gets UNKNOWN_TOPIC_OR_PARTITION. In Kafka:
``KafkaRaftClient.handleDescribeQuorumRequest``.
"""

from __future__ import annotations

from typing import Final

from minibroker.broker.apis.base import (
    CLUSTER_DENIED_TEXT,
    ControllerRequest,
    ControllerScope,
    Requires,
    at_controller,
)
from minibroker.broker.security.acl import Operation
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeQuorumResponsePartitionData,
    DescribeQuorumResponseTopicData,
    Listener,
    Node,
    ReplicaState,
)
from minibroker_protocol.registry import ApiKey

METADATA_TOPIC: Final = "__cluster_metadata"
METADATA_PARTITION: Final = 0


async def execute(
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
        return _unknown(message)
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
        for broker, host, port in image.brokers_at(listener)
        if broker.broker_id == image.controller_id
    ]
    return DescribeQuorumResponse(topics=[topic], nodes=nodes)


def _unknown(request: DescribeQuorumRequest) -> DescribeQuorumResponse:
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


API = at_controller(
    execute,
    key=ApiKey.DESCRIBE_QUORUM,
    versions=(0, 2),
    requires=(Requires(Operation.DESCRIBE, Meaning.CLUSTER, text=CLUSTER_DENIED_TEXT),),
)
