"""Client instances that push metrics (KIP-714): subscriptions, requests, and their newest metrics.

Owns the match of clients with the client metrics configs, the combination of several subscriptions,
the rules of the two requests (when a client may ask and push, and the error otherwise), and a
bounded reader of the few fields of OpenTelemetry's protobuf messages that Kafka's clients fill:
gauges and sums with their names, attributes and numbers; everything else is skipped. It must never
know a message; the time is an argument. Invariants: the subscription id changes whenever the
metrics or the interval do; at most ``INSTANCES_MAX`` instances and ``POINTS_MAX`` points of each
are kept, and the least recently seen is dropped; any bytes result in metrics or in
``InvalidMetrics``, and at most ``FIELDS_MAX`` fields are read. Kafka's ``ClientMetricsManager`` and
``ClientMetricsInstance``, which pass the bytes to a plug-in.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from minibroker.broker.patterns import CompiledPattern
from minibroker.broker.settings.resources import (
    ALL_METRICS,
    INTERVAL_MS,
    MATCH,
    METRICS,
    parse_match,
)
from minibroker.broker.settings.setting import BadValueError
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.types import Uuid

POINTS_MAX: Final = 1000
"""Points that are kept of one push."""

FIELDS_MAX: Final = 100_000
"""Fields of all messages in one push; ``POINTS_MAX`` points of all attributes have fewer."""

TEXT_MAX: Final = 256
"""Characters that are kept of a name or an attribute."""

ATTRIBUTES_MAX: Final = 16
"""Attributes that are kept of a point."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_VARINT_BYTES_MAX: Final = 10
_MASK_64: Final = 2**64 - 1

Value = memoryview | int


class InvalidMetrics(ValueError):
    """Bytes that are not metrics of OTLP."""


class MetricPoint(NamedTuple):
    """One number of a metric."""

    name: str
    attributes: tuple[tuple[str, str], ...]
    value: float


def read_points(data: bytes | memoryview) -> list[MetricPoint]:
    """The points of a MetricsData message, at most ``POINTS_MAX``. Raises `InvalidMetrics`."""
    return _Reader().points(memoryview(data))


class _Reader:
    """Reads the messages of one push, and counts their fields."""

    def __init__(self) -> None:
        self._fields_left = FIELDS_MAX

    def points(self, data: memoryview) -> list[MetricPoint]:
        points: list[MetricPoint] = []
        for resource_metrics in self._messages(data, 1):
            for scope_metrics in self._messages(resource_metrics, 2):
                for metric in self._messages(scope_metrics, 2):
                    for point in self._metric_points(metric):
                        if len(points) < POINTS_MAX:
                            points.append(point)
        return points

    def _metric_points(self, metric: memoryview) -> Iterator[MetricPoint]:
        name, series = "", list[memoryview]()
        for number, value in self._fields(metric):
            if number == 1:
                name = _text(value)
            elif number in (5, 7):  # gauge, sum
                series.append(_message(value))
        for one in series:
            for data_point in self._messages(one, 1):
                yield self._point(name, data_point)

    def _point(self, name: str, data_point: memoryview) -> MetricPoint:
        attributes, number_value = list[tuple[str, str]](), 0.0
        for number, value in self._fields(data_point):
            if number == 7 and len(attributes) < ATTRIBUTES_MAX:
                attributes.append(self._attribute(_message(value)))
            elif number == 4:
                [number_value] = struct.unpack("<d", _number(value).to_bytes(8, "little"))
            elif number == 6:
                number_value = float(_signed(_number(value)))
        return MetricPoint(name, tuple(sorted(attributes)), number_value)

    def _attribute(self, pair: memoryview) -> tuple[str, str]:
        key = text = ""
        for number, value in self._fields(pair):
            if number == 1:
                key = _text(value)
            elif number == 2:
                text = self._any_value(_message(value))
        return key, text

    def _any_value(self, value: memoryview) -> str:
        for number, content in self._fields(value):
            if number == 1:
                return _text(content)
            if number == 2:
                return "true" if content else "false"
            if number == 3:
                return str(_signed(_number(content)))
            if number == 4:
                [decimal] = struct.unpack("<d", _number(content).to_bytes(8, "little"))
                return str(decimal)
        return ""

    def _messages(self, data: memoryview, wanted: int) -> Iterator[memoryview]:
        for number, value in self._fields(data):
            if number == wanted:
                yield _message(value)

    def _fields(self, data: memoryview) -> Iterator[tuple[int, Value]]:
        """Number and value of each field: bytes of a message or a text, or an unsigned number."""
        at = 0
        while at < len(data):
            if not self._fields_left:
                raise InvalidMetrics(f"there are more than {FIELDS_MAX} fields; push fewer metrics")
            self._fields_left -= 1
            number, value, at = _field(data, at)
            yield number, value


