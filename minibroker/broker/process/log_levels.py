"""Levels of this process's loggers, which admin clients change as configs of broker loggers.

Sets the levels when the image has others. It must never know a request. Invariant: loggers of
processes that run in one interpreter share their levels. Kafka's ``Log4jCoreController``.
"""

from __future__ import annotations

from minibroker.broker.metadata.image import BROKER_LOGGER, EMPTY, Image
from minibroker.broker.metrics.log import apply_levels
from minibroker.broker.settings import NODE_ID, Settings
from minibroker.broker.settings.loggers import LEVELS, logger_levels


def follow_log_levels(settings: Settings, before: Image, after: Image) -> None:
    """Set the levels of the loggers if the configs of this broker's loggers have changed."""
    key = (BROKER_LOGGER, str(settings[NODE_ID]))
    changed = after.configs.get(key, EMPTY)
    if changed != before.configs.get(key, EMPTY):
        levels = logger_levels(changed)
        apply_levels({logger: LEVELS[level] for logger, level in levels.items()})
