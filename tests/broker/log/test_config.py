from __future__ import annotations

import dataclasses

import pytest

from minibroker.broker.log.config import LogConfig


def test_log_config_is_immutable() -> None:
    config = LogConfig()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.segment_bytes = 1  # type: ignore[misc]
    assert dataclasses.replace(config, segment_bytes=1).segment_bytes == 1


def test_log_config_defaults_match_kafka() -> None:
    config = LogConfig()
    assert (config.segment_bytes, config.max_message_bytes) == (1 << 30, 1048588)
    assert (config.segment_ms, config.retention_ms) == (604_800_000, 604_800_000)
    assert (config.retention_bytes, config.file_delete_delay_ms) == (-1, 60_000)
    assert (config.index_interval_bytes, config.segment_index_bytes) == (4096, 10 << 20)
    assert (config.timestamp_before_max_ms, config.timestamp_after_max_ms) == (
        2**63 - 1,
        3_600_000,
    )
