"""ListTransactions (API key 66): the transactions that a broker coordinates.

Versions 0 to 2, all in the compact encoding.

What changed:
  1  request adds duration_filter
  2  request adds transactional_id_pattern
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import INT16, INT32, INT64, NULLABLE_STRING, STRING


class ListTransactionsRequest(Message, api_key=66, versions="0-2", flexible="0+"):
    state_filters: list[str] = field(array(STRING))
    producer_id_filters: list[int] = field(array(INT64), means=Meaning.PRODUCER_ID)
    duration_filter: int = field(INT64, versions="1+", default=-1)
    transactional_id_pattern: str | None = field(
        NULLABLE_STRING, means=Meaning.TRANSACTIONAL_ID_PATTERN, versions="2+", default=None
    )


class TransactionState(Struct):
    transactional_id: str = field(STRING, means=Meaning.TRANSACTIONAL_ID)
    producer_id: int = field(INT64, means=Meaning.PRODUCER_ID)
    transaction_state: str = field(STRING)


class ListTransactionsResponse(Message, api_key=66, versions="0-2", flexible="0+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME)
    error_code: int = field(INT16, means=Meaning.ERROR)
    unknown_state_filters: list[str] = field(array(STRING))
    transaction_states: list[TransactionState] = field(array(TransactionState))
