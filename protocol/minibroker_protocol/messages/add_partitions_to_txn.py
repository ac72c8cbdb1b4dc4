"""AddPartitionsToTxn (API key 24): make partitions part of a transaction.

Versions 0 to 5, in the compact encoding from 3 on.

What changed:
  4  request adds transactions, drops v3_and_below_transactional_id, v3_and_below_producer_id,
     v3_and_below_producer_epoch, v3_and_below_topics; response adds error_code,
     results_by_transaction, drops results_by_topic_v3_and_below
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import BOOLEAN, INT16, INT32, INT64, STRING


class AddPartitionsToTxnTopic(Struct):
    name: str = field(STRING, means=Meaning.TOPIC)
    partitions: list[int] = field(array(INT32), means=Meaning.PARTITION)


class AddPartitionsToTxnTransaction(Struct):
    transactional_id: str = field(STRING, means=Meaning.TRANSACTIONAL_ID)
    producer_id: int = field(INT64, means=Meaning.PRODUCER_ID)
    producer_epoch: int = field(INT16, means=Meaning.PRODUCER_EPOCH)
    verify_only: bool = field(BOOLEAN)
    topics: list[AddPartitionsToTxnTopic] = field(array(AddPartitionsToTxnTopic))


class AddPartitionsToTxnRequest(Message, api_key=24, versions="0-5", flexible="3+"):
    transactions: list[AddPartitionsToTxnTransaction] = field(
        array(AddPartitionsToTxnTransaction), versions="4+"
    )
    v3_and_below_transactional_id: str = field(
        STRING, means=Meaning.TRANSACTIONAL_ID, versions="0-3"
    )
    v3_and_below_producer_id: int = field(INT64, means=Meaning.PRODUCER_ID, versions="0-3")
    v3_and_below_producer_epoch: int = field(INT16, means=Meaning.PRODUCER_EPOCH, versions="0-3")
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = field(
        array(AddPartitionsToTxnTopic), versions="0-3"
    )


class AddPartitionsToTxnPartitionResult(Struct):
    partition_index: int = field(INT32, means=Meaning.PARTITION)
    partition_error_code: int = field(INT16, means=Meaning.ERROR)


class AddPartitionsToTxnTopicResult(Struct):
    name: str = field(STRING, means=Meaning.TOPIC)
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = field(
        array(AddPartitionsToTxnPartitionResult)
    )


class AddPartitionsToTxnResult(Struct):
    transactional_id: str = field(STRING, means=Meaning.TRANSACTIONAL_ID)
    topic_results: list[AddPartitionsToTxnTopicResult] = field(array(AddPartitionsToTxnTopicResult))


class AddPartitionsToTxnResponse(Message, api_key=24, versions="0-5", flexible="3+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME, obeyed="1+")
    error_code: int = field(INT16, means=Meaning.ERROR, versions="4+")
    results_by_transaction: list[AddPartitionsToTxnResult] = field(
        array(AddPartitionsToTxnResult), versions="4+"
    )
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = field(
        array(AddPartitionsToTxnTopicResult), versions="0-3"
    )
