"""AlterPartition (API key 56): a leader asks the controller to change its in-sync set.

Versions 2 to 3, all in the compact encoding.

What changed:
  3  request adds new_isr_with_epochs, drops new_isr
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import INT8, INT16, INT32, INT64, UUID, Uuid


class BrokerState(Struct):
    broker_id: int = field(INT32, means=Meaning.BROKER)
    broker_epoch: int = field(INT64, default=-1)


class AlterPartitionRequestPartitionData(Struct):
    partition_index: int = field(INT32, means=Meaning.PARTITION)
    leader_epoch: int = field(INT32, means=Meaning.LEADER_EPOCH)
    new_isr_with_epochs: list[BrokerState] = field(array(BrokerState), versions="3+")
    new_isr: list[int] = field(array(INT32), means=Meaning.BROKER, versions="2")
    leader_recovery_state: int = field(INT8)
    partition_epoch: int = field(INT32)


class AlterPartitionRequestTopicData(Struct):
    topic_id: Uuid = field(UUID, means=Meaning.TOPIC_ID)
    partitions: list[AlterPartitionRequestPartitionData] = field(
        array(AlterPartitionRequestPartitionData)
    )


class AlterPartitionRequest(Message, api_key=56, versions="2-3", flexible="0+"):
    broker_id: int = field(INT32, means=Meaning.BROKER)
    broker_epoch: int = field(INT64, default=-1)
    topics: list[AlterPartitionRequestTopicData] = field(array(AlterPartitionRequestTopicData))


class AlterPartitionResponsePartitionData(Struct):
    partition_index: int = field(INT32, means=Meaning.PARTITION)
    error_code: int = field(INT16, means=Meaning.ERROR)
    leader_id: int = field(INT32, means=Meaning.BROKER)
    leader_epoch: int = field(INT32, means=Meaning.LEADER_EPOCH)
    isr: list[int] = field(array(INT32), means=Meaning.BROKER)
    leader_recovery_state: int = field(INT8)
    partition_epoch: int = field(INT32)


class AlterPartitionResponseTopicData(Struct):
    topic_id: Uuid = field(UUID, means=Meaning.TOPIC_ID)
    partitions: list[AlterPartitionResponsePartitionData] = field(
        array(AlterPartitionResponsePartitionData)
    )


class AlterPartitionResponse(Message, api_key=56, versions="2-3", flexible="0+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME)
    error_code: int = field(INT16, means=Meaning.ERROR)
    topics: list[AlterPartitionResponseTopicData] = field(array(AlterPartitionResponseTopicData))
