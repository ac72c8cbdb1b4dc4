"""What one request costs, and the quota stage that records it and throttles its client.

``RequestCost`` is the only record of a request's times, bytes, work and errors, from its reception
to its response; quotas, metrics and observers read it. Work is counted once, and counting takes
some microseconds, whatever the client sends. Kafka's ``RequestChannel.Request``.

``QuotaStage`` owns which connections are throttled, and the throttle time in responses. What a
request costs and how long it is throttled are rules of ``quotas.manager``. Does what ``KafkaApis``
and ``RequestHandlerHelper`` do with ``QuotaManagers``. Must never know what an API does.

Invariant: ``late_ns`` is what quotas had not recorded before the response. While no quota is set, a
request only checks that; a request that is answered before it is recorded is recorded before this
process does anything else; a throttled connection is read again when its throttle ends, and a
closed one is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from operator import attrgetter
from struct import Struct as Layout
from typing import TYPE_CHECKING, Any, Final

import trio

from minibroker.broker.apis.base import Context
from minibroker.broker.apis.fetch import is_follower_fetch, throttled_response
from minibroker.broker.apis.registry import APIS
from minibroker.broker.metadata.image import Image
from minibroker.broker.metadata.quotas import EffectiveQuotas
from minibroker.broker.metrics.definitions import QUOTA_QUEUE
from minibroker.broker.metrics.metrics import Series
from minibroker.broker.network.client_connection import ClientConnection
from minibroker.broker.process.environment import Environment
from minibroker.broker.quotas.manager import FETCH as BYTES_FETCHED
from minibroker.broker.quotas.manager import PRODUCE as BYTES_PRODUCED
from minibroker.broker.quotas.manager import QuotaUser, Throttle, ThrottleQueue, larger
from minibroker.broker.quotas.rate import NO_CAUSE, Cause
from minibroker.broker.quotas.types import CLIENT_QUOTA_TYPES, INT_MAX, QuotaType
from minibroker.broker.security.acl import Operation, Resource
from minibroker.broker.settings.definitions import DELAY, QUOTA_THROTTLE_MODE
from minibroker.runtime.clock import whole_ms
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.fetch import FetchResponse
from minibroker_protocol.records import HEADER_BYTES
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.schema import Array, Struct

if TYPE_CHECKING:
    from minibroker.broker.network.interception import Interception
    from minibroker.broker.quotas.manager import DeferredRecord, Mutated, QuotaCheck
    from minibroker_protocol.messages.produce import ProduceRequest
    from minibroker_protocol.wire import RequestHeader


SEARCHED_MAX: Final = 1000
"""Elements of a list that are searched for an error or a batch: bounds the cost of a request."""

_COUNT: Final = Layout(">i").unpack_from
_COUNT_POSITION: Final = HEADER_BYTES - 4
"""Position of the number of records in a batch."""

# Used by every request: attribute access of an enumeration takes ten times as long.
_REQUEST_TYPE, _PRODUCE_TYPE = QuotaType.REQUEST, QuotaType.PRODUCE


class QuotaChecks:
    """Results of the quota checks of one request, for observers."""

    # Defaults in the class: setting them for each request would take longer.
    produce: QuotaCheck | None = None
    fetch: QuotaCheck | None = None
    request: QuotaCheck | None = None
    throttle_ms = 0
    taken_back: int | None = None
    """Ordinal of the record that subtracts bytes that were not fetched."""

    def note(self, check: QuotaCheck) -> None:
        """Keep the result of a check."""
        # A dictionary by type would take twice the time, because the hash of a type is Python code.
        if check.kind is _REQUEST_TYPE:
            self.request = check
        elif check.kind is _PRODUCE_TYPE:
            self.produce = check
        else:
            self.fetch = check


class RequestCost:
    """One request of a client and its cost so far. Times in nanoseconds of ``perf_counter_ns``."""

    # Defaults in the class: setting them for each request would take longer.
    header: RequestHeader
    now: float
    """Time when the response was known, in seconds of the broker's clock."""
    is_direct = False
    """Whether the request was answered without the three steps of its API, and has no context."""
    ctx: Context
    request: Any
    """The decoded request."""
    response: Any
    """The response of the API, without throttle time; None if there is none."""
    owners_ns = 0
    """Time until the processes that execute the request have done so: their queues and their work,
    but not their waits, e.g. for records.
    """
    io_ns = 0
    """Work of those processes."""
    worked_ns = 0
    """Work that quotas record before the response, by network and I/O."""
    network_ns = 0
    """Work of this process on the request, known when the response is sent."""
    total_ns = 0
    response_bytes = 0
    sent_bytes = 0
    """Size of the response with length and header; 0 if none was sent."""
    records: int | None = None
    """Number of produced records, if the connection's quota checks are observed."""
    deferred: DeferredRecord | None = None
    """Set if quotas may record the request after its response."""
    is_recorded = False
    """Whether quotas record the request, or observers need what they would record."""
    exempt = False
    """See `quota_stage.is_exempt`."""
    quota_user: QuotaUser
    """The user and client id whose quotas the request counts for."""
    checks: QuotaChecks | None = None
    """Results of quota checks, if they are observed."""
    interception: Interception | None = None
    """Set if the interceptor has to do with the request."""
    error = 0
    """The first error code of the response."""
    mutated: Mutated | None = None
    """Controller mutations of the request."""
    later_time: tuple[int, int, int | None] | None = None
    """Work after the quota check in ns, the time in ms of its record, and its ordinal."""

    def __init__(
        self, client: ClientConnection, request_bytes: int, received_ns: int, worked_from_ns: int
    ) -> None:
        """``worked_from_ns`` is the connection's work when the request was received."""
        self.client = client
        self.request_bytes = request_bytes
        self.received_ns = received_ns
        self._worked_from_ns = worked_from_ns
        # Not in the class: a compiled class only has defaults of simple types.
        self.request = None
        self.response = None

    @property
    def queue_ns(self) -> int:
        """Time in the queues of the processes that execute the request."""
        return max(self.owners_ns - self.io_ns, 0)

    @property
    def late_ns(self) -> int:
        """Work that ``worked_ns`` does not contain: reading the request, sending the response."""
        reading_ns = self._worked_from_ns - self.client.accounted_ns
        return reading_ns + self.network_ns + self.io_ns - self.worked_ns

    def executed(self, worked_ns: int) -> None:
        """Set the work before the response; ``worked_ns`` is the connection's work by now."""
        self.worked_ns = self.io_ns + worked_ns - self._worked_from_ns

    def sent(self, worked_ns: int, now_ns: int) -> None:
        """Set the work and time until the response was sent."""
        self.network_ns = worked_ns - self._worked_from_ns
        self.total_ns = now_ns - self.received_ns

    def failed(self, now_ns: int) -> None:
        """Set the time until the connection was closed without a response."""
        self.total_ns = now_ns - self.received_ns


