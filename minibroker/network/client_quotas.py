"""What requests cost their senders: a processor's half of the quotas.

Owns who is held now, and how an answer changes by it; what a request costs and for how long that
holds its sender are rules of ``quotas.manager``.  Invariant: with no quota ever set nothing here is
asked but whether there is one; who was answered before the request was counted is counted before
this process does anything else; a connection that was throttled is read again when its throttle has
ended, and who has hung up is forgotten.  Echoes what ``KafkaApis`` and ``RequestHandlerHelper`` do
with ``QuotaManagers``.
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
from minibroker.network.client_connection import Client
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

# What every request looks at: an enumeration takes ten times as long to give its members.
_PRODUCE, _FETCH = ApiKey.PRODUCE, ApiKey.FETCH
_NUMBERS: Final[Mapping[int, int]] = {_PRODUCE: BYTES_PRODUCED, _FETCH: BYTES_FETCHED}
_OF_TIME, _OF_PRODUCERS = QuotaType.REQUEST, QuotaType.PRODUCE

LENGTH_BYTES: Final = 4
"""What a fetch's size has beside the response itself, as Kafka counts it."""


class Looks:
    """What quotas found when they counted one request, for who tells of it."""

    # The class has what holds until something is found: to set it for each request takes longer.
    produce: Look | None = None
    fetch: Look | None = None
    request: Look | None = None
    throttle_ms = 0
    back: int | None = None
    """The ordinal of giving back what was not fetched after all."""

    def note(self, look: Look) -> None:
        """Another look."""
        # A dictionary by type would take twice the time, for a type's hash is worked out in Python.
        if look.kind is _OF_TIME:
            self.request = look
        elif look.kind is _OF_PRODUCERS:
            self.produce = look
        else:
            self.fetch = look


@dataclass(eq=False)
class Spent:
    """A request that was carried out, and what it took so far; see `is_exempt`."""

    header: RequestHeader
    request: Any
    response: Any
    exempt: bool
    who: Who
    now: float
    """When the answer was known, in seconds of the broker's clock: it is counted for then."""
    request_bytes: int
    response_bytes: int
    worked_ns: int
    looks: Looks | None = None
    """What quotas find, where somebody is told."""
    mutated: Mutated | None = None
    """What it changed of the cluster, if it is about that."""


