"""Applies client quotas to the requests of one processor.

Owns which connections are throttled, and the throttle time in responses. What a request costs and
how long it is throttled are rules of ``quotas.manager``. Invariant: while no quota is set, a
request only checks that; a request that is answered before it is recorded is recorded before this
process does anything else; a throttled connection is read again when its throttle ends, and a
closed one is forgotten. Does what ``KafkaApis`` and ``RequestHandlerHelper`` do with
``QuotaManagers``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import trio

from minibroker.apis.base import Context
from minibroker.apis.fetch import is_follower_fetch
from minibroker.apis.registry import APIS
from minibroker.cluster.image import Image
from minibroker.cluster.quotas_in_force import QuotasInForce
from minibroker.config import QUOTA_THROTTLE_MODE
from minibroker.config.quota_definitions import DELAY
from minibroker.network.client_connection import ClientConnection
from minibroker.observability.definitions import QUOTA_QUEUE
from minibroker.observability.metrics import Series
from minibroker.process.environment import Environment
from minibroker.quotas.entity import QuotaType
from minibroker.quotas.manager import FETCH as BYTES_FETCHED
from minibroker.quotas.manager import PRODUCE as BYTES_PRODUCED
from minibroker.quotas.manager import Look, Mutated, Promise, Throttle, Who, larger
from minibroker.quotas.rate import NO_CAUSE, Cause
from minibroker.quotas.throttle import Throttled
from minibroker.runtime.clock import whole_ms
from minibroker.security.acl import Operation, Resource
from protocol.errors import ErrorCode
from protocol.messages.fetch import FetchResponse
from protocol.registry import ApiKey

if TYPE_CHECKING:
    from protocol.headers import RequestHeader

NS_PER_MS: Final = 1_000_000

# Used by every request: attribute access of an enumeration takes ten times as long.
_PRODUCE, _FETCH = ApiKey.PRODUCE, ApiKey.FETCH
_NUMBERS: Final[Mapping[int, int]] = {_PRODUCE: BYTES_PRODUCED, _FETCH: BYTES_FETCHED}
_OF_TIME, _OF_PRODUCERS = QuotaType.REQUEST, QuotaType.PRODUCE

LENGTH_BYTES: Final = 4
"""Size of a response's length field, which Kafka counts for a fetch."""


class QuotaChecks:
    """Results of the quota checks of one request, for its activity event."""

    # Defaults in the class: setting them for each request would take longer.
    produce: Look | None = None
    fetch: Look | None = None
    request: Look | None = None
    throttle_ms = 0
    back: int | None = None
    """Ordinal of the record that gives back bytes that were not fetched."""

    def note(self, look: Look) -> None:
        """Keep the result of a check."""
        # A dictionary by type would take twice the time, because the hash of a type is Python code.
        if look.kind is _OF_TIME:
            self.request = look
        elif look.kind is _OF_PRODUCERS:
            self.produce = look
        else:
            self.fetch = look


@dataclass(eq=False)
class RequestCost:
    """An executed request and its cost so far; see `is_exempt`."""

    header: RequestHeader
    request: Any
    response: Any
    exempt: bool
    who: Who
    now: float
    """Time when the response was known, in seconds of the broker's clock; it is recorded for then.
    """
    request_bytes: int
    response_bytes: int
    worked_ns: int
    quota_checks: QuotaChecks | None = None
    """Results of quota checks, if activity is recorded."""
    mutated: Mutated | None = None
    """What the request changed in the cluster metadata, if anything."""