def count_records(request: ProduceRequest, body: memoryview) -> int:
    """Return the number of records of a Produce request with records as positions in ``body``."""
    total = 0
    for topic in request.topic_data:
        partitions = topic.partition_data
        if len(partitions) > SEARCHED_MAX:
            partitions = partitions[:SEARCHED_MAX]
        for data in partitions:
            batch: Any = data.records  # a range of positions
            if batch is not None and batch.stop - batch.start >= HEADER_BYTES:
                count = _COUNT(body, batch.start + _COUNT_POSITION)[0]
                if count > 0:
                    total += count
    return total


def count_batch_records(batch: memoryview) -> int:
    """Return the number of records in the header of a batch; 0 if it is none."""
    if len(batch) < HEADER_BYTES:
        return 0
    return max(int(_COUNT(batch, _COUNT_POSITION)[0]), 0)


def first_error(response: Struct | None) -> int:
    """Return the first error code of a response, or 0 if there is none."""
    find = None if response is None else _finder(type(response))
    return 0 if find is None else int(find(response))


@cache
def _finder(of: type[Struct]) -> Callable[[Any], int] | None:
    """Return a function that finds the first error in messages of a type, or None."""
    lists = [
        (field.name, find)
        for field in of.__fields__
        if isinstance(field.kind, Array)
        and isinstance(field.kind.element, type)
        and (find := _finder(field.kind.element)) is not None
    ]
    codes = [attrgetter(field.name) for field in of.__fields__ if field.means is Meaning.ERROR]
    if not lists:
        return codes[0] if codes else None

    def find_first(found: Any) -> int:
        for own_code in codes:
            if code := own_code(found):
                return int(code)
        for name, find in lists:
            entries = getattr(found, name) or ()
            if len(entries) > SEARCHED_MAX:
                entries = entries[:SEARCHED_MAX]
            for entry in entries:
                if code := find(entry):
                    return int(code)
        return 0

    return find_first


