"""Client instances that push metrics: their subscriptions, their requests, their newest metrics.

Owns the rules of the two requests of KIP-714: when a client may ask and push, and the error
otherwise. It must never know a message; the time is an argument. Invariant: it keeps at most
``INSTANCES_MAX`` instances and ``POINTS_MAX`` points of each; the least recently seen is dropped.
Kafka's ``ClientMetricsManager`` and ``ClientMetricsInstance``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from minibroker.broker.telemetry.otlp import MetricPoint
from minibroker.broker.telemetry.subscriptions import (
    Selection,
    Subscription,
    TelemetryProperties,
    read_subscriptions,
)
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.types import Uuid

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
