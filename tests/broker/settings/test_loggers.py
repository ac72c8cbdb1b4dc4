"""Levels of loggers: a logger without its own level has that of the root."""

from __future__ import annotations

import logging

from minibroker.broker.settings.loggers import LEVELS, LOGGERS, ROOT_LOGGER, logger_levels


def test_loggers_without_own_level_follow_the_root() -> None:
    assert set(logger_levels({}).values()) == {"INFO"}
    levels = logger_levels({ROOT_LOGGER: "WARN", "minibroker.storage": "TRACE"})
    assert levels.pop("minibroker.storage") == "TRACE"
    assert set(levels.values()) == {"WARN"}
    assert levels.keys() == set(LOGGERS) - {"minibroker.storage"}


def test_levels_have_the_numbers_of_pythons_logging() -> None:
    assert LEVELS["WARN"] == logging.WARNING
    assert LEVELS["FATAL"] == logging.CRITICAL