NS_PER_MS: Final = 1_000_000

# Used by every request: attribute access of an enumeration takes ten times as long.
_PRODUCE, _FETCH = ApiKey.PRODUCE, ApiKey.FETCH
_SHARE_FETCH: Final = ApiKey.SHARE_FETCH
_NUMBERS: Final[Mapping[int, int]] = {_PRODUCE: BYTES_PRODUCED, _FETCH: BYTES_FETCHED}

LENGTH_BYTES: Final = 4
"""Size of a response's length field, which Kafka counts for a fetch."""


class QuotaStage:
    """Client quotas of one processor; ``run`` must be running to end throttles."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._delays_responses = env.settings[QUOTA_THROTTLE_MODE] == DELAY
        self._in_force = EffectiveQuotas(env.settings, env.ledger)
        self.quotas = self._in_force.quotas
        self.throttled: ThrottleQueue[ClientConnection] = ThrottleQueue()
        self._deadline_changed = trio.Event()
        env.metrics.watch_gauges(self._gauges)

    def _gauges(self) -> dict[Series, float]:
        if not self.active:
            return {}
        return {
            (QUOTA_QUEUE.name, (kind,)): self.throttled.size(kind) for kind in CLIENT_QUOTA_TYPES
        }

    @property
    def active(self) -> bool:
        """Whether any quota is set."""
        return self.quotas.enabled

    def follow(self, image: Image) -> None:
        """Apply the quotas of an image."""
        self._in_force.follow(image)

    def fetch_bytes_max(self, client: ClientConnection, header: RequestHeader) -> int:
        """Return the most bytes that a client may fetch at once."""
        if not self.active:
            return INT_MAX
        return self.quotas.fetch_bytes_max(quota_user(client, header), self._now_ms())

    def _now_ms(self) -> int:
        """Current time in milliseconds of the broker's clock."""
        return whole_ms(self._env.clock.now())

    def prepare(self, cost: RequestCost) -> None:
        """Prepare the check of a request while other processes execute it."""
        number = _NUMBERS.get(cost.header.api_key)
        client = cost.client
        if (
            number is not None
            and not client.needs_checks
            and not self._delays_responses
            and (cost.is_direct or _cannot_be_exempt(number, cost.request))
        ):
            cost.deferred = self.quotas.defer(number, quota_user(client, cost.header))

    @property
    def delays_responses(self) -> bool:
        """Whether `delay_response` takes the place of `before_response`."""
        return self._delays_responses and self.active

    def before_response(self, cost: RequestCost) -> Any | None:
        """Record an executed request, and throttle its client if a quota is exceeded.

        Return the response to send instead, or None if the original one can be sent. A request of
        a client well below its quotas is recorded after its response instead (ADR 0016).
        """
        client = cost.client
        if not (client.needs_checks or self.quotas.enabled):
            return None
        cost.executed(self._env.work_time.worked_ns(client.account))
        deferred = cost.deferred
        if deferred is not None:
            size = cost.request_bytes
            if deferred.number == BYTES_FETCHED:
                size = LENGTH_BYTES + cost.response_bytes
            if deferred.start(size, cost.worked_ns, whole_ms(cost.now)):
                return None
            cost.deferred = None
        self._start_record(cost)
        return self._throttle_after_response(cost) if self.quotas.enabled else None

    async def delay_response(self, cost: RequestCost) -> Any | None:
        """Record an executed request as `before_response`, but wait until its throttle ends."""
        cost.executed(self._env.work_time.worked_ns(cost.client.account))
        self._start_record(cost)
        return await self._throttle_before_response(cost)

    def _start_record(self, cost: RequestCost) -> None:
        client = cost.client
        cost.is_recorded = True
        cost.exempt = not cost.is_direct and is_exempt(cost.ctx, cost.request, cost.response)
        cost.quota_user = quota_user(client, cost.header)
        if client.needs_checks:
            cost.checks = QuotaChecks()

    def after_send(self, cost: RequestCost) -> None:
        """Record what was not recorded before the response: all of it, or the work since then."""
        if cost.deferred is not None:
            if not cost.deferred.complete(cost.late_ns):  # The response could not be sent at once.
                self.quotas.record_later_time(
                    quota_user(cost.client, cost.header), cost.late_ns, self._now_ms()
                )
        elif cost.is_recorded:
            now_ms, late_ns, ordinal = self._now_ms(), cost.late_ns, None
            if self.quotas.enabled:
                if cost.exempt:
                    self.quotas.exempt(late_ns, now_ms)
                else:
                    ordinal = self.quotas.record_later_time(cost.quota_user, late_ns, now_ms)
            cost.later_time = late_ns, now_ms, ordinal

    def complete_deferred(self) -> None:
        """Record a request whose response is not sent at once, if it was not recorded before."""
        self.quotas.complete_deferred()

    def _throttle_after_response(self, cost: RequestCost) -> Any | None:
        """Throttle as in KIP-219: respond at once and mute the connection."""
        quotas, checks = self.quotas, cost.checks
        quotas.on_check = None if checks is None else checks.note
        now_ms = whole_ms(cost.now)
        throttle = self._record_and_check(cost, now_ms)
        if throttle is None:
            return None
        self._start_throttle(cost, throttle, now_ms)
        response, interception = cost.response, cost.interception
        is_fetch = cost.header.api_key == _FETCH and not cost.exempt
        if is_fetch and not (interception is not None and interception.changes_response):
            ordinal = quotas.take_back_fetch(
                cost.quota_user, cost.response_bytes + LENGTH_BYTES, now_ms
            )
            if checks is not None:
                checks.taken_back = ordinal
            # A direct request has no context and no session.
            response = FetchResponse() if cost.is_direct else throttled_response(cost.ctx, response)
        return _with_throttle_time(cost, response, throttle.ms)

    def _record_and_check(self, cost: RequestCost, now_ms: int) -> Throttle | None:
        """Record bytes and time in one step for Produce and Fetch, the most frequent requests."""
        if not cost.exempt:
            key, user = cost.header.api_key, cost.quota_user
            if key == _PRODUCE:
                return self.quotas.record_bytes_and_time(
                    BYTES_PRODUCED, user, cost.request_bytes, cost.worked_ns, now_ms
                )
            if key == _FETCH:
                size = cost.response_bytes + LENGTH_BYTES
                return self.quotas.record_bytes_and_time(
                    BYTES_FETCHED, user, size, cost.worked_ns, now_ms
                )
        return larger(self._record_bytes(cost, now_ms), self._record_time(cost, now_ms))

    async def _throttle_before_response(self, cost: RequestCost) -> Any | None:
        """Throttle as in KIP-55 and KIP-124: delay the response, first for bytes, then for time."""
        checks, now_ms, total_ms = cost.checks, whole_ms(cost.now), 0
        for record in (self._record_bytes, self._record_time):
            self.quotas.on_check = None if checks is None else checks.note
            throttle = record(cost, now_ms)
            if throttle.ms > 0:
                self._start_throttle(cost, throttle, now_ms)
                assert cost.client.throttle_end is not None
                await cost.client.throttle_end.wait()
                total_ms += throttle.ms
                now_ms = self._now_ms()
        return _with_throttle_time(cost, cost.response, total_ms) if total_ms else None

    def _record_bytes(self, cost: RequestCost, now_ms: int) -> Throttle:
        """Record all but time: a request uses at most one other quota."""
        if cost.header.api_key == _PRODUCE:
            return self.quotas.produced(cost.quota_user, cost.request_bytes, now_ms)
        if cost.header.api_key in (_FETCH, _SHARE_FETCH):
            if cost.exempt:
                return Throttle(QuotaType.FETCH, 0)
            return self.quotas.fetched(cost.quota_user, cost.response_bytes + LENGTH_BYTES, now_ms)
        throttle_ms = getattr(cost.response, "throttle_time_ms", 0)
        mutated = cost.mutated
        check = mutated.check if mutated else None
        cause = NO_CAUSE
        if check is not None and check.bound is not None:
            cause = Cause(check.rate, 0, check.bound.value)
        return Throttle(QuotaType.CONTROLLER_MUTATION, throttle_ms, cause)

    def _record_time(self, cost: RequestCost, now_ms: int) -> Throttle:
        if cost.exempt:
            self.quotas.exempt(cost.worked_ns, now_ms)
            return Throttle(QuotaType.REQUEST, 0)
        return self.quotas.worked(cost.quota_user, cost.worked_ns, now_ms)

    def _start_throttle(self, cost: RequestCost, throttle: Throttle, now_ms: int) -> None:
        api_key, client = cost.header.api_key, cost.client
        if cost.checks is not None:
            cost.checks.throttle_ms += throttle.ms
        self.quotas.throttled(throttle, cost.quota_user, api_key, now_ms)
        client.throttle()
        self._env.metrics.throttled(api_key, throttle.ms * NS_PER_MS)
        if self.throttled.hold(client, throttle.kind, now_ms + throttle.ms):
            self._deadline_changed.set()

    def forget(self, client: ClientConnection) -> None:
        """Forget a closed connection."""
        self.throttled.forget(client)

    async def run(self) -> None:
        """End throttles when due."""
        while True:
            for client in self.throttled.due(self._now_ms()):
                client.end_throttle()
            next_ms = self.throttled.next_ms()
            self._deadline_changed = trio.Event()
            with trio.CancelScope() as scope:
                if next_ms is not None:
                    scope.deadline = next_ms / 1000
                await self._deadline_changed.wait()


def quota_user(client: ClientConnection, header: RequestHeader) -> QuotaUser:
    """Return the user and client id whose quotas a request counts for."""
    return client.caller.principal.name, header.client_id or ""


def _with_throttle_time(cost: RequestCost, response: Any, throttle_ms: int) -> Any:
    """Set the throttle time in a response, unless the interceptor has set another one.

    Older versions omit it when they are encoded.
    """
    is_set = cost.interception is not None and cost.interception.sets_throttle_time
    if hasattr(response, "throttle_time_ms") and not is_set:
        response.throttle_time_ms = throttle_ms
    cost.response = response
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
        if hasattr(response, "error_code"):
            return bool(response.error_code != ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        # WriteTxnMarkers has no error of the whole request.
        return ctx.allows(Operation.CLUSTER_ACTION, Resource.CLUSTER, quietly=True)
    return False


def _cannot_be_exempt(number: int, request: Any) -> bool:
    """Whether a Produce or Fetch request, by its number, is certainly not exempt.

    For others the authorizer may be called, which records an audit event if it denies the request.
    """
    if number == BYTES_PRODUCED:
        return bool(request.acks != 0)
    return not is_follower_fetch(request)
