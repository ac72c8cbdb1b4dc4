"""Settings of transactions: Kafka's defaults, except for replicas."""

from __future__ import annotations

from minibroker.broker import settings as config
from minibroker.broker.settings import Settings


def test_transaction_defaults_match_kafka() -> None:
    for profile, replicas, in_sync in (("laptop", 1, 1), ("kafka", 3, 2)):
        settings = Settings.from_sources(profile=profile)
        assert settings[config.TRANSACTION_STATE_LOG_NUM_PARTITIONS] == 50
        assert settings[config.TRANSACTION_STATE_LOG_SEGMENT_BYTES] == 104_857_600
        assert settings[config.TRANSACTION_STATE_LOG_REPLICATION_FACTOR] == replicas
        assert settings[config.TRANSACTION_STATE_LOG_MIN_ISR] == in_sync
        assert settings[config.TRANSACTION_MAX_TIMEOUT_MS] == 900_000
        assert settings[config.TRANSACTIONAL_ID_EXPIRATION_MS] == 604_800_000
        abort = config.TRANSACTION_ABORT_TIMED_OUT_TRANSACTION_CLEANUP_INTERVAL_MS
        assert settings[abort] == 10_000
        remove = config.TRANSACTION_REMOVE_EXPIRED_TRANSACTION_CLEANUP_INTERVAL_MS
        assert settings[remove] == 3_600_000
