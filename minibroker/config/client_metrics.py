"""Configs of client metrics: which clients push which metrics, and how often (KIP-714).

Owns the declarations, their validation and the patterns that select clients; it must never know a
client. The invariant: patterns that are accepted compile. Kafka's ``ClientMetricsConfigs``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from minibroker.config.setting import CLIENT_METRICS_SETTINGS, Scope, setting
from minibroker.config.types import INT, LIST, BadValueError

INTERVAL_MS_MIN: Final = 100
INTERVAL_MS_MAX: Final = 3_600_000
PATTERN_MAX: Final = 512
"""Characters of a pattern; a regular expression without a bound could take any time to compile."""

ALL_METRICS: Final = "*"
"""A prefix of metric names that selects all of them."""

METRICS: Final = setting(
    "metrics",
    LIST,
    default=(),
    scope=Scope.CLIENT_METRICS,
    doc="Prefixes of the names of metrics that clients push, or `*` for all.",
)
INTERVAL_MS: Final = setting(
    "interval.ms",
    INT,
    default=300_000,
    scope=Scope.CLIENT_METRICS,
    doc="The interval of pushes, in milliseconds.",
)
MATCH: Final = setting(
    "match",
    LIST,
    default=(),
    scope=Scope.CLIENT_METRICS,
    doc="Which clients push, as `name=pattern`; empty for all clients.",
)

MATCH_NAMES: Final = frozenset(
    {
        "client_instance_id",
        "client_id",
        "client_software_name",
        "client_software_version",
        "client_source_address",
        "client_source_port",
    }
)
"""What of a client a pattern can select."""


class InvalidSubscription(ValueError):
    """A config that Kafka answers with INVALID_REQUEST, unlike other invalid values."""


def check_client_metrics(config: Mapping[str, str]) -> None:
    """Raise `InvalidSubscription` or `BadValueError` if client metrics cannot have this config."""
    for name in config:
        if name not in CLIENT_METRICS_SETTINGS:
            raise InvalidSubscription(f"Unknown client metrics configuration: {name}")
    for name, text in config.items():
        try:
            CLIENT_METRICS_SETTINGS[name].parse(text)
        except BadValueError as error:
            problem = f"Invalid value {text} for configuration {name}: {error}"
            raise BadValueError(problem) from None
    interval_ms = INTERVAL_MS.parse(config.get(INTERVAL_MS.name, str(INTERVAL_MS.default)))
    if not INTERVAL_MS_MIN <= interval_ms <= INTERVAL_MS_MAX:
        raise InvalidSubscription(
            f"Invalid value {interval_ms} for {INTERVAL_MS.name}, interval must be between "
            f"{INTERVAL_MS_MIN} and {INTERVAL_MS_MAX} (1 hour)"
        )
    parse_match(MATCH.parse(config.get(MATCH.name, "")))


def parse_match(patterns: tuple[str, ...]) -> dict[str, re.Pattern[str]]:
    """The patterns by what they select. Raises `BadValueError` for one that cannot be used."""
    found = {}
    for text in patterns:
        parts = text.split("=")
        problem = BadValueError(f"Illegal client matching pattern: {text}")
        if len(parts) != 2 or parts[0].strip() not in MATCH_NAMES or len(text) > PATTERN_MAX:
            raise problem
        try:
            found[parts[0].strip()] = re.compile(parts[1].strip())
        except (re.error, RecursionError, OverflowError):
            raise problem from None
    return found