class ClientQuotas:
    """Client quotas of one processor; ``run`` must be running to end throttles."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self.delays = env.settings[QUOTA_THROTTLE_MODE] == DELAY
        """Whether `throttle_before_response` is called instead of `throttle_after_response`."""
        self._in_force = QuotasInForce(env.settings, env.ledger)
        self.quotas = self._in_force.quotas
        self.throttled: Throttled[ClientConnection] = Throttled()
        self._sooner = trio.Event()
        env.metrics.watch_gauges(self._gauges)

    def _gauges(self) -> dict[Series, float]:
        if not self.active:
            return {}
        return {(QUOTA_QUEUE.name, (kind,)): self.throttled.size(kind) for kind in QuotaType}

    @property
    def active(self) -> bool:
        """Whether any quota is set."""
        return self.quotas.enabled

    def follow(self, image: Image) -> None:
        """Apply the quotas of an image."""
        self._in_force.follow(image)

    def fetch_bytes_max(self, client: ClientConnection, header: RequestHeader) -> int:
        """Return the most bytes that a client may fetch at once."""
        return self.quotas.fetch_bytes_max(quota_user(client, header), self._now_ms())

    def _now_ms(self) -> int:
        """Current time in milliseconds of the broker's clock."""
        return whole_ms(self._env.clock.now())

    def promise(self, client: ClientConnection, ctx: Context, request: Any) -> Promise | None:
        """Return a promise to record the request after its response, if that is possible."""
        number = _NUMBERS.get(ctx.header.api_key)
        if (
            number is None
            or client.is_sampled
            or self.delays
            or not _cannot_be_exempt(number, request)
        ):
            return None
        return self.quotas.promise(number, quota_user(client, ctx.header))

    def worked_on(self, client: ClientConnection, header: RequestHeader, network_ns: int) -> None:
        """Record work on a request since its promise was kept."""
        self.quotas.worked_on(quota_user(client, header), network_ns, self._now_ms())

    def throttle_after_response(self, client: ClientConnection, cost: RequestCost) -> Any | None:
        """Record a request, and throttle the client if a quota is exceeded.

        Return the response to send instead, or None if the original response can be sent.
        """
        quotas, quota_checks = self.quotas, cost.quota_checks
        quotas.looked = None if quota_checks is None else quota_checks.note
        now_ms = whole_ms(cost.now)
        throttle = self._charged(cost, now_ms)
        if throttle is None:
            return None
        self._start(client, cost, throttle, now_ms)
        response = cost.response
        if cost.header.api_key == _FETCH and not cost.exempt:
            back = quotas.not_fetched(cost.who, cost.response_bytes + LENGTH_BYTES, now_ms)
            if quota_checks is not None:
                quota_checks.back = back
            response = FetchResponse()
        return _told(response, throttle.ms)

    def _charged(self, cost: RequestCost, now_ms: int) -> Throttle | None:
        """Record bytes and time in one step for Produce and Fetch, the most frequent requests."""
        if not cost.exempt:
            key, who = cost.header.api_key, cost.who
            if key == _PRODUCE:
                return self.quotas.moved_and_worked(
                    BYTES_PRODUCED, who, cost.request_bytes, cost.worked_ns, now_ms
                )
            if key == _FETCH:
                size = cost.response_bytes + LENGTH_BYTES
                return self.quotas.moved_and_worked(
                    BYTES_FETCHED, who, size, cost.worked_ns, now_ms
                )
        return larger(self._first(cost, now_ms), self._worked(cost, now_ms))

    async def throttle_before_response(
        self, client: ClientConnection, cost: RequestCost
    ) -> Any | None:
        """Throttle as in KIP-55 and KIP-124: delay the response, first for bytes, then for time."""
        quota_checks, now_ms, total_ms = cost.quota_checks, whole_ms(cost.now), 0
        for count in (self._first, self._worked):
            self.quotas.looked = None if quota_checks is None else quota_checks.note
            throttle = count(cost, now_ms)
            if throttle.ms > 0:
                self._start(client, cost, throttle, now_ms)
                assert client.throttle_over is not None
                await client.throttle_over.wait()
                total_ms += throttle.ms
                now_ms = self._now_ms()
        return _told(cost.response, total_ms) if total_ms else None

    def _first(self, cost: RequestCost, now_ms: int) -> Throttle:
        """Record all but time: a request uses at most one other quota."""
        if cost.header.api_key == _PRODUCE:
            return self.quotas.produced(cost.who, cost.request_bytes, now_ms)
        if cost.header.api_key == _FETCH:
            if cost.exempt:
                return Throttle(QuotaType.FETCH, 0)
            return self.quotas.fetched(cost.who, cost.response_bytes + LENGTH_BYTES, now_ms)
        told_ms = getattr(cost.response, "throttle_time_ms", 0)
        look = cost.mutated.look if cost.mutated else None
        cause = NO_CAUSE
        if look is not None and look.bound is not None:
            cause = Cause(look.rate, 0, look.bound.value)
        return Throttle(QuotaType.CONTROLLER_MUTATION, told_ms, cause)

    def _worked(self, cost: RequestCost, now_ms: int) -> Throttle:
        if cost.exempt:
            self.quotas.exempt(cost.worked_ns, now_ms)
            return Throttle(QuotaType.REQUEST, 0)
        return self.quotas.worked(cost.who, cost.worked_ns, now_ms)

    def _start(
        self, client: ClientConnection, cost: RequestCost, throttle: Throttle, now_ms: int
    ) -> None:
        api_key = cost.header.api_key
        if cost.quota_checks is not None:
            cost.quota_checks.throttle_ms += throttle.ms
        self.quotas.throttled(throttle, cost.who, api_key, now_ms)
        client.throttle()
        self._env.metrics.throttled(api_key, throttle.ms * NS_PER_MS)
        if self.throttled.hold(client, throttle.kind, now_ms + throttle.ms):
            self._sooner.set()

    def sent(self, cost: RequestCost, network_ns: int) -> tuple[int, int | None]:
        """Record the remaining work on a request: reading it and sending the response.

        Return the time in milliseconds of the broker's clock, and the ordinal if a quota recorded
        it.
        """
        now_ms, ordinal = self._now_ms(), None
        if self.active:
            if cost.exempt:
                self.quotas.exempt(network_ns, now_ms)
            else:
                ordinal = self.quotas.worked_on(cost.who, network_ns, now_ms)
        return now_ms, ordinal

    def forget(self, client: ClientConnection) -> None:
        """Forget a closed connection."""
        self.throttled.forget(client)

    async def run(self) -> None:
        """End throttles when due."""
        while True:
            for client in self.throttled.due(self._now_ms()):
                client.throttle_ended()
            next_ms = self.throttled.next_ms()
            self._sooner = trio.Event()
            with trio.CancelScope() as scope:
                if next_ms is not None:
                    scope.deadline = next_ms / 1000
                await self._sooner.wait()