def _message(value: Value) -> memoryview:
    if isinstance(value, int):
        raise InvalidMetrics("a number where a message is expected")
    return value


def _number(value: Value) -> int:
    if not isinstance(value, int):
        raise InvalidMetrics("a message where a number is expected")
    return value


def _text(value: Value) -> str:
    try:
        return str(_message(value), "utf-8")[:TEXT_MAX]
    except UnicodeDecodeError:
        raise InvalidMetrics("a text is not UTF-8") from None


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


def _field(data: memoryview, at: int) -> tuple[int, Value, int]:
    """The number and the value of a field, and where the next one starts."""
    tag, at = _varint(data, at)
    number, kind = tag >> 3, tag & 7
    if number == 0:
        raise InvalidMetrics("a field has the number 0")
    if kind == _VARINT:
        value, at = _varint(data, at)
        return number, value, at
    if kind == _BYTES:
        size, at = _varint(data, at)
    elif kind in (_FIXED64, _FIXED32):
        size = 8 if kind == _FIXED64 else 4
    else:
        raise InvalidMetrics(f"a field has the unknown wire type {kind}")
    content = data[at : at + size]
    if len(content) < size:
        raise InvalidMetrics("a field is cut short")
    return number, content if kind == _BYTES else int.from_bytes(content, "little"), at + size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for index in range(_VARINT_BYTES_MAX):
        if at + index >= len(data):
            raise InvalidMetrics("a number is cut short")
        byte = data[at + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value & _MASK_64, at + index + 1
    raise InvalidMetrics("a number is too long")


MATCHED_MAX: Final = 256
"""Characters of a client's property that are matched with a pattern."""


class TelemetryProperties(NamedTuple):
    """What patterns can select, by the names of the config ``match``."""

    client_instance_id: str
    client_id: str
    client_software_name: str
    client_software_version: str
    client_source_address: str
    client_source_port: str


class Subscription(NamedTuple):
    """One config of client metrics."""

    metrics: tuple[str, ...]
    interval_ms: int
    patterns: Mapping[str, CompiledPattern]

    def matches(self, client: TelemetryProperties) -> bool:
        """Whether every pattern matches the client."""
        return all(
            pattern.matches(getattr(client, name)[:MATCHED_MAX])
            for name, pattern in self.patterns.items()
        )


class Selection(NamedTuple):
    """What a client has to push, and how often."""

    subscription_id: int
    metrics: tuple[str, ...]
    interval_ms: int


def read_subscriptions(configs: Iterable[Mapping[str, str]]) -> tuple[Subscription, ...]:
    """The subscriptions of valid configs."""
    found = []
    for config in configs:
        try:
            metrics = METRICS.parse(config.get(METRICS.name, ""))
            interval_ms = INTERVAL_MS.parse(config.get(INTERVAL_MS.name, str(INTERVAL_MS.default)))
            patterns = parse_match(MATCH.parse(config.get(MATCH.name, "")))
        except BadValueError:
            continue
        found.append(Subscription(metrics, interval_ms, patterns))
    return tuple(found)


def select(subscriptions: Iterable[Subscription], client: TelemetryProperties) -> Selection:
    """All metrics of the matching subscriptions, at the shortest of their intervals."""
    matching = [each for each in subscriptions if each.matches(client)]
    metrics = tuple(sorted({name for each in matching for name in each.metrics}))
    if ALL_METRICS in metrics:
        metrics = (ALL_METRICS,)
    interval_ms = min([INTERVAL_MS.default, *(each.interval_ms for each in matching)])
    text = f"{client.client_instance_id} {metrics} {interval_ms}"
    unsigned = zlib.crc32(text.encode())
    return Selection(unsigned - 2**32 if unsigned >= 2**31 else unsigned, metrics, interval_ms)


INSTANCES_MAX: Final = 500
EXPIRY_MS_MIN: Final = 60_000
"""An instance is dropped if it was silent for three intervals, and at least for this time."""

SERIES_MAX: Final = 1000
"""Points that are shown as metrics of the broker."""

_MAY_ASK_AGAIN: Final = (ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)


@dataclass(slots=True)
class ClientInstance:
    """One client; times are epoch milliseconds."""

    instance_id: Uuid
    client: TelemetryProperties
    selection: Selection
    subscriptions: tuple[Subscription, ...]
    asked_ms: int = 0
    pushed_ms: int = 0
    seen_ms: int = 0
    terminating: bool = False
    error: ErrorCode = ErrorCode.NONE
    problem: str = ""
    """Why the metrics of its last push could not be read."""
    pushes: int = 0
    points: list[MetricPoint] = field(default_factory=list)

    def is_expired(self, now_ms: int) -> bool:
        """Whether the client is gone."""
        return now_ms - self.seen_ms > max(EXPIRY_MS_MIN, 3 * self.selection.interval_ms)


class Push(NamedTuple):
    """A push before its metrics are read."""

    subscription_id: int
    terminating: bool
    is_known_compression: bool
    size_bytes: int


class ClientInstances:
    """The instances of a broker."""

    def __init__(self, size_max_bytes: int) -> None:
        self._size_max_bytes = size_max_bytes
        self._configs: tuple[Mapping[str, str], ...] = ()
        self._subscriptions: tuple[Subscription, ...] = ()
        self._known: dict[Uuid, ClientInstance] = {}

    def all(self) -> list[ClientInstance]:
        """All instances, the least recently seen one first."""
        return list(self._known.values())

    def follow(self, configs: Iterable[Mapping[str, str]]) -> None:
        """Use these configs of client metrics from now on."""
        newest = tuple(configs)
        if newest != self._configs:
            self._configs, self._subscriptions = newest, read_subscriptions(newest)

    @property
    def subscriptions(self) -> tuple[Subscription, ...]:
        """The present subscriptions."""
        return self._subscriptions

    def has_current(self, instance_id: Uuid) -> bool:
        """Whether the instance is known, with a selection of the present subscriptions."""
        instance = self._known.get(instance_id)
        return instance is not None and instance.subscriptions is self._subscriptions

    def add(
        self,
        instance_id: Uuid,
        client: TelemetryProperties,
        subscriptions: tuple[Subscription, ...],
        selection: Selection,
        now_ms: int,
    ) -> None:
        """Add an instance, or replace the selection that it had of other subscriptions."""
        before = self._known.get(instance_id)
        if before is not None and before.subscriptions is subscriptions:
            return
        added = ClientInstance(instance_id, client, selection, subscriptions, seen_ms=now_ms)
        if before is None:
            self._drop(now_ms)
        else:
            added.points, added.pushes = before.points, before.pushes
        self._known[instance_id] = added

    def ask(self, instance_id: Uuid, now_ms: int) -> ErrorCode | Selection:
        """Handle a request of a known instance for its subscription."""
        instance = self._see(instance_id, now_ms)
        last_ms = max(instance.asked_ms, instance.pushed_ms)
        if now_ms - last_ms < instance.selection.interval_ms:
            if instance.error not in _MAY_ASK_AGAIN:
                return ErrorCode.THROTTLING_QUOTA_EXCEEDED
        else:
            instance.asked_ms = now_ms
        instance.error = ErrorCode.NONE
        return instance.selection

    def check_push(self, instance_id: Uuid, push: Push, now_ms: int) -> ErrorCode:
        """Whether the metrics of a known instance are accepted; `keep` must follow if they are."""
        instance = self._see(instance_id, now_ms)
        error = self._push_problem(instance, push, now_ms)
        instance.terminating = instance.terminating or push.terminating
        instance.error = error
        return error

    def keep(self, instance_id: Uuid, points: list[MetricPoint] | str) -> None:
        """Keep the points of an accepted push; a text says why they could not be read."""
        instance = self._known.get(instance_id)
        if instance is None:
            return
        instance.problem = points if isinstance(points, str) else ""
        if isinstance(points, str):
            instance.error = ErrorCode.INVALID_RECORD
            return
        instance.pushes += 1
        if points:
            instance.points = points

    def _push_problem(self, instance: ClientInstance, push: Push, now_ms: int) -> ErrorCode:
        if instance.terminating:
            return ErrorCode.INVALID_REQUEST
        is_first = instance.asked_ms > instance.pushed_ms
        is_due = now_ms - instance.pushed_ms >= instance.selection.interval_ms
        if is_first or is_due:
            instance.pushed_ms = now_ms
        elif not push.terminating:
            return ErrorCode.THROTTLING_QUOTA_EXCEEDED
        if push.subscription_id != instance.selection.subscription_id:
            return ErrorCode.UNKNOWN_SUBSCRIPTION_ID
        if not push.is_known_compression:
            return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        if push.size_bytes > self._size_max_bytes:
            return ErrorCode.TELEMETRY_TOO_LARGE
        return ErrorCode.NONE

    def _see(self, instance_id: Uuid, now_ms: int) -> ClientInstance:
        """The instance, which becomes the most recently seen one."""
        instance = self._known[instance_id] = self._known.pop(instance_id)
        instance.seen_ms = now_ms
        return instance

    def _drop(self, now_ms: int) -> None:
        for gone in [one for one in self._known.values() if one.is_expired(now_ms)]:
            del self._known[gone.instance_id]
        while len(self._known) >= INSTANCES_MAX:
            del self._known[next(iter(self._known))]
