"""Loggers of the broker whose levels can be changed while it runs, and the valid levels.

Owns their names as admin clients see them; it must never set a level. The invariant: ``root`` is
above all others, and a logger without a level of its own has that of the nearest one above. Kafka's
``LoggingController``; its levels are lost with a restart, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

ROOT_LOGGER: Final = "root"

LOGGERS: Final = (
    ROOT_LOGGER,
    "minibroker.acceptor",
    "minibroker.cluster",
    "minibroker.control",
    "minibroker.controller",
    "minibroker.coordinator",
    "minibroker.io-worker",
    "minibroker.network",
    "minibroker.processor",
    "minibroker.recorder",
    "minibroker.storage",
    "minibroker.zookeeper",
)
"""Each process of a role logs as its role."""

LEVELS: Final[Mapping[str, int]] = {
    "TRACE": 5,
    "DEBUG": 10,
    "INFO": 20,
    "WARN": 30,
    "ERROR": 40,
    "FATAL": 50,
}
"""Kafka's names of levels with the numbers of Python's."""

DEFAULT_LEVEL: Final = "INFO"


def logger_levels(changed: Mapping[str, str]) -> dict[str, str]:
    """The level of every logger, given the levels that were changed."""
    root = changed.get(ROOT_LOGGER, DEFAULT_LEVEL)
    return {name: changed.get(name, root) for name in LOGGERS}
