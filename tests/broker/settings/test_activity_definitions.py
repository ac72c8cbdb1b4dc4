"""Settings of the activity topic: disabled by default, and bounded."""

from __future__ import annotations

import sys

import pytest

from minibroker.broker.settings import (
    ACTIVITY_ENABLE,
    ACTIVITY_RETENTION_BYTES,
    ACTIVITY_SAMPLE,
    ConfigError,
    Settings,
)


@pytest.mark.parametrize("profile", ["laptop", "kafka"])
def test_activity_is_disabled_by_default(profile: str) -> None:
    settings = Settings.from_sources(profile=profile)
    assert not settings[ACTIVITY_ENABLE]
    assert settings[ACTIVITY_SAMPLE] == 1.0
    assert settings[ACTIVITY_RETENTION_BYTES] == 1 << 29


@pytest.mark.parametrize("share", ["0", "-0.5", "1.01"])
def test_activity_sample_outside_of_range_is_rejected(share: str) -> None:
    with pytest.raises(ConfigError, match="above 0 and at most 1"):
        Settings.from_sources(pairs=[f"activity.sample={share}"])


ENABLED = "activity.enable=true"


def test_arrow_without_pyarrow_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(
        ConfigError, match=r"pip install 'minibroker\[activity\]', or set it to json"
    ):
        Settings.from_sources(pairs=[ENABLED])
    for pairs in ([], [ENABLED, "activity.format=json"]):
        Settings.from_sources(pairs=pairs)


def test_unknown_activity_format_is_rejected() -> None:
    with pytest.raises(ConfigError, match="arrow, json"):
        Settings.from_sources(pairs=["activity.format=avro"])