def quota_user(client: ClientConnection, header: RequestHeader) -> Who:
    """Return the user and client id whose quotas a request counts for."""
    return client.caller.principal.name, header.client_id or ""


def _told(response: Any, throttle_ms: int) -> Any:
    """Set the throttle time in a response; older versions omit it when they are encoded."""
    if hasattr(response, "throttle_time_ms"):
        response.throttle_time_ms = throttle_ms
    return response


def is_exempt(ctx: Context, request: Any, response: Any) -> bool:
    """Whether a request is exempt from the request quota: without response, or of another broker.

    A client that says it is a broker must be allowed CLUSTER_ACTION, or any client could say so.
    """
    key = ctx.header.api_key
    number = _NUMBERS.get(key)
    if number is not None:
        if _cannot_be_exempt(number, request):
            return False
        return key == _PRODUCE or ctx.allows(Operation.CLUSTER_ACTION, Resource.CLUSTER)
    if APIS[key].cluster_action:
        return bool(response.error_code != ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    return False


def _cannot_be_exempt(number: int, request: Any) -> bool:
    """Whether a Produce or Fetch request, by its number, is certainly not exempt.

    For others the authorizer may have to be asked, which records an audit event if they are denied.
    """
    if number == BYTES_PRODUCED:
        return bool(request.acks != 0)
    return not is_follower_fetch(request)
