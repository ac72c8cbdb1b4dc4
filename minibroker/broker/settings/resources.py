"""Configs of groups and of client metrics (KIP-714), and the bounds of group configs.

Owns the declarations, their validation, the broker settings that are defaults and bounds of group
configs, and the patterns that select clients; it must never know which groups or clients exist.
Invariants: a config that is accepted can be read by every role; a bound is the value of the broker
setting if that is supported, else Kafka's default of it; patterns that are accepted compile, to so
few instructions that a property of a client never costs too much. Kafka's ``GroupConfig`` and
``ClientMetricsConfigs``, whose patterns are Java's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeVar

from minibroker.broker.patterns import CompiledPattern, InvalidPattern
from minibroker.broker.settings.setting import (
    BOOLEAN,
    BROKER_SETTINGS,
    CLIENT_METRICS_SETTINGS,
    GROUP_SETTINGS,
    INT,
    INT_MAX,
    LIST,
    LONG,
    STRING,
    BadValueError,
    Scope,
    Setting,
    SettingType,
    Valid,
    at_least,
    one_of,
)
from minibroker.broker.settings.settings import Settings

T = TypeVar("T")

_WARMUPS: Final = "no warm-up tasks are assigned, as in Kafka 4.4"
_OFFLOAD: Final = "assignments are computed at once"
_REASONS: Final = {"consumer": "", "share": "", "errors": "", "streams": ""}

_DURATION: Final = re.compile(
    r"by_duration:P(?=.)(\d+D)?(T(?=.)(\d+H)?(\d+M)?(\d+(\.\d{1,9})?S)?)?"
)


class ConfigBounds(NamedTuple):
    """The broker settings that bound a group config, with Kafka's defaults; None is no bound."""

    lowest: tuple[str, int] | None
    highest: tuple[str, int] | None


_BOUNDS: Final[dict[str, ConfigBounds]] = {}
_INTERNAL: Final[set[str]] = set()
_WITHOUT_SYNONYM: Final[set[str]] = set()


def _group(
    name: str,
    type: SettingType[T],  # noqa: A002 - as in `Setting`
    default: T,
    valid: Valid[Any] | None = None,
    *,
    doc: str,
    lowest: int | None = None,
    highest: int | None = None,
    internal: bool = False,
    own_default: bool = False,
    no_effect: str = "",
) -> Setting[T]:
    """Declare a group config.

    ``lowest`` and ``highest`` are Kafka's defaults of the broker settings ``group.….min.…`` and
    ``group.….max.…``. ``internal`` configs are described only if they are set. ``own_default``
    configs have no broker setting for their default.
    """
    protocol, _, rest = name.partition(".")
    bounds = [
        None if value is None else (f"group.{protocol}.{end}.{rest.removeprefix('num.')}", value)
        for end, value in (("min", lowest), ("max", highest))
    ]
    if any(bounds):
        _BOUNDS[name] = ConfigBounds(*bounds)
    if internal:
        _INTERNAL.add(name)
    if own_default:
        _WITHOUT_SYNONYM.add(name)
    no_effect = no_effect or _REASONS[protocol]
    return Setting(name, type, default, valid, scope=Scope.GROUP, doc=doc, no_effect=no_effect)


def _is_offset_reset(text: str) -> bool:
    return text in ("latest", "earliest") or _DURATION.fullmatch(text) is not None


def reset_duration_s(text: str) -> float | None:
    """The duration of an offset reset ``by_duration:…`` in seconds; None for the others."""
    found = _DURATION.fullmatch(text)
    if found is None:
        return None
    days, _, hours, minutes, seconds, _ = found.groups()
    parts = ((days, 86_400), (hours, 3_600), (minutes, 60), (seconds, 1))
    return sum(float(part[:-1]) * unit for part, unit in parts if part)


_OFFSET_RESET: Final[Valid[str]] = Valid(
    "latest, earliest or by_duration:<PnDTnHnMn.nS>", _is_offset_reset
)
_COUNT: Final = at_least(0)
_POSITIVE: Final = at_least(1)

# A table by hand: the row of a config ends with its description.
# fmt: off

