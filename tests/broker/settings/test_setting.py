"""Declarations: a setting is declared once, with defaults that obey its own rule."""

from __future__ import annotations

import pytest

from minibroker.broker.settings.setting import BROKER_SETTINGS, Setting
from minibroker.broker.settings.types import INT, BadValueError, at_least


def test_duplicate_setting_declaration_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"num\.io\.threads is declared twice"):
        Setting("num.io.threads", INT, default=1, doc="")


def test_default_outside_of_constraint_is_rejected() -> None:
    with pytest.raises(ValueError, match="the default 0 is not at least 1"):
        Setting("test.only", INT, default=0, valid=at_least(1), doc="")
    with pytest.raises(ValueError, match="the default -1 is not at least 1"):
        Setting("test.only", INT, default=1, kafka_default=-1, valid=at_least(1), doc="")
    assert "test.only" not in BROKER_SETTINGS


def test_surrounding_whitespace_is_ignored() -> None:
    threads = BROKER_SETTINGS["num.io.threads"]
    assert threads.parse(" 3 ") == 3
    with pytest.raises(BadValueError, match="must be between 1 and 64"):
        threads.parse("65")
