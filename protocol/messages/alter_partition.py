"""AlterPartition (API key 56): a leader asks the controller to change its in-sync set.

Versions 2 to 3, all in the compact encoding.

What changed:
  3  request adds new_isr_with_epochs, drops new_isr
"""

from __future__ import annotations

from protocol.schema import Message, Struct, array, field
from protocol.types import INT8, INT16, INT32, INT64, UUID, Uuid


class BrokerState(Struct):
    broker_id: int = field(INT32)
    broker_epoch: int = field(INT64, default=-1)


class AlterPartitionRequestPartitionData(Struct):
    partition_index: int = field(INT32)
    leader_epoch: int = field(INT32)
    new_isr_with_epochs: list[BrokerState] = field(array(BrokerState), versions="3+")
    new_isr: list[int] = field(array(INT32), versions="2")
    leader_recovery_state: int = field(INT8)
    partition_epoch: int = field(INT32)


class AlterPartitionRequestTopicData(Struct):
    topic_id: Uuid = field(UUID)
    partitions: list[AlterPartitionRequestPartitionData] = field(
        array(AlterPartitionRequestPartitionData)
    )


class AlterPartitionRequest(Message, api_key=56, versions="2-3", flexible="0+"):
    broker_id: int = field(INT32)
    broker_epoch: int = field(INT64, default=-1)
    topics: list[AlterPartitionRequestTopicData] = field(array(AlterPartitionRequestTopicData))


class AlterPartitionResponsePartitionData(Struct):
    partition_index: int = field(INT32)
    error_code: int = field(INT16)
    leader_id: int = field(INT32)
    leader_epoch: int = field(INT32)
    isr: list[int] = field(array(INT32))
    leader_recovery_state: int = field(INT8)
    partition_epoch: int = field(INT32)


class AlterPartitionResponseTopicData(Struct):
    topic_id: Uuid = field(UUID)
    partitions: list[AlterPartitionResponsePartitionData] = field(
        array(AlterPartitionResponsePartitionData)
    )


class AlterPartitionResponse(Message, api_key=56, versions="2-3", flexible="0+"):
    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    topics: list[AlterPartitionResponseTopicData] = field(array(AlterPartitionResponseTopicData))
