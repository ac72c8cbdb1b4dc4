"""LeaderAndIsr (API key 4): a controller assigns partitions to a broker.

Versions 0 to 7, in the compact encoding from 4 on. Kafka has it up to 3.9, in ZooKeeper mode.

What changed:
  1  request adds is_new
  2  request adds broker_epoch, topic_states, drops ungrouped_partition_states and their topic_name
  3  request adds adding_replicas, removing_replicas
  5  request adds type, topic_id; response adds topics, drops partition_errors and their topic_name
  6  request adds leader_recovery_state
  7  request adds is_kraft_controller
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import BOOLEAN, INT8, INT16, INT32, INT64, STRING, UUID, Uuid


class LeaderAndIsrPartitionState(Struct):
    topic_name: str = field(STRING, means=Meaning.TOPIC, versions="0-1")
    partition_index: int = field(INT32, means=Meaning.PARTITION)
    controller_epoch: int = field(INT32)
    leader: int = field(INT32, means=Meaning.BROKER)
    leader_epoch: int = field(INT32, means=Meaning.LEADER_EPOCH)
    isr: list[int] = field(array(INT32), means=Meaning.BROKER)
    partition_epoch: int = field(INT32)
    replicas: list[int] = field(array(INT32), means=Meaning.BROKER)
    adding_replicas: list[int] = field(array(INT32), means=Meaning.BROKER, versions="3+")
    removing_replicas: list[int] = field(array(INT32), means=Meaning.BROKER, versions="3+")
    is_new: bool = field(BOOLEAN, versions="1+")
    leader_recovery_state: int = field(INT8, versions="6+")


class LeaderAndIsrTopicState(Struct):
    topic_name: str = field(STRING, means=Meaning.TOPIC)
    topic_id: Uuid = field(UUID, means=Meaning.TOPIC_ID, versions="5+")
    partition_states: list[LeaderAndIsrPartitionState] = field(array(LeaderAndIsrPartitionState))


class LeaderAndIsrLiveLeader(Struct):
    broker_id: int = field(INT32, means=Meaning.BROKER)
    host_name: str = field(STRING, means=Meaning.PEER_HOST)
    port: int = field(INT32, means=Meaning.PEER_PORT)


class LeaderAndIsrRequest(Message, api_key=4, versions="0-7", flexible="4+"):
    controller_id: int = field(INT32, means=Meaning.BROKER)
    is_kraft_controller: bool = field(BOOLEAN, versions="7+")
    controller_epoch: int = field(INT32)
    broker_epoch: int = field(INT64, versions="2+", default=-1)
    type: int = field(INT8, versions="5+")
    ungrouped_partition_states: list[LeaderAndIsrPartitionState] = field(
        array(LeaderAndIsrPartitionState), versions="0-1"
    )
    topic_states: list[LeaderAndIsrTopicState] = field(array(LeaderAndIsrTopicState), versions="2+")
    live_leaders: list[LeaderAndIsrLiveLeader] = field(array(LeaderAndIsrLiveLeader))


class LeaderAndIsrPartitionError(Struct):
    topic_name: str = field(STRING, means=Meaning.TOPIC, versions="0-4")
    partition_index: int = field(INT32, means=Meaning.PARTITION)
    error_code: int = field(INT16, means=Meaning.ERROR)


class LeaderAndIsrTopicError(Struct):
    topic_id: Uuid = field(UUID, means=Meaning.TOPIC_ID)
    partition_errors: list[LeaderAndIsrPartitionError] = field(array(LeaderAndIsrPartitionError))


class LeaderAndIsrResponse(Message, api_key=4, versions="0-7", flexible="4+"):
    error_code: int = field(INT16, means=Meaning.ERROR)
    partition_errors: list[LeaderAndIsrPartitionError] = field(
        array(LeaderAndIsrPartitionError), versions="0-4"
    )
    topics: list[LeaderAndIsrTopicError] = field(array(LeaderAndIsrTopicError), versions="5+")
