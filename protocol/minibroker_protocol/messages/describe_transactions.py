"""DescribeTransactions (API key 65): state of transactions.

Version 0, in the compact encoding.
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import INT16, INT32, INT64, STRING


class DescribeTransactionsRequest(Message, api_key=65, versions="0", flexible="0+"):
    transactional_ids: list[str] = field(array(STRING), means=Meaning.TRANSACTIONAL_ID)


class TopicData(Struct):
    topic: str = field(STRING, means=Meaning.TOPIC)
    partitions: list[int] = field(array(INT32), means=Meaning.PARTITION)


class TransactionState(Struct):
    error_code: int = field(INT16, means=Meaning.ERROR)
    transactional_id: str = field(STRING, means=Meaning.TRANSACTIONAL_ID)
    transaction_state: str = field(STRING)
    transaction_timeout_ms: int = field(INT32)
    transaction_start_time_ms: int = field(INT64)
    producer_id: int = field(INT64, means=Meaning.PRODUCER_ID)
    producer_epoch: int = field(INT16, means=Meaning.PRODUCER_EPOCH)
    topics: list[TopicData] = field(array(TopicData))


class DescribeTransactionsResponse(Message, api_key=65, versions="0", flexible="0+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME)
    transaction_states: list[TransactionState] = field(array(TransactionState))
