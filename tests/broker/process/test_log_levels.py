"""Log levels follow the image."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

import pytest

from minibroker.broker.metadata.image import BROKER_LOGGER, Image
from minibroker.broker.metrics.log import EventLog
from minibroker.broker.process.log_levels import follow_log_levels
from minibroker.broker.settings import Settings

SETTINGS = Settings.from_sources()
NAMES = ("minibroker", "minibroker.storage", "minibroker.processor", "minibroker.processor-7")


def level(name: str) -> int:
    return logging.getLogger(name).getEffectiveLevel()


@pytest.fixture(autouse=True)
def _levels_as_before() -> Iterator[None]:
    loggers = [
        logger
        for logger in logging.root.manager.loggerDict.values()
        if isinstance(logger, logging.Logger)
    ]
    levels = {logger: logger.level for logger in loggers}
    yield
    for name, known in logging.root.manager.loggerDict.items():
        if isinstance(known, logging.Logger) and name.startswith("minibroker"):
            known.setLevel(levels.get(known, logging.NOTSET))


def test_loggers_of_all_parts_get_the_levels_of_the_image() -> None:
    EventLog("processor-7")
    levels = {"root": "WARN", "minibroker.processor": "DEBUG"}
    changed = replace(Image(), configs={(BROKER_LOGGER, "1"): levels})
    follow_log_levels(SETTINGS, Image(), changed)
    assert [level(name) for name in NAMES] == [30, 30, 10, 10]
    follow_log_levels(SETTINGS, changed, Image())
    assert [level(name) for name in NAMES] == [20, 20, 20, 20]


def test_levels_are_left_alone_if_the_image_has_the_same() -> None:
    logging.getLogger("minibroker").setLevel(logging.ERROR)
    follow_log_levels(SETTINGS, Image(), Image())
    of_another = replace(Image(), configs={(BROKER_LOGGER, "2"): {"root": "DEBUG"}})
    follow_log_levels(SETTINGS, Image(), of_another)
    assert level("minibroker") == logging.ERROR
