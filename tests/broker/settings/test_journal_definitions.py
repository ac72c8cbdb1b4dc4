"""The journal is off by default, and its memory has a sensible minimum."""

from __future__ import annotations

import pytest

from minibroker.broker.settings import JOURNAL_ENABLE, JOURNAL_MAX_BYTES, ConfigError, Settings


def test_journal_by_default_is_off() -> None:
    settings = Settings.from_sources()
    assert settings[JOURNAL_ENABLE] is False
    assert settings[JOURNAL_MAX_BYTES] == 64 * 1024 * 1024


def test_journal_memory_below_the_minimum_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"journal\.max\.bytes"):
        Settings.from_sources(pairs=["journal.max.bytes=1000"])
