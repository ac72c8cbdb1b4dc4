"""A bounded reader of OpenTelemetry metrics, as clients push them.

Owns the few fields of OTLP's protobuf messages that Kafka's clients fill: gauges and sums with
their names, attributes and numbers; everything else is skipped. It must never know a client.
Invariant: any bytes result in metrics or in ``InvalidMetrics``; at most ``FIELDS_MAX`` fields are
read and ``POINTS_MAX`` points kept. Kafka passes the bytes to a plug-in, which reads them with
OpenTelemetry's library.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

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
