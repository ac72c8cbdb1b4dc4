"""ShareAcknowledge (API key 79): say what became of acquired records (KIP-932).

Versions 1 to 2, all in the compact encoding.

What changed:
  2  request adds is_renew_ack; response adds acquisition_lock_timeout_ms
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import (
    BOOLEAN,
    INT8,
    INT16,
    INT32,
    INT64,
    NULLABLE_STRING,
    STRING,
    UUID,
    Uuid,
)


class AcknowledgementBatch(Struct):
    first_offset: int = field(INT64, means=Meaning.OFFSET)
    last_offset: int = field(INT64, means=Meaning.OFFSET)
    acknowledge_types: list[int] = field(array(INT8))


class AcknowledgePartition(Struct):
    partition_index: int = field(INT32, means=Meaning.PARTITION)
    acknowledgement_batches: list[AcknowledgementBatch] = field(array(AcknowledgementBatch))


class AcknowledgeTopic(Struct):
    topic_id: Uuid = field(UUID, means=Meaning.TOPIC_ID)
    partitions: list[AcknowledgePartition] = field(array(AcknowledgePartition))


class ShareAcknowledgeRequest(Message, api_key=79, versions="1-2", flexible="0+"):
    group_id: str | None = field(NULLABLE_STRING, means=Meaning.GROUP, default=None)
    member_id: str | None = field(NULLABLE_STRING, means=Meaning.MEMBER)
    share_session_epoch: int = field(INT32)
    is_renew_ack: bool = field(BOOLEAN, versions="2+")
    topics: list[AcknowledgeTopic] = field(array(AcknowledgeTopic))


class LeaderIdAndEpoch(Struct):
    leader_id: int = field(INT32, means=Meaning.BROKER)
    leader_epoch: int = field(INT32, means=Meaning.LEADER_EPOCH)


class PartitionData(Struct):
    partition_index: int = field(INT32, means=Meaning.PARTITION)
    error_code: int = field(INT16, means=Meaning.ERROR)
    error_message: str | None = field(NULLABLE_STRING, means=Meaning.MESSAGE, default=None)
    current_leader: LeaderIdAndEpoch = field(LeaderIdAndEpoch)


class ShareAcknowledgeTopicResponse(Struct):
    topic_id: Uuid = field(UUID, means=Meaning.TOPIC_ID)
    partitions: list[PartitionData] = field(array(PartitionData))


class NodeEndpoint(Struct):
    node_id: int = field(INT32, means=Meaning.BROKER)
    host: str = field(STRING, means=Meaning.HOST)
    port: int = field(INT32, means=Meaning.PORT)
    rack: str | None = field(NULLABLE_STRING, default=None)


class ShareAcknowledgeResponse(Message, api_key=79, versions="1-2", flexible="0+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME)
    error_code: int = field(INT16, means=Meaning.ERROR)
    error_message: str | None = field(NULLABLE_STRING, means=Meaning.MESSAGE, default=None)
    acquisition_lock_timeout_ms: int = field(INT32, versions="2+")
    responses: list[ShareAcknowledgeTopicResponse] = field(array(ShareAcknowledgeTopicResponse))
    node_endpoints: list[NodeEndpoint] = field(array(NodeEndpoint))
