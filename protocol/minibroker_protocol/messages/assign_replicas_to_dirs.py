"""AssignReplicasToDirs (API key 73): report log directories of replicas (KIP-858).

Version 0, in the compact encoding.
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import INT16, INT32, INT64, UUID, Uuid


class AssignReplicasToDirsRequestPartitionData(Struct):
    partition_index: int = field(INT32, means=Meaning.PARTITION)


class AssignReplicasToDirsRequestTopicData(Struct):
    topic_id: Uuid = field(UUID, means=Meaning.TOPIC_ID)
    partitions: list[AssignReplicasToDirsRequestPartitionData] = field(
        array(AssignReplicasToDirsRequestPartitionData)
    )


class AssignReplicasToDirsRequestDirectoryData(Struct):
    id: Uuid = field(UUID)
    topics: list[AssignReplicasToDirsRequestTopicData] = field(
        array(AssignReplicasToDirsRequestTopicData)
    )


class AssignReplicasToDirsRequest(Message, api_key=73, versions="0", flexible="0+"):
    broker_id: int = field(INT32, means=Meaning.BROKER)
    broker_epoch: int = field(INT64, default=-1)
    directories: list[AssignReplicasToDirsRequestDirectoryData] = field(
        array(AssignReplicasToDirsRequestDirectoryData)
    )


class AssignReplicasToDirsResponsePartitionData(Struct):
    partition_index: int = field(INT32, means=Meaning.PARTITION)
    error_code: int = field(INT16, means=Meaning.ERROR)


class AssignReplicasToDirsResponseTopicData(Struct):
    topic_id: Uuid = field(UUID, means=Meaning.TOPIC_ID)
    partitions: list[AssignReplicasToDirsResponsePartitionData] = field(
        array(AssignReplicasToDirsResponsePartitionData)
    )


class AssignReplicasToDirsResponseDirectoryData(Struct):
    id: Uuid = field(UUID)
    topics: list[AssignReplicasToDirsResponseTopicData] = field(
        array(AssignReplicasToDirsResponseTopicData)
    )


class AssignReplicasToDirsResponse(Message, api_key=73, versions="0", flexible="0+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME)
    error_code: int = field(INT16, means=Meaning.ERROR)
    directories: list[AssignReplicasToDirsResponseDirectoryData] = field(
        array(AssignReplicasToDirsResponseDirectoryData)
    )