for _protocol in ("consumer", "share", "streams"):
    _group(f"{_protocol}.session.timeout.ms", INT, 45_000, _POSITIVE, lowest=45_000,
        highest=60_000,
        doc=f"The time after which a silent member of a {_protocol} group is removed.")
    _group(f"{_protocol}.heartbeat.interval.ms", INT, 5_000, _POSITIVE, lowest=5_000,
        highest=15_000,
        doc=f"The interval of heartbeats that members of a {_protocol} group are given.")
    _group(f"{_protocol}.assignment.interval.ms", INT, 1_000, _COUNT, lowest=0,
        highest=15_000, doc=f"The shortest time between two assignments of a {_protocol} group.")
    _group(f"{_protocol}.assignor.offload.enable", BOOLEAN, True, internal=True,
        no_effect=_OFFLOAD,
        doc=f"Whether assignments of a {_protocol} group are computed in the background.")

_TIMES: Final = ("session.timeout.ms", "heartbeat.interval.ms", "assignment.interval.ms")
CONSUMER_TIMES: Final[tuple[Setting[int], ...]] = tuple(
    GROUP_SETTINGS[f"consumer.{name}"] for name in _TIMES)
"""The times of a consumer group."""
SHARE_TIMES: Final[tuple[Setting[int], ...]] = tuple(
    GROUP_SETTINGS[f"share.{name}"] for name in _TIMES)
"""The times of a share group."""
STREAMS_TIMES: Final[tuple[Setting[int], ...]] = tuple(
    GROUP_SETTINGS[f"streams.{name}"] for name in _TIMES)
"""The times of a streams group."""

SHARE_RECORD_LOCK_DURATION_MS: Final = _group("share.record.lock.duration.ms", INT, 30_000,
    at_least(1_000), lowest=15_000, highest=60_000,
    doc="How long a record is locked for the consumer that acquired it.")
SHARE_DELIVERY_COUNT_LIMIT: Final = _group("share.delivery.count.limit", INT, 5, at_least(2),
    lowest=2, highest=10, doc="How often the delivery of a record is tried.")
SHARE_PARTITION_MAX_RECORD_LOCKS: Final = _group("share.partition.max.record.locks", INT, 2_000,
    at_least(100), lowest=100, highest=4_000,
    doc="The most records of a partition that are locked at a time.")
SHARE_AUTO_OFFSET_RESET: Final = _group("share.auto.offset.reset", STRING, "latest",
    _OFFSET_RESET, own_default=True, doc="Where a share group starts to read a partition.")
SHARE_ISOLATION_LEVEL: Final = _group("share.isolation.level", STRING, "read_uncommitted",
    valid=one_of("read_committed", "read_uncommitted"), own_default=True,
    doc="Whether a share group is given records of transactions before they are committed.")
SHARE_RENEW_ACKNOWLEDGE_ENABLE: Final = _group("share.renew.acknowledge.enable", BOOLEAN, True,
    own_default=True, doc="Whether consumers may renew the locks of records.")
DLQ_TOPIC_NAME: Final = _group("errors.deadletterqueue.topic.name", STRING, "", own_default=True,
    doc="The topic for records that cannot be delivered; empty if there is none.")
DLQ_COPY_RECORD_ENABLE: Final = _group("errors.deadletterqueue.copy.record.enable", BOOLEAN,
    False, own_default=True,
    doc="Whether the record itself is copied to the dead-letter queue.")
STREAMS_NUM_STANDBY_REPLICAS: Final = _group("streams.num.standby.replicas", INT, 0, _COUNT,
    highest=2, doc="The number of standby replicas of each task.")
STREAMS_INITIAL_REBALANCE_DELAY_MS: Final = _group("streams.initial.rebalance.delay.ms", INT,
    3_000, _COUNT, doc="How long the first rebalance of a new group waits for further members.")
STREAMS_RACK_AWARE_ASSIGNMENT_TAGS: Final = _group("streams.rack.aware.assignment.tags", LIST, (),
    doc="The client tags that standby replicas are distributed over.")
STREAMS_ASSIGNOR_NAME: Final = _group("streams.assignor.name", STRING, "sticky",
    doc="The assignor of tasks.")
