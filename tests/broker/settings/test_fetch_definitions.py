"""Settings of Fetch requests: defaults are Kafka's."""

from __future__ import annotations

import pytest

from minibroker.broker.settings import (
    FETCH_MAX_BYTES,
    MAX_INCREMENTAL_FETCH_SESSION_CACHE_SLOTS,
    ConfigError,
    Settings,
)


def test_fetch_settings_have_kafkas_defaults() -> None:
    settings = Settings.from_sources()
    assert settings[FETCH_MAX_BYTES] == 55 * 1024 * 1024
    assert settings[MAX_INCREMENTAL_FETCH_SESSION_CACHE_SLOTS] == 1000


def test_negative_number_of_session_slots_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"max\.incremental\.fetch\.session\.cache\.slots"):
        Settings.from_sources(pairs=["max.incremental.fetch.session.cache.slots=-1"])
