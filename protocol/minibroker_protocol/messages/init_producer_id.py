"""InitProducerId (API key 22): get or renew a producer's id and epoch.

Versions 0 to 6, in the compact encoding from 2 on.

What changed:
  3  request adds producer_id, producer_epoch
  6  request adds enable2_pc, keep_prepared_txn; response adds ongoing_txn_producer_id,
     ongoing_txn_producer_epoch
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, field
from minibroker_protocol.types import BOOLEAN, INT16, INT32, INT64, NULLABLE_STRING


class InitProducerIdRequest(Message, api_key=22, versions="0-6", flexible="2+"):
    transactional_id: str | None = field(NULLABLE_STRING, means=Meaning.TRANSACTIONAL_ID)
    transaction_timeout_ms: int = field(INT32)
    producer_id: int = field(INT64, means=Meaning.PRODUCER_ID, versions="3+", default=-1)
    producer_epoch: int = field(INT16, means=Meaning.PRODUCER_EPOCH, versions="3+", default=-1)
    enable2_pc: bool = field(BOOLEAN, versions="6+")
    keep_prepared_txn: bool = field(BOOLEAN, versions="6+")


class InitProducerIdResponse(Message, api_key=22, versions="0-6", flexible="2+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME, obeyed="1+")
    error_code: int = field(INT16, means=Meaning.ERROR)
    producer_id: int = field(INT64, means=Meaning.PRODUCER_ID, default=-1)
    producer_epoch: int = field(INT16, means=Meaning.PRODUCER_EPOCH)
    ongoing_txn_producer_id: int = field(
        INT64, means=Meaning.PRODUCER_ID, versions="6+", default=-1
    )
    ongoing_txn_producer_epoch: int = field(
        INT16, means=Meaning.PRODUCER_EPOCH, versions="6+", default=-1
    )
