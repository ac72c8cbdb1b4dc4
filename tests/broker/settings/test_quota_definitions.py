"""Settings of quotas: nothing is limited by them, and the deprecated ones say so."""

from __future__ import annotations

import pytest

from minibroker.broker.settings import (
    CONTROLLER_QUOTA_WINDOW_NUM,
    QUOTA_CONSUMER_DEFAULT,
    QUOTA_PRODUCER_DEFAULT,
    QUOTA_THROTTLE_MODE,
    QUOTA_WINDOW_NUM,
    QUOTA_WINDOW_SIZE_SECONDS,
    ConfigError,
    Settings,
)
from minibroker.broker.settings.types import LONG_MAX


def test_quota_defaults_match_kafka() -> None:
    settings = Settings.from_sources()
    assert settings[QUOTA_WINDOW_NUM] == settings[CONTROLLER_QUOTA_WINDOW_NUM] == 11
    assert settings[QUOTA_WINDOW_SIZE_SECONDS] == 1
    assert settings[QUOTA_PRODUCER_DEFAULT] == settings[QUOTA_CONSUMER_DEFAULT] == LONG_MAX
    assert settings[QUOTA_THROTTLE_MODE] == "mute"


@pytest.mark.parametrize("setting", [QUOTA_PRODUCER_DEFAULT, QUOTA_CONSUMER_DEFAULT])
def test_deprecated_setting_is_documented_as_deprecated(setting: object) -> None:
    assert getattr(setting, "doc").startswith("Deprecated")  # noqa: B009 - any setting will do


@pytest.mark.parametrize("pair", ["quota.throttle.mode=wait", "quota.window.num=0"])
def test_invalid_quota_config_is_rejected(pair: str) -> None:
    with pytest.raises(ConfigError, match="must be"):
        Settings.from_sources(pairs=[pair])
