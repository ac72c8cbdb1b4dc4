"""Configs of client metrics: which clients push which metrics, and how often (KIP-714).

Owns the declarations, their validation and the patterns that select clients; it must never know a
client. The invariant: patterns that are accepted compile, to so few instructions that a property
of a client never costs too much. Kafka's ``ClientMetricsConfigs``, whose patterns are Java's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from minibroker.broker.patterns.expression import CompiledPattern
from minibroker.broker.patterns.expression_parser import InvalidPattern
from minibroker.broker.settings.setting import CLIENT_METRICS_SETTINGS, Scope, Setting
from minibroker.broker.settings.types import INT, LIST, BadValueError

INTERVAL_MS_MIN: Final = 100
INTERVAL_MS_MAX: Final = 3_600_000
PATTERN_MAX: Final = 512
"""Characters of ``name=pattern``."""

PATTERN_INSTRUCTIONS_MAX: Final = 512
"""So 256 characters of a client's property cost at most 400,000 visits of an instruction."""

ALL_METRICS: Final = "*"
"""A prefix of metric names that selects all of them."""

# fmt: off
METRICS: Final = Setting("metrics", LIST, default=(), scope=Scope.CLIENT_METRICS,
    doc="Prefixes of the names of metrics that clients push, or `*` for all.")
INTERVAL_MS: Final = Setting("interval.ms", INT, default=300_000, scope=Scope.CLIENT_METRICS,
    doc="The interval of pushes, in milliseconds.")
MATCH: Final = Setting("match", LIST, default=(), scope=Scope.CLIENT_METRICS,
    doc="Which clients push, as `name=pattern` with a regular expression in RE2's syntax, which "
    "must match the whole property; empty for all clients.")
# fmt: on

MATCH_NAMES: Final = frozenset({
    "client_instance_id", "client_id", "client_software_name", "client_software_version",
    "client_source_address", "client_source_port",
})  # fmt: skip
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


def parse_match(patterns: tuple[str, ...]) -> dict[str, CompiledPattern]:
    """The patterns by what they select. Raises `BadValueError` for one that cannot be used."""
    found = {}
    for text in patterns:
        name, _, pattern = map(str.strip, text.partition("="))
        found[name] = _compiled(name, pattern, text)
    return found


def _compiled(name: str, pattern: str, text: str) -> CompiledPattern:
    problem = f"Illegal client matching pattern: {text[:PATTERN_MAX]}"
    if not pattern or "=" in pattern:
        raise BadValueError(f"{problem} (use name=pattern)")
    if name not in MATCH_NAMES:
        raise BadValueError(f"{problem} (the names are {', '.join(sorted(MATCH_NAMES))})")
    if len(text) > PATTERN_MAX:
        raise BadValueError(f"{problem}... (it has more than {PATTERN_MAX} characters)")
    try:
        return CompiledPattern(pattern, PATTERN_INSTRUCTIONS_MAX)
    except InvalidPattern as error:
        raise BadValueError(f"{problem} ({error})") from None
