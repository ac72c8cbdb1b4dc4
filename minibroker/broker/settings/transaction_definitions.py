"""Settings of transactions.

Owns their declarations; like ``definitions``, it must never read a file or hold a configured value.
The invariant: names and units are Kafka's.  Echoes ``TransactionLogConfig`` and
``TransactionStateManagerConfig``.
"""

from __future__ import annotations

from minibroker.broker.settings.setting import setting
from minibroker.broker.settings.types import BOOLEAN, INT, SHORT, at_least, between

_ONE_REPLICA = "it always has one replica, because there is one broker"

TRANSACTION_STATE_LOG_NUM_PARTITIONS = setting(
    "transaction.state.log.num.partitions",
    INT,
    default=50,
    valid=between(1, 1000),
    doc="The number of partitions of `__transaction_state`. Transactional ids are assigned to "
    "partitions by hash, so do not change it for an existing data directory.",
)
TRANSACTION_STATE_LOG_REPLICATION_FACTOR = setting(
    "transaction.state.log.replication.factor",
    SHORT,
    default=1,
    kafka_default=3,
    valid=at_least(1),
    doc="The number of replicas of `__transaction_state`.",
    no_effect=_ONE_REPLICA,
)
TRANSACTION_STATE_LOG_MIN_ISR = setting(
    "transaction.state.log.min.isr",
    INT,
    default=1,
    kafka_default=2,
    valid=at_least(1),
    doc="The number of in-sync replicas that a write to `__transaction_state` needs.",
    no_effect=_ONE_REPLICA,
)
TRANSACTION_STATE_LOG_SEGMENT_BYTES = setting(
    "transaction.state.log.segment.bytes",
    INT,
    default=100 * 1024 * 1024,
    valid=at_least(14),
    doc="The segment size of `__transaction_state`, in bytes.",
)
TRANSACTION_MAX_TIMEOUT_MS = setting(
    "transaction.max.timeout.ms",
    INT,
    default=15 * 60 * 1000,
    valid=at_least(1),
    doc="The maximum `transaction.timeout.ms` of a producer, in milliseconds. An open transaction "
    "keeps consumers with `isolation.level=read_committed` waiting.",
)
TRANSACTION_PARTITION_VERIFICATION_ENABLE = setting(
    "transaction.partition.verification.enable",
    BOOLEAN,
    default=True,
    dynamic=True,
    doc="Whether the first batch of a transaction on a partition is appended only if the "
    "transaction coordinator confirms that the transaction includes the partition. Clients of "
    "transaction version 2 are verified in any case.",
)
TRANSACTIONAL_ID_EXPIRATION_MS = setting(
    "transactional.id.expiration.ms",
    INT,
    default=7 * 24 * 3_600_000,
    valid=at_least(1),
    doc="How long a transactional id without an open transaction is kept after its last use, in "
    "milliseconds.",
)
TRANSACTION_ABORT_TIMED_OUT_TRANSACTION_CLEANUP_INTERVAL_MS = setting(
    "transaction.abort.timed.out.transaction.cleanup.interval.ms",
    INT,
    default=10_000,
    valid=at_least(1),
    doc="How often transactions are checked for their timeout, in milliseconds.",
)
TRANSACTION_REMOVE_EXPIRED_TRANSACTION_CLEANUP_INTERVAL_MS = setting(
    "transaction.remove.expired.transaction.cleanup.interval.ms",
    INT,
    default=3_600_000,
    valid=at_least(1),
    doc="How often transactional ids are checked for expiry, in milliseconds.",
)
