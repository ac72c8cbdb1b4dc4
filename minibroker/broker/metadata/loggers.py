"""Rules for changes of log levels, which are configs that are not stored.

Owns the validation of an alteration of the broker's loggers. Invariant: the root logger always has
a level. Kafka's ``RuntimeLoggerManager``.
"""

from __future__ import annotations

from collections.abc import Sequence

from minibroker.broker.metadata.image import BROKER_LOGGER, EMPTY, ConfigChanged, Image
from minibroker.broker.metadata.topics import ChangeRejected
from minibroker.broker.settings import NODE_ID, Settings
from minibroker.broker.settings.loggers import LEVELS, LOGGERS, ROOT_LOGGER
from minibroker_protocol.errors import ErrorCode

SET, DELETE = 0, 1


def plan_levels(
    image: Image, settings: Settings, name: str, operations: Sequence[tuple[str, int, str | None]]
) -> ConfigChanged | ChangeRejected:
    """Return the levels of this broker's loggers after the operations, or why nothing changes.

    An operation is the name of a logger, Kafka's number of the operation, and a level.
    """
    own = str(settings[NODE_ID])
    if name != own:
        is_number = name.isascii() and name.isdigit()
        text = f"Node id must be an integer, but it is: {name}"
        if is_number:
            text = f"Unexpected node id. Expected {own}, but received {name}"
        return ChangeRejected(ErrorCode.INVALID_REQUEST, text)
    levels = dict(image.configs.get((BROKER_LOGGER, own), EMPTY))
    for logger, op, level in operations:
        problem = _problem(logger, op, level)
        if problem is not None:
            return problem
        if op == SET and level is not None:
            levels[logger] = level
        else:
            levels.pop(logger, None)
    return ConfigChanged(BROKER_LOGGER, own, levels)


def _problem(logger: str, op: int, level: str | None) -> ChangeRejected | None:
    if op not in (SET, DELETE):
        text = "Only SET and DELETE are allowed for the BROKER_LOGGER resource"
        return ChangeRejected(ErrorCode.INVALID_REQUEST, text)
    if logger not in LOGGERS:
        return ChangeRejected(ErrorCode.INVALID_CONFIG, f"Logger {logger} does not exist!")
    if op == SET and level not in LEVELS:
        text = f"Cannot set the log level of {logger} to {level} as it is not a supported log level"
        text += f". Valid log levels are {', '.join(sorted(LEVELS))}"
        return ChangeRejected(ErrorCode.INVALID_CONFIG, text)
    if op == DELETE and logger == ROOT_LOGGER:
        text = "Removing the log level of the root logger is not allowed"
        return ChangeRejected(ErrorCode.INVALID_REQUEST, text)
    return None
