"""Settings of groups: Kafka's defaults, and the one that is quicker on a laptop."""

from __future__ import annotations

from minibroker.broker import settings as config
from minibroker.broker.settings import Settings


def test_group_defaults_match_kafka_except_initial_rebalance_delay() -> None:
    for profile, delay_ms in (("laptop", 100), ("kafka", 3000)):
        settings = Settings.from_sources(profile=profile)
        assert settings[config.GROUP_INITIAL_REBALANCE_DELAY_MS] == delay_ms
        assert settings[config.GROUP_MIN_SESSION_TIMEOUT_MS] == 6_000
        assert settings[config.GROUP_MAX_SESSION_TIMEOUT_MS] == 1_800_000
        assert settings[config.OFFSETS_TOPIC_NUM_PARTITIONS] == 50
        assert settings[config.OFFSETS_RETENTION_MINUTES] == 10_080
        assert settings[config.OFFSET_METADATA_MAX_BYTES] == 4096
