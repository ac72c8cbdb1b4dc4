"""ShareFetch (API key 78): acquire records for a share group (KIP-932).

Versions 1 to 2, all in the compact encoding.

What changed:
  2  request adds share_acquire_mode, is_renew_ack
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
    RECORDS,
    STRING,
    UUID,
    RecordsOut,
    Uuid,
)


class AcknowledgementBatch(Struct):
    first_offset: int = field(INT64, means=Meaning.OFFSET)
    last_offset: int = field(INT64, means=Meaning.OFFSET)
    acknowledge_types: list[int] = field(array(INT8))


class FetchPartition(Struct):
    partition_index: int = field(INT32, means=Meaning.PARTITION)
    acknowledgement_batches: list[AcknowledgementBatch] = field(array(AcknowledgementBatch))


class FetchTopic(Struct):
    topic_id: Uuid = field(UUID, means=Meaning.TOPIC_ID)
    partitions: list[FetchPartition] = field(array(FetchPartition))


class ForgottenTopic(Struct):
    topic_id: Uuid = field(UUID, means=Meaning.TOPIC_ID)
    partitions: list[int] = field(array(INT32), means=Meaning.PARTITION)


class ShareFetchRequest(Message, api_key=78, versions="1-2", flexible="0+"):
    group_id: str | None = field(NULLABLE_STRING, means=Meaning.GROUP, default=None)
    member_id: str | None = field(NULLABLE_STRING, means=Meaning.MEMBER)
    share_session_epoch: int = field(INT32)
    max_wait_ms: int = field(INT32)
    min_bytes: int = field(INT32)
    max_bytes: int = field(INT32, default=0x7FFFFFFF)
    max_records: int = field(INT32)
    batch_size: int = field(INT32)
    share_acquire_mode: int = field(INT8, versions="2+")
    is_renew_ack: bool = field(BOOLEAN, versions="2+")
    topics: list[FetchTopic] = field(array(FetchTopic))
    forgotten_topics_data: list[ForgottenTopic] = field(
        array(ForgottenTopic), means=Meaning.FORGOTTEN
    )


class LeaderIdAndEpoch(Struct):
    leader_id: int = field(INT32, means=Meaning.BROKER)
    leader_epoch: int = field(INT32, means=Meaning.LEADER_EPOCH)


class AcquiredRecords(Struct):
    first_offset: int = field(INT64, means=Meaning.OFFSET)
    last_offset: int = field(INT64, means=Meaning.OFFSET)
    delivery_count: int = field(INT16)


class PartitionData(Struct):
    partition_index: int = field(INT32, means=Meaning.PARTITION)
    error_code: int = field(INT16, means=Meaning.ERROR)
    error_message: str | None = field(NULLABLE_STRING, means=Meaning.MESSAGE, default=None)
    acknowledge_error_code: int = field(INT16, means=Meaning.PARTIAL_ERROR)
    acknowledge_error_message: str | None = field(
        NULLABLE_STRING, means=Meaning.MESSAGE, default=None
    )
    current_leader: LeaderIdAndEpoch = field(LeaderIdAndEpoch)
    records: RecordsOut = field(RECORDS)
    acquired_records: list[AcquiredRecords] = field(array(AcquiredRecords))


class ShareFetchableTopicResponse(Struct):
    topic_id: Uuid = field(UUID, means=Meaning.TOPIC_ID)
    partitions: list[PartitionData] = field(array(PartitionData))


class NodeEndpoint(Struct):
    node_id: int = field(INT32, means=Meaning.BROKER)
    host: str = field(STRING, means=Meaning.HOST)
    port: int = field(INT32, means=Meaning.PORT)
    rack: str | None = field(NULLABLE_STRING, default=None)


class ShareFetchResponse(Message, api_key=78, versions="1-2", flexible="0+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME)
    error_code: int = field(INT16, means=Meaning.ERROR)
    error_message: str | None = field(NULLABLE_STRING, means=Meaning.MESSAGE, default=None)
    acquisition_lock_timeout_ms: int = field(INT32)
    responses: list[ShareFetchableTopicResponse] = field(array(ShareFetchableTopicResponse))
    node_endpoints: list[NodeEndpoint] = field(array(NodeEndpoint))
