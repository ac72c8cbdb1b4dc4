"""Rates of new connections, and how long a new connection must wait for them.

Owns the rates of the broker, of each listener and of each limited address (KIP-612). It must never
wait, close a connection or read a clock: ``now_ms`` is an argument. Invariant: a connection is
recorded once in the rates of broker and listener, or not at all if the rate of its address was
exceeded; the inter-broker listener does not count for the broker's rate. The rate of an address is
forgotten an hour after its last connection, and there are at most ``IPS_MAX``. Kafka's
``ConnectionQuotas``.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple

from minibroker.broker.quotas.rate import Average, Rate

UNLIMITED: Final = 2**31 - 1
IPS_MAX: Final = 100_000
"""Addresses whose rates are kept: 65 MB if all connect every second.

Beyond that, the address without a new connection for the longest time is forgotten.
"""

IP_EXPIRES_MS: Final = 3_600_000
"""Time without new connections after which an address is forgotten, as in Kafka."""


@dataclass(frozen=True)
class ConnectionRateLimits:
    """Limits in connections per second.

    A listener without its own limit is limited by ``total`` only; the rate of an address without a
    limit is not measured. ``protected`` as in ``ConnectionCountLimits``.
    """

    total: float = UNLIMITED
    listeners: Mapping[str, float] = field(default_factory=dict)
    ips: Mapping[str, float] = field(default_factory=dict)
    ip_default: float | None = None
    protected: str | None = None

    def of_listener(self, listener: str) -> float:
        """Return the limit of a listener."""
        return self.listeners.get(listener, self.total)

    def of_ip(self, ip: str) -> float | None:
        """Return the limit of an address."""
        return self.ips.get(ip, self.ip_default)


class RateFigures(NamedTuple):
    """Rates per second and average throttle times in ms; times are NaN if no connection waited."""

    broker: float
    listeners: dict[str, float]
    ips: dict[str, float]
    throttle_ms: dict[str, float]
    ip_throttle_ms: dict[str, float]


class _IpRate(Rate):
    __slots__ = ("last_ms",)
    last_ms: int


class ConnectionRates:
    """Rates of a broker whose listeners are known from the start."""

    def __init__(self, listeners: list[str], samples: int, window_ms: int) -> None:
        """``samples`` and ``window_ms`` as in ``Rate``; no delay is longer than a window."""
        self.limits = ConnectionRateLimits()
        self._samples = samples
        self._window_ms = window_ms
        self._broker = self._new_rate()
        self._listeners = {listener: self._new_rate() for listener in listeners}
        self._ips: OrderedDict[str, _IpRate] = OrderedDict()
        self._throttle = {listener: Average() for listener in listeners}
        self._ip_throttle = {listener: Average() for listener in listeners}

    def _new_rate(self) -> Rate:
        return Rate(self._samples, self._window_ms)

    def record(self, listener: str, now_ms: int) -> int:
        """Record a connection; return how long it must wait, in ms."""
        self._record(listener, 1, now_ms)
        limits = self.limits
        rate = self._listeners[listener]
        delay_ms = rate.throttle_ms(limits.of_listener(listener), now_ms, self._window_ms)
        if listener != limits.protected:
            broker_ms = self._broker.throttle_ms(limits.total, now_ms, self._window_ms)
            delay_ms = max(delay_ms, broker_ms)
        if delay_ms > 0:
            self._throttle[listener].record(delay_ms, now_ms)
        return delay_ms

    def exceeds_listener_limit(self, listener: str, now_ms: int) -> bool:
        """Whether a listener exceeds its own limit."""
        return self._listeners[listener].measure(now_ms) > self.limits.of_listener(listener)

    def record_ip(self, listener: str, ip: str, now_ms: int) -> int:
        """Record a connection of an address; return how long it must be delayed, in ms.

        If it must be delayed, it is recorded nowhere, and its record by ``record`` is removed.
        """
        delay_ms = self._ip_delay(ip, now_ms)
        if delay_ms > 0:
            self._record(listener, -1, now_ms)
            self._ip_throttle[listener].record(delay_ms, now_ms)
        return delay_ms

    def repeat_ip_decision(self, ip: str, now_ms: int, *, admitted: bool) -> None:
        """Record a connection of an address as when it was admitted, or not, before."""
        rate = self._ip_rate(ip, now_ms)
        rate.record(1, now_ms)
        rate.purge(now_ms)
        if not admitted:
            rate.record(-1, now_ms)

    def admit_delayed(self, listener: str, ip: str, now_ms: int) -> bool:
        """Whether a delayed connection may be admitted now; if so, record it everywhere."""
        if self._ip_delay(ip, now_ms) > 0:
            return False
        self._record(listener, 1, now_ms)
        return True

    def _ip_delay(self, ip: str, now_ms: int) -> int:
        limit = self.limits.of_ip(ip)
        if limit is None:
            return 0
        rate = self._ip_rate(ip, now_ms)
        rate.record(1, now_ms)
        delay_ms = rate.throttle_ms(limit, now_ms, self._window_ms)
        if delay_ms > 0:
            rate.record(-1, now_ms)
        return delay_ms

    def _ip_rate(self, ip: str, now_ms: int) -> Rate:
        self._expire_ips(now_ms)
        rate = self._ips.get(ip)
        if rate is None:
            if len(self._ips) >= IPS_MAX:
                self._ips.popitem(last=False)
            rate = self._ips[ip] = _IpRate(self._samples, self._window_ms)
        rate.last_ms = now_ms
        self._ips.move_to_end(ip)
        return rate

    def _expire_ips(self, now_ms: int) -> None:
        while self._ips:
            ip, oldest = next(iter(self._ips.items()))
            if now_ms - oldest.last_ms <= IP_EXPIRES_MS:
                return
            del self._ips[ip]

    def _record(self, listener: str, value: int, now_ms: int) -> None:
        if listener != self.limits.protected:
            self._broker.record(value, now_ms)
        self._listeners[listener].record(value, now_ms)

    def of_ip(self, ip: str, now_ms: int) -> float | None:
        """Return the rate of an address, or None if it has no limit."""
        if self.limits.of_ip(ip) is None:
            return None
        rate = self._ips.get(ip)
        return 0.0 if rate is None else rate.measure(now_ms)

    def figures(self, now_ms: int, ips_max: int) -> RateFigures:
        """Return all rates; of addresses the ``ips_max`` with the latest connections."""
        self._expire_ips(now_ms)
        latest = islice(reversed(self._ips.items()), ips_max)
        return RateFigures(
            self._broker.measure(now_ms),
            {name: rate.measure(now_ms) for name, rate in self._listeners.items()},
            {ip: rate.measure(now_ms) for ip, rate in latest},
            _averages(self._throttle, now_ms),
            _averages(self._ip_throttle, now_ms),
        )


def _averages(averages: Mapping[str, Average], now_ms: int) -> dict[str, float]:
    measured = {name: average.measure(now_ms) for name, average in averages.items()}
    return {name: value for name, value in measured.items() if not math.isnan(value)}