class Meter:
    """One processor's; ``run`` must be running for throttles to end."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self.delays = env.settings[QUOTA_THROTTLE_MODE] == DELAY
        """Whether `keep_back` is to be asked, and not `hold`."""
        self._in_force = QuotasInForce(env.settings, env.ledger)
        self.quotas = self._in_force.quotas
        self.throttled: Throttled[Client] = Throttled()
        self._sooner = trio.Event()
        env.metrics.watch_gauges(self._gauges)

    def _gauges(self) -> dict[Series, float]:
        if not self.active:
            return {}
        return {(QUOTA_QUEUE.name, (kind,)): self.throttled.size(kind) for kind in QuotaType}

    @property
    def active(self) -> bool:
        """Whether anything is to be measured."""
        return self.quotas.enabled

    def follow(self, image: Image) -> None:
        """From now on the quotas of an image hold."""
        self._in_force.follow(image)

    def fetch_bytes_max(self, client: Client, header: RequestHeader) -> int:
        """The most that a client may be sent at once."""
        return self.quotas.fetch_bytes_max(who_asks(client, header), self._now_ms())

    def _now_ms(self) -> int:
        """Milliseconds of the broker's clock."""
        return whole_ms(self._env.clock.now())

    def promise(self, client: Client, ctx: Context, request: Any) -> Promise | None:
        """That a request is counted when it is answered, if that may be."""
        number = _NUMBERS.get(ctx.header.api_key)
        if number is None or client.told or self.delays or not _cannot_be_exempt(number, request):
            return None
        return self.quotas.promise(number, who_asks(client, ctx.header))

    def worked_on(self, client: Client, header: RequestHeader, network_ns: int) -> None:
        """Counts what was worked for a request since its promise was kept."""
        self.quotas.worked_on(who_asks(client, header), network_ns, self._now_ms())

    def hold(self, client: Client, spent: Spent) -> Any | None:
        """Counts a request, and holds its sender if that is too much.

        The response to send instead of the one there was; None if it may go as it is.
        """
        quotas, looks = self.quotas, spent.looks
        quotas.looked = None if looks is None else looks.note
        now_ms = whole_ms(spent.now)
        throttle = self._charged(spent, now_ms)
        if throttle is None:
            return None
        self._start(client, spent, throttle, now_ms)
        response = spent.response
        if spent.header.api_key == _FETCH and not spent.exempt:
            back = quotas.not_fetched(spent.who, spent.response_bytes + LENGTH_BYTES, now_ms)
            if looks is not None:
                looks.back = back
            response = FetchResponse()
        return _told(response, throttle.ms)

    def _charged(self, spent: Spent, now_ms: int) -> Throttle | None:
        """Counts bytes and time at once where there are both, which is most of what is asked."""
        if not spent.exempt:
            key, who = spent.header.api_key, spent.who
            if key == _PRODUCE:
                return self.quotas.moved_and_worked(
                    BYTES_PRODUCED, who, spent.request_bytes, spent.worked_ns, now_ms
                )
            if key == _FETCH:
                size = spent.response_bytes + LENGTH_BYTES
                return self.quotas.moved_and_worked(
                    BYTES_FETCHED, who, size, spent.worked_ns, now_ms
                )
        return larger(self._first(spent, now_ms), self._worked(spent, now_ms))

    async def keep_back(self, client: Client, spent: Spent) -> Any | None:
        """`hold` as KIP-55 and KIP-124 have it: first for bytes, and then, if need be, for time.

        Nothing is sent before.
        """
        looks, now_ms, total_ms = spent.looks, whole_ms(spent.now), 0
        for count in (self._first, self._worked):
            self.quotas.looked = None if looks is None else looks.note
            throttle = count(spent, now_ms)
            if throttle.ms > 0:
                self._start(client, spent, throttle, now_ms)
                assert client.throttle_over is not None
                await client.throttle_over.wait()
                total_ms += throttle.ms
                now_ms = self._now_ms()
        return _told(spent.response, total_ms) if total_ms else None

    def _first(self, spent: Spent, now_ms: int) -> Throttle:
        """What beside time was too much: of any request at most one thing."""
        if spent.header.api_key == _PRODUCE:
            return self.quotas.produced(spent.who, spent.request_bytes, now_ms)
        if spent.header.api_key == _FETCH:
            if spent.exempt:
                return Throttle(QuotaType.FETCH, 0)
            return self.quotas.fetched(spent.who, spent.response_bytes + LENGTH_BYTES, now_ms)
        told_ms = getattr(spent.response, "throttle_time_ms", 0)
        look = spent.mutated.look if spent.mutated else None
        cause = NO_CAUSE
        if look is not None and look.bound is not None:
            cause = Cause(look.rate, 0, look.bound.value)
        return Throttle(QuotaType.CONTROLLER_MUTATION, told_ms, cause)

    def _worked(self, spent: Spent, now_ms: int) -> Throttle:
        if spent.exempt:
            self.quotas.exempt(spent.worked_ns, now_ms)
            return Throttle(QuotaType.REQUEST, 0)
        return self.quotas.worked(spent.who, spent.worked_ns, now_ms)

    def _start(self, client: Client, spent: Spent, throttle: Throttle, now_ms: int) -> None:
        api_key = spent.header.api_key
        if spent.looks is not None:
            spent.looks.throttle_ms += throttle.ms
        self.quotas.throttled(throttle, spent.who, api_key, now_ms)
        client.throttle()
        self._env.metrics.throttled(api_key, throttle.ms * NS_PER_MS)
        if self.throttled.hold(client, throttle.kind, now_ms + throttle.ms):
            self._sooner.set()

    def sent(self, spent: Spent, network_ns: int) -> tuple[int, int | None]:
        """Counts what was worked for a request beside that: reading it, sending the answer.

        When that was, in milliseconds of the broker's clock, and its ordinal if a quota counts it.
        """
        now_ms, ordinal = self._now_ms(), None
        if self.active:
            if spent.exempt:
                self.quotas.exempt(network_ns, now_ms)
            else:
                ordinal = self.quotas.worked_on(spent.who, network_ns, now_ms)
        return now_ms, ordinal

    def forget(self, client: Client) -> None:
        """A client is gone."""
        self.throttled.forget(client)

    async def run(self) -> None:
        """Ends throttles when their time has come."""
        while True:
            for client in self.throttled.due(self._now_ms()):
                client.throttle_ended()
            next_ms = self.throttled.next_ms()
            self._sooner = trio.Event()
            with trio.CancelScope() as scope:
                if next_ms is not None:
                    scope.deadline = next_ms / 1000
                await self._sooner.wait()


def who_asks(client: Client, header: RequestHeader) -> Who:
    """Whose quotas a request counts for."""
    return client.caller.principal.name, header.client_id or ""


def _told(response: Any, throttle_ms: int) -> Any:
    """The response with the throttle time, which older versions leave out when it is encoded."""
    if hasattr(response, "throttle_time_ms"):
        response.throttle_time_ms = throttle_ms
    return response


def is_exempt(ctx: Context, request: Any, response: Any) -> bool:
    """Whether no quota of time holds a request: what cannot be answered, and other brokers'.

    Who says to be a broker must be allowed to act for the cluster, or everybody would say so.
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
    """Whether a Produce or Fetch request, by its number, says that a quota of time may hold it.

    Of others somebody may have to be asked, who tells of it if they are not.
    """
    if number == BYTES_PRODUCED:
        return bool(request.acks != 0)
    return not is_follower_fetch(request)
