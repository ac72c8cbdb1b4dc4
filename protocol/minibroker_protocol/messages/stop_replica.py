"""StopReplica (API key 5): a controller stops or deletes partitions of a broker.

Versions 0 to 4, in the compact encoding from 2 on. Kafka has it up to 3.9, in ZooKeeper mode.

What changed:
  1  request adds broker_epoch, topics, drops ungrouped_partitions
  3  request adds topic_states, drops delete_partitions, topics
  4  request adds is_kraft_controller
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import BOOLEAN, INT16, INT32, INT64, STRING


class StopReplicaPartitionV0(Struct):
    topic_name: str = field(STRING, means=Meaning.TOPIC)
    partition_index: int = field(INT32, means=Meaning.PARTITION)


class StopReplicaTopicV1(Struct):
    name: str = field(STRING, means=Meaning.TOPIC)
    partition_indexes: list[int] = field(array(INT32), means=Meaning.PARTITION)


class StopReplicaPartitionState(Struct):
    partition_index: int = field(INT32, means=Meaning.PARTITION)
    leader_epoch: int = field(INT32, means=Meaning.LEADER_EPOCH, default=-1)
    delete_partition: bool = field(BOOLEAN)


class StopReplicaTopicState(Struct):
    topic_name: str = field(STRING, means=Meaning.TOPIC)
    partition_states: list[StopReplicaPartitionState] = field(array(StopReplicaPartitionState))


class StopReplicaRequest(Message, api_key=5, versions="0-4", flexible="2+"):
    controller_id: int = field(INT32, means=Meaning.BROKER)
    is_kraft_controller: bool = field(BOOLEAN, versions="4+")
    controller_epoch: int = field(INT32)
    broker_epoch: int = field(INT64, versions="1+", default=-1)
    delete_partitions: bool = field(BOOLEAN, versions="0-2")
    ungrouped_partitions: list[StopReplicaPartitionV0] = field(
        array(StopReplicaPartitionV0), versions="0"
    )
    topics: list[StopReplicaTopicV1] = field(array(StopReplicaTopicV1), versions="1-2")
    topic_states: list[StopReplicaTopicState] = field(array(StopReplicaTopicState), versions="3+")


class StopReplicaPartitionError(Struct):
    topic_name: str = field(STRING, means=Meaning.TOPIC)
    partition_index: int = field(INT32, means=Meaning.PARTITION)
    error_code: int = field(INT16, means=Meaning.ERROR)


class StopReplicaResponse(Message, api_key=5, versions="0-4", flexible="2+"):
    error_code: int = field(INT16, means=Meaning.ERROR)
    partition_errors: list[StopReplicaPartitionError] = field(array(StopReplicaPartitionError))
