"""Errors that fault rules may put into responses, because clients may get them at any time.

Owns the table of these errors by API. It must never know rules or clients. Invariant: a client that
retries, or starts its transaction or membership again, recovers from each of them.
"""

from __future__ import annotations

from typing import Final

_COORDINATOR: Final = (
    "COORDINATOR_LOAD_IN_PROGRESS",
    "COORDINATOR_NOT_AVAILABLE",
    "NOT_COORDINATOR",
    "REQUEST_TIMED_OUT",
)
_TRANSACTION: Final = (*_COORDINATOR, "CONCURRENT_TRANSACTIONS")
_LEADER: Final = ("NOT_LEADER_OR_FOLLOWER", "REQUEST_TIMED_OUT", "UNKNOWN_SERVER_ERROR")
_FENCED: Final = ("INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED", "TRANSACTION_ABORTABLE")
_SHARE_SESSION: Final = ("SHARE_SESSION_NOT_FOUND", "INVALID_SHARE_SESSION_EPOCH")
_GENERATION: Final = ("UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION", "REBALANCE_IN_PROGRESS")

TRANSACTION_ERRORS: Final = {
    "InitProducerId": _TRANSACTION,
    "AddPartitionsToTxn": (*_TRANSACTION, *_FENCED),
    "AddOffsetsToTxn": (*_TRANSACTION, *_FENCED),
    "TxnOffsetCommit": (*_COORDINATOR, "UNSTABLE_OFFSET_COMMIT", *_FENCED),
    "EndTxn": (*_TRANSACTION, *_FENCED),
}
GROUP_ERRORS: Final = {
    "JoinGroup": (*_COORDINATOR, "UNKNOWN_MEMBER_ID"),
    "SyncGroup": (*_COORDINATOR, *_GENERATION),
    "Heartbeat": (*_COORDINATOR, *_GENERATION),
    "LeaveGroup": (*_COORDINATOR, "UNKNOWN_MEMBER_ID"),
    "OffsetCommit": (*_COORDINATOR, *_GENERATION),
}
CONSUMER_GROUP_ERRORS: Final = {
    "ConsumerGroupHeartbeat": (*_COORDINATOR, "UNKNOWN_MEMBER_ID", "FENCED_MEMBER_EPOCH"),
    "OffsetCommit": GROUP_ERRORS["OffsetCommit"],
}
SHARE_GROUP_ERRORS: Final = {
    "ShareGroupHeartbeat": CONSUMER_GROUP_ERRORS["ConsumerGroupHeartbeat"],
    "ShareFetch": (*_LEADER, *_SHARE_SESSION),
    "ShareAcknowledge": (*_LEADER, *_SHARE_SESSION, "INVALID_RECORD_STATE"),
}
STREAMS_GROUP_ERRORS: Final = {
    "StreamsGroupHeartbeat": CONSUMER_GROUP_ERRORS["ConsumerGroupHeartbeat"],
    "StreamsGroupTopologyDescriptionUpdate": (*_COORDINATOR, "UNKNOWN_MEMBER_ID"),
    "OffsetCommit": GROUP_ERRORS["OffsetCommit"],
}
DATA_ERRORS: Final = {
    "Produce": (*_LEADER, "NOT_ENOUGH_REPLICAS", "INVALID_PRODUCER_EPOCH"),
    "Fetch": (*_LEADER, "KAFKA_STORAGE_ERROR"),
    "OffsetFetch": (*_COORDINATOR, "UNSTABLE_OFFSET_COMMIT"),
}
GROUPS_ERRORS: Final = (
    GROUP_ERRORS | CONSUMER_GROUP_ERRORS | SHARE_GROUP_ERRORS | STREAMS_GROUP_ERRORS
)
ERRORS: Final = TRANSACTION_ERRORS | GROUPS_ERRORS | DATA_ERRORS
"""Errors of each API that a client may get at any time."""