STREAMS_TASK_OFFSET_INTERVAL_MS: Final = _group("streams.task.offset.interval.ms", INT, 60_000,
    _POSITIVE, lowest=15_000, internal=True,
    doc="How often offsets of tasks are reported.")
_group("streams.num.warmup.replicas", INT, 2, _COUNT, highest=20, internal=True,
    no_effect=_WARMUPS, doc="The most warm-up replicas of tasks.")
STREAMS_ACCEPTABLE_RECOVERY_LAG: Final = _group("streams.acceptable.recovery.lag", LONG, 10_000,
    _COUNT, internal=True, doc="The lag up to which a client counts as caught up.")

# fmt: on

_SYNONYM_NAMES: Final = {STREAMS_ASSIGNOR_NAME.name: "group.streams.assignors"}
_ASSIGNORS: Final = ("sticky",)


def broker_synonym(name: str) -> str | None:
    """The name of the broker setting that is the default of a group config, or None."""
    if name in _WITHOUT_SYNONYM:
        return None
    return _SYNONYM_NAMES.get(name, f"group.{name}")


def is_described(name: str, overrides: Mapping[str, str]) -> bool:
    """Whether a config is described: internal ones are only if they are set."""
    return name not in _INTERNAL or name in overrides


def stand_in(declared: Setting[Any]) -> Setting[Any] | None:
    """The broker setting whose value is the default of a group config, or None."""
    synonym = BROKER_SETTINGS.get(broker_synonym(declared.name) or "")
    return None if synonym is None or synonym.type is not declared.type else synonym


def default_of(settings: Settings, declared: Setting[Any]) -> Any:
    """The default of a group config with these broker settings."""
    synonym = stand_in(declared)
    return declared.default if synonym is None else settings[synonym]


def group_problem(settings: Settings, config: Mapping[str, str]) -> str | None:
    """Why a group cannot have this config, or None if it can."""
    for name in config:
        if name not in GROUP_SETTINGS:
            return f"Unknown group config name: {name}"
    name = STREAMS_RACK_AWARE_ASSIGNMENT_TAGS.name
    tags = [tag.strip() for tag in config.get(name, "").split(",")]
    if len(set(tags)) < len(tags):
        return f"{name} must not contain duplicate tag keys."
    values = {}
    for name, text in config.items():
        try:
            values[name] = GROUP_SETTINGS[name].parse(text)
        except BadValueError as error:
            return f"Invalid value {text} for configuration {name}: {error}"
    return _relation_problem(settings, values)


def _relation_problem(settings: Settings, values: Mapping[str, Any]) -> str | None:
    for name, bound in _BOUNDS.items():
        low, high = _limit(settings, bound.lowest, 0), _limit(settings, bound.highest, INT_MAX)
        if name in values and not low <= values[name] <= high:
            return f"{name} must be in the range {low} to {high} inclusive."
    assignor = values.get(STREAMS_ASSIGNOR_NAME.name, _ASSIGNORS[0])
    if assignor not in _ASSIGNORS:
        known = ", ".join(_ASSIGNORS)
        return (
            f"{STREAMS_ASSIGNOR_NAME.name} '{assignor}' is not a registered task assignor. "
            f"Registered assignors are: [{known}]."
        )
    for protocol in ("consumer", "share", "streams"):
        session, heartbeat = f"{protocol}.session.timeout.ms", f"{protocol}.heartbeat.interval.ms"
        if session in values or heartbeat in values:
            times = [
                values.get(name, default_of(settings, GROUP_SETTINGS[name]))
                for name in (session, heartbeat)
            ]
            if times[0] <= times[1]:
                return f"{session} must be greater than {heartbeat}"
    if values.get(DLQ_TOPIC_NAME.name, "").startswith("__"):
        return f"{DLQ_TOPIC_NAME.name}: DLQ topic name must not start with '__'"
    return None


def _limit(settings: Settings, bound: tuple[str, int] | None, unbounded: int) -> int:
    if bound is None:
        return unbounded
    name, default = bound
    declared = BROKER_SETTINGS.get(name)
    return default if declared is None else int(settings[declared])


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
