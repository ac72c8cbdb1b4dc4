"""Limits are read from the settings and must not contradict each other."""

from __future__ import annotations

import pytest

from minibroker.broker.groups.group import MEMBERS_MAX, GroupLimits
from minibroker.broker.settings import Settings


def test_limits_are_read_from_settings() -> None:
    pairs = {
        "group.min.session.timeout.ms": "7",
        "group.max.session.timeout.ms": "8",
        "group.max.size": "9",
        "group.initial.rebalance.delay.ms": "1500",
        "offset.metadata.max.bytes": "10",
        "offsets.retention.minutes": "2",
        "offsets.retention.check.interval.ms": "3000",
    }
    settings = Settings.from_sources(pairs=[f"{key}={value}" for key, value in pairs.items()])
    assert GroupLimits.from_settings(settings) == GroupLimits(
        session_timeout_ms_min=7,
        session_timeout_ms_max=8,
        members_max=9,
        initial_rebalance_delay_s=1.5,
        offset_metadata_bytes_max=10,
        offsets_retention_ms=120_000,
        retention_check_interval_s=3.0,
    )


def test_group_size_is_limited_without_setting() -> None:
    assert GroupLimits.from_settings(Settings.from_sources()).members_max == MEMBERS_MAX


def test_contradictory_settings_are_rejected() -> None:
    with pytest.raises(ValueError, match="lower the first or raise the second"):
        GroupLimits(session_timeout_ms_min=10, session_timeout_ms_max=9)
    with pytest.raises(ValueError, match="above 0"):
        GroupLimits(members_max=0)
