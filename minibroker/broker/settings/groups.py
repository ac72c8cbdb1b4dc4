"""Configs of groups, and the broker settings that are their defaults and bounds.

Owns the declarations of group configs and their validation; it must never know which groups exist.
The invariant: a config that is accepted can be read by every role. A bound is the value of the
broker setting if that is supported, else Kafka's default of it. Kafka's ``GroupConfig``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeVar

from minibroker.broker.settings.setting import (
    BROKER_SETTINGS,
    GROUP_SETTINGS,
    Scope,
    Setting,
)
from minibroker.broker.settings.settings import Settings
from minibroker.broker.settings.types import (
    BOOLEAN,
    INT,
    INT_MAX,
    LIST,
    LONG,
    STRING,
    BadValueError,
    SettingType,
    Valid,
    at_least,
    one_of,
)

T = TypeVar("T")

_SHARE: Final = "share groups are not served"
_STREAMS: Final = "the streams group protocol is not served"
_OFFLOAD: Final = "assignments are computed at once"
_REASONS: Final = {"consumer": "", "share": _SHARE, "errors": _SHARE, "streams": _STREAMS}

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
    no_effect = _REASONS[protocol] or (_OFFLOAD if internal else "")
    return Setting(name, type, default, valid, scope=Scope.GROUP, doc=doc, no_effect=no_effect)


def _is_offset_reset(text: str) -> bool:
    return text in ("latest", "earliest") or _DURATION.fullmatch(text) is not None


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
        doc=f"Whether assignments of a {_protocol} group are computed in the background.")

CONSUMER_TIMES: Final[tuple[Setting[int], ...]] = tuple(
    GROUP_SETTINGS[f"consumer.{name}"]
    for name in ("session.timeout.ms", "heartbeat.interval.ms", "assignment.interval.ms"))
"""The times of a consumer group."""

_group("share.record.lock.duration.ms", INT, 30_000, at_least(1_000), lowest=15_000,
    highest=60_000, doc="How long a record is locked for the consumer that acquired it.")
_group("share.delivery.count.limit", INT, 5, at_least(2), lowest=2, highest=10,
    doc="How often the delivery of a record is tried.")
_group("share.partition.max.record.locks", INT, 2_000, at_least(100), lowest=100,
    highest=4_000, doc="The most records of a partition that are locked at a time.")
_group("share.auto.offset.reset", STRING, "latest", _OFFSET_RESET, own_default=True,
    doc="Where a share group starts to read a partition.")
_group("share.isolation.level", STRING, "read_uncommitted",
    valid=one_of("read_committed", "read_uncommitted"), own_default=True,
    doc="Whether a share group is given records of transactions before they are committed.")
_group("share.renew.acknowledge.enable", BOOLEAN, True, own_default=True,
    doc="Whether consumers may renew the locks of records.")
_DLQ_TOPIC: Final = _group("errors.deadletterqueue.topic.name", STRING, "", own_default=True,
    doc="The topic for records that cannot be delivered; empty if there is none.")
_group("errors.deadletterqueue.copy.record.enable", BOOLEAN, False, own_default=True,
    doc="Whether the record itself is copied to the dead-letter queue.")
_group("streams.num.standby.replicas", INT, 0, _COUNT, highest=2,
    doc="The number of standby replicas of each task.")
_group("streams.initial.rebalance.delay.ms", INT, 3_000, _COUNT,
    doc="How long the first rebalance of a new group waits for further members.")
_TAGS: Final = _group("streams.rack.aware.assignment.tags", LIST, (),
    doc="The client tags that standby replicas are distributed over.")
STREAMS_ASSIGNOR_NAME: Final = _group("streams.assignor.name", STRING, "sticky",
    doc="The assignor of tasks.")
_group("streams.task.offset.interval.ms", INT, 60_000, _POSITIVE, lowest=15_000,
    internal=True, doc="How often offsets of warm-up tasks are reported.")
_group("streams.num.warmup.replicas", INT, 2, _COUNT, highest=20, internal=True,
    doc="The most warm-up replicas of tasks.")
_group("streams.acceptable.recovery.lag", LONG, 10_000, _COUNT, internal=True,
    doc="The lag up to which a client counts as caught up.")

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


def default_of(settings: Settings, declared: Setting[Any]) -> Any:
    """The default of a group config with these broker settings."""
    synonym = BROKER_SETTINGS.get(broker_synonym(declared.name) or "")
    if synonym is None or synonym.type is not declared.type:
        return declared.default
    return settings[synonym]


def group_problem(settings: Settings, config: Mapping[str, str]) -> str | None:
    """Why a group cannot have this config, or None if it can."""
    for name in config:
        if name not in GROUP_SETTINGS:
            return f"Unknown group config name: {name}"
    tags = [tag.strip() for tag in config.get(_TAGS.name, "").split(",")]
    if len(set(tags)) < len(tags):
        return f"{_TAGS.name} must not contain duplicate tag keys."
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
    if values.get(_DLQ_TOPIC.name, "").startswith("__"):
        return f"{_DLQ_TOPIC.name}: DLQ topic name must not start with '__'"
    return None


def _limit(settings: Settings, bound: tuple[str, int] | None, unbounded: int) -> int:
    if bound is None:
        return unbounded
    name, default = bound
    declared = BROKER_SETTINGS.get(name)
    return default if declared is None else int(settings[declared])
