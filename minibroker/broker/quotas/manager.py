"""The controller mutation quota of one request: a token bucket, with a token for each partition.

Owns when a mutation is accepted and how long the client is throttled; the bucket is in the ledger's
counter. It must never read a clock or know a topic. Invariant: a rejected mutation takes no tokens.
Corresponds to Kafka's ``ControllerMutationQuotaManager`` (KIP-599).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from minibroker.broker.quotas.rate import (
    ALWAYS_MEASURED,
    NO_CAUSE,
    Cause,
    RateAndSpan,
    capacity,
    deferred_limit,
    deferred_request_max,
    java_round,
    throttle_ms,
)
from minibroker.broker.quotas.types import (
    CLIENT_QUOTA_TYPES,
    INT_MAX,
    Bound,
    QuotaTable,
    QuotaType,
    Tags,
    bound_of,
    sanitize,
    sharing_group,
)
from minibroker.runtime.deadlines import Deadlines

Held = TypeVar("Held", bound=Hashable)


# Throttled connections ----------------------------------------------------------------------------
#
# They are in the order in which their throttles end. Keys are any hashable objects. Invariant: each
# throttled key is returned exactly once, by the first `due` at or after the end, unless it is
# forgotten; forgotten keys use bounded memory. Corresponds to Kafka's ``ThrottledChannelReaper``.


class ThrottleQueue(Generic[Held]):
    """Keys that are throttled, each by one quota type."""

    def __init__(self) -> None:
        self._ends: Deadlines[Held] = Deadlines()
        self._kinds: dict[Held, str] = {}
        self._sizes: dict[str, int] = {}

    def hold(self, held: Held, kind: str, end_ms: int) -> bool:
        """Throttle a key that is not throttled; return whether its end is the next one."""
        is_next = self._ends.add(held, end_ms)
        self._kinds[held] = kind
        self._sizes[kind] = self._sizes.get(kind, 0) + 1
        return is_next

    def due(self, now_ms: int) -> list[Held]:
        """Remove and return the keys whose throttle has ended."""
        found = self._ends.due(now_ms)
        for held in found:
            self._sizes[self._kinds.pop(held)] -= 1
        return found

    def forget(self, held: Held) -> None:
        """Remove a key, throttled or not."""
        if held in self._kinds:
            self._ends.forget(held)
            self._sizes[self._kinds.pop(held)] -= 1

    def next_ms(self) -> float | None:
        """Return the time of the next end; None if nothing is throttled."""
        return self._ends.next()

    def size(self, kind: str) -> int:
        """Return the number of keys that a quota type throttles."""
        return self._sizes.get(kind, 0)


# Records and checks -------------------------------------------------------------------------------
#
# The usage of requests, and the throttle times that follow from it.


QUOTA_STATES_MAX: Final = 16_384
"""Pairs of user and client-id whose state a process caches."""

NS_PER_PERCENT_SECOND: Final = 10_000_000
"""One percent of a second."""

EXEMPT: Final = "ExemptRequest"
"""The name of the counter for the time of exempt requests."""

_KINDS: Final = CLIENT_QUOTA_TYPES
PRODUCE, FETCH = _KINDS.index(QuotaType.PRODUCE), _KINDS.index(QuotaType.FETCH)
_REQUEST = _KINDS.index(QuotaType.REQUEST)
"""The numbers of the types: their indexes in tuples that have one element for each type."""
_ALWAYS_MEASURED: Final = (ALWAYS_MEASURED,) * len(_KINDS)
"""Limits that are always exceeded, so the rates are computed."""

QuotaUser = tuple[str, str]
"""A principal's name and a client-id, not encoded; without client-id an empty string."""


class AnyGroup(Protocol):
    """See `counter.CounterGroup`."""

    tags: Tags

    ordinal: int

    def add(self, number: int, value: float, now_ms: int) -> None: ...

    def record(
        self, number: int, value: float, now_ms: int, capacity: float = ...
    ) -> RateAndSpan | None: ...

    def record_both(
        self, number: int, value: float, percent: float, capacity: Sequence[float], now_ms: int
    ) -> tuple[RateAndSpan, RateAndSpan] | None: ...

    def defer(self, number: int, deferred_limit: Sequence[float]) -> bool: ...

    def record_deferred(self, number: int, value: float, percent: float, now_ms: int) -> None: ...

    def throttled(
        self, number: int, throttle_ms: int, api_key: int, cause: Cause, now_ms: int
    ) -> None: ...

    def tokens(
        self, number: int, quota: float, burst: float, now_ms: int, permits: float
    ) -> float: ...


class AnyLedger(Protocol):
    """See `ledger.QuotaLedger`."""

    samples: int
    window_ms: int

    def note_set(self, number: int, bits: int) -> int: ...

    def group(self, tags: Tags, now_ms: int) -> AnyGroup: ...

    def named(self, name: str, now_ms: int) -> AnyGroup: ...


class QuotaLimits(NamedTuple):
    """The quotas of an entity by type; infinity where there is none."""

    bounds: tuple[float, ...]
    deferred_limit: tuple[float, ...]
    """See `rate.deferred_limit`."""
    deferred_request_max: tuple[float, ...]
    """See `rate.deferred_request_max`."""
    table: QuotaTable
    """The table that the bounds are from."""


class QuotaState:
    """The counters and quotas of a user and client-id.

    Kept small, because each process has one for each of ten thousand clients.
    """

    __slots__ = ("bounds", "group", "groups", "is_near", "limits")

    def __init__(self, groups: Sequence[AnyGroup], limits: QuotaLimits) -> None:
        self.group = groups[0] if len(set(map(id, groups))) == 1 else None
        """The counters of all types, if they are in one group, which is the usual case."""
        self.groups = None if self.group else groups
        """Otherwise the group of each type."""
        self.limits = limits
        self.is_near = False
        """Whether usage is too near to a quota to defer a record."""
        self.bounds: Sequence[Bound | None] | None = None
        """The bounds with their entities, which `ClientQuotaManager.bounds` looks up on first use.

        They take as much memory as all else that is cached for ten thousand clients.
        """

    def group_of(self, number: int) -> AnyGroup:
        """Return the group that holds the counter of a type."""
        if self.group is not None:
            return self.group
        assert self.groups is not None
        return self.groups[number]


class DeferredRecord:
    """Records a request after its response, because it certainly violates no quota.

    Only for clients well below their quotas, which is most of them.
    """

    __slots__ = ("_group", "_limits", "_now_ms", "_quotas", "_size", "_worked_ns", "number")

    def __init__(
        self, quotas: ClientQuotaManager, number: int, group: AnyGroup, limits: QuotaLimits
    ) -> None:
        self.number = number
        """The number of the byte quota type."""
        self._quotas = quotas
        self._group = group
        self._limits = limits

    def start(self, size: int, worked_ns: int, now_ms: int) -> bool:
        """Try to defer the record; if True, use no quota before `complete` is called."""
        number, limits, percent = self.number, self._limits, worked_ns / NS_PER_PERCENT_SECOND
        if (
            size > limits.deferred_request_max[number]
            or percent > limits.deferred_request_max[_REQUEST]
            or limits.table is not self._quotas.table
            or not self._group.defer(number, limits.deferred_limit)
        ):
            return False
        self._size = size
        self._worked_ns = worked_ns
        self._now_ms = now_ms
        self._quotas.deferred = self
        return True

    def complete(self, late_ns: int = 0) -> bool:
        """Record the request with later work; return False if it has been recorded before."""
        if self._quotas.deferred is not self:
            return False
        self._quotas.deferred = None
        percent = (self._worked_ns + late_ns) / NS_PER_PERCENT_SECOND
        self._group.record_deferred(self.number, self._size, percent, self._now_ms)
        return True


class Share(NamedTuple):
    """The counters of a request and the bound of one type."""

    group: AnyGroup
    bound: Bound | None


class Throttle(NamedTuple):
    """A throttle time, and the quota type whose throttle metrics record it."""

    kind: QuotaType
    ms: int
    cause: Cause = NO_CAUSE


class QuotaCheck(NamedTuple):
    """The result of a check: the rate including the request, or the remaining tokens.

    ``ordinal`` is the order of recording among all requests that share the group.
    """

    kind: QuotaType
    tags: Tags
    rate: float
    bound: Bound | None
    throttle_ms: int
    now_ms: int
    ordinal: int


_FREE: Final = tuple(Throttle(kind, 0) for kind in _KINDS)
"""Results without a throttle, by type."""


def larger(first: Throttle, second: Throttle) -> Throttle | None:
    """Return the longer throttle, the second if equal, or None if both are 0."""
    chosen = first if first.ms > second.ms else second
    return chosen if chosen.ms > 0 else None


def is_near(rates: Sequence[RateAndSpan], number: int, bounds: Sequence[float]) -> bool:
    """Whether the rate of a type or of request time is above the limit of deferred records."""
    (rate, _), (of_time, _) = rates
    return rate > deferred_limit(bounds[number]) or of_time > deferred_limit(bounds[_REQUEST])


class ClientQuotaManager:
    """The client quotas of one process; none until `set_table` is called."""

    def __init__(self, ledger: AnyLedger) -> None:
        self._ledger = ledger
        self.table = QuotaTable()
        """The quotas that are set."""
        self._states: dict[QuotaUser, QuotaState] = {}
        self._same_limits: dict[tuple[float, ...], QuotaLimits] = {}
        self._exempt: AnyGroup | None = None
        self.deferred: DeferredRecord | None = None
        """The record to complete before quotas are used again."""
        self.bits: dict[QuotaType, int] = dict.fromkeys(_KINDS, 0)
        self._counted = (False,) * len(_KINDS)
        self._deferrable = self._counted
        """Whether records of a type and of request time may be deferred together."""
        self.enabled = False
        """Whether a quota was set at any time since the broker started."""
        self.on_check: Callable[[QuotaCheck], None] | None = None
        """Called with the result of each check, if set."""
        self.set_table(self.table)

    def set_table(self, table: QuotaTable) -> None:
        """Replace the quotas; counters keep their usage."""
        self.table = table
        self._states = {}
        self._same_limits = {}
        for number, kind in enumerate(_KINDS):
            self.bits[kind] = self._ledger.note_set(number, table.bits(kind))
        self._counted = tuple(self.bits[kind] > 0 for kind in _KINDS)
        self._deferrable = tuple(each and self._counted[_REQUEST] for each in self._counted)
        self.enabled = any(self._counted)

    def share(self, kind: QuotaType, client: QuotaUser, now_ms: int) -> Share:
        """Return the counters and bound of a user and client-id for one type."""
        number = _KINDS.index(kind)
        state = self.state(client, now_ms)
        return Share(state.group_of(number), self.bounds(state)[number])

    def bounds(self, state: QuotaState) -> Sequence[Bound | None]:
        """Return the bounds of a state with their entities."""
        if state.bounds is None:
            tags = [state.group_of(number).tags for number in range(len(_KINDS))]
            state.bounds = self._bounds(tags)
        return state.bounds

    def _bounds(self, tags: Sequence[Tags]) -> tuple[Bound | None, ...]:
        return tuple(bound_of(self.table, *each) for each in zip(_KINDS, tags, strict=True))

    def _tags(self, kind: QuotaType, client: QuotaUser) -> Tags:
        return sharing_group(self.table, kind, self.bits[kind], sanitize(client[0]), client[1])

    def state(self, client: QuotaUser, now_ms: int) -> QuotaState:
        """Return the cached state of a user and client-id, or create it."""
        found = self._states.get(client)
        if found is None:
            tags = [self._tags(kind, client) for kind in _KINDS]
            # Types usually have the same sharing group, so one lock covers their counters.
            groups = {each: self._ledger.group(each, now_ms) for each in set(tags)}
            limits = self._limits(self._bounds(tags))
            found = QuotaState([groups[each] for each in tags], limits)
            if len(self._states) >= QUOTA_STATES_MAX:
                self._states.clear()
                self._same_limits.clear()
            self._states[client] = found
        return found

    def _limits(self, bounds: Sequence[Bound | None]) -> QuotaLimits:
        """Return limits that all clients with the same bounds share."""
        ledger = self._ledger
        values = tuple(math.inf if bound is None else bound.value for bound in bounds)
        if values not in self._same_limits:
            found = [capacity(value, ledger.samples, ledger.window_ms) for value in values]
            self._same_limits[values] = QuotaLimits(
                values,
                tuple(map(deferred_limit, found)),
                tuple(map(deferred_request_max, found)),
                self.table,
            )
        return self._same_limits[values]

    def record(self, number: int, client: QuotaUser, value: float, now_ms: int) -> Throttle:
        """Record usage of a type, given by its number; return the throttle that results."""
        if not self._counted[number]:
            return _FREE[number]
        state = self._states.get(client) or self.state(client, now_ms)
        enough = state.limits.deferred_limit[number] if self.on_check is None else ALWAYS_MEASURED
        found = state.group_of(number).record(number, value, now_ms, enough)
        return _FREE[number] if found is None else self._check(number, state, found, now_ms)

    def _check(self, number: int, state: QuotaState, found: RateAndSpan, now_ms: int) -> Throttle:
        (rate, span_ms), limit = found, state.limits.bounds[number]
        throttle = _FREE[number]
        if rate > limit:
            capped = _KINDS[number].row.is_capped
            longest_ms = min(self._ledger.window_ms, INT_MAX) if capped else INT_MAX
            ms = min(throttle_ms(rate, limit, span_ms), longest_ms)
            throttle = Throttle(_KINDS[number], ms, Cause(rate, span_ms, limit))
        if self.on_check is not None:
            group, bound = state.group_of(number), self.bounds(state)[number]
            self.on_check(
                QuotaCheck(
                    throttle.kind, group.tags, rate, bound, throttle.ms, now_ms, group.ordinal
                )
            )  # fmt: skip
        return throttle

    # Bytes -----------------------------------------------------------------------------------

    def produced(self, client: QuotaUser, size: int, now_ms: int) -> Throttle:
        """Record the bytes of a Produce request."""
        return self.record(PRODUCE, client, size, now_ms)

    def fetched(self, client: QuotaUser, size: int, now_ms: int) -> Throttle:
        """Record the bytes of a Fetch response before it is sent."""
        return self.record(FETCH, client, size, now_ms)

    def record_bytes_and_time(
        self, number: int, client: QuotaUser, size: int, worked_ns: int, now_ms: int
    ) -> Throttle | None:
        """Record bytes and request time under one lock, which costs less than two records.

        ``number`` is the byte quota type. Return the throttle to apply.
        """
        if self._counted[_REQUEST] and self._counted[number]:
            state = self._states.get(client) or self.state(client, now_ms)
            group = state.group
            if group is not None:
                enough = state.limits.deferred_limit if self.on_check is None else _ALWAYS_MEASURED
                percent = worked_ns / NS_PER_PERCENT_SECOND
                found = group.record_both(number, size, percent, enough, now_ms)
                if found is None:
                    state.is_near = False
                    return None
                state.is_near = is_near(found, number, state.limits.bounds)
                return larger(
                    self._check(number, state, found[0], now_ms),
                    self._check(_REQUEST, state, found[1], now_ms),
                )
        of_bytes = self.record(number, client, size, now_ms)
        return larger(of_bytes, self.worked(client, worked_ns, now_ms))

    def defer(self, number: int, client: QuotaUser) -> DeferredRecord | None:
        """Return a deferred record for `record_bytes_and_time`, if the client may have one."""
        state = self._states.get(client) if self._deferrable[number] else None
        if state is None or state.is_near or state.group is None:
            return None
        return DeferredRecord(self, number, state.group, state.limits)

    def complete_deferred(self) -> None:
        """Complete the deferred record, if there is one."""
        if self.deferred is not None:
            self.deferred.complete()

    def take_back_fetch(self, client: QuotaUser, size: int, now_ms: int) -> int | None:
        """Subtract the bytes of a response that was not sent; return the ordinal if recorded."""
        if not self._counted[FETCH]:
            return None
        group = self.state(client, now_ms).group_of(FETCH)
        group.add(FETCH, -size, now_ms)
        return group.ordinal

    def fetch_bytes_max(self, client: QuotaUser, now_ms: int) -> int:
        """Return the largest response that alone causes no throttle."""
        if not self._counted[FETCH]:
            return INT_MAX
        ledger, limit = self._ledger, self.state(client, now_ms).limits.bounds[FETCH]
        if limit == math.inf:
            return INT_MAX
        return int(min(limit * (ledger.samples - 1) * ledger.window_ms / 1000, INT_MAX))

    # Time ------------------------------------------------------------------------------------

    def worked(self, client: QuotaUser, worked_ns: int, now_ms: int) -> Throttle:
        """Record the time that processes spent on a request."""
        return self.record(_REQUEST, client, worked_ns / NS_PER_PERCENT_SECOND, now_ms)

    def record_later_time(self, client: QuotaUser, worked_ns: int, now_ms: int) -> int | None:
        """Record time known after the response, which throttles nothing now.

        Return the ordinal if it was recorded.
        """
        if not self._counted[_REQUEST]:
            return None
        state = self._states.get(client) or self.state(client, now_ms)
        group = state.group_of(_REQUEST)
        group.add(_REQUEST, worked_ns / NS_PER_PERCENT_SECOND, now_ms)
        return group.ordinal

    def exempt(self, worked_ns: int, now_ms: int) -> None:
        """Record the time of an exempt request."""
        if self._counted[_REQUEST]:
            if self._exempt is None:
                self._exempt = self._ledger.named(EXEMPT, now_ms)
            self._exempt.add(0, worked_ns / NS_PER_PERCENT_SECOND, now_ms)

    def throttled(self, throttle: Throttle, client: QuotaUser, api_key: int, now_ms: int) -> None:
        """Record that a throttle starts."""
        number = _KINDS.index(throttle.kind)
        group = self.state(client, now_ms).group_of(number)
        group.throttled(number, throttle.ms, api_key, throttle.cause, now_ms)


# Controller mutations -----------------------------------------------------------------------------
#
# A token bucket, with a token for each partition that a request changes; the bucket is in the
# ledger's counter. Invariant: a rejected mutation takes no tokens. Corresponds to Kafka's
# ``ControllerMutationQuotaManager`` (KIP-599).


_MUTATION_NUMBER: Final = CLIENT_QUOTA_TYPES.index(QuotaType.CONTROLLER_MUTATION)


class Mutated(NamedTuple):
    """Partitions that one request tried to change, those rejected, and its last check."""

    requested: int
    rejected: int
    strict: bool
    check: QuotaCheck | None
    throttle_ms: int


class MutationQuota:
    """The tokens that one request takes, one for each partition.

    While the bucket is overdrawn, a ``strict`` quota rejects mutations; otherwise the request is
    executed and the client throttled (KIP-599).
    """

    def __init__(
        self,
        quotas: ClientQuotaManager,
        client: QuotaUser,
        *,
        windows: int,
        window_ms: int,
        strict: bool,
    ) -> None:
        self._quotas = quotas
        self._client = client
        self._burst_s = windows * window_ms / 1000
        self._strict = strict
        self._throttle_ms = 0
        self._since_ms = 0
        self._requested = 0
        self._rejected = 0
        self._last_check: QuotaCheck | None = None

    def take(self, permits: int, now_ms: int) -> bool:
        """Take tokens for changes; return whether the changes are accepted."""
        self._requested += permits
        accepted = self._take(permits, now_ms)
        self._rejected += 0 if accepted else permits
        return accepted

    def _take(self, permits: int, now_ms: int) -> bool:
        kind = QuotaType.CONTROLLER_MUTATION
        if not self._quotas.bits[kind]:
            return True
        group, bound = self._quotas.share(kind, self._client, now_ms)
        if bound is None:
            group.add(_MUTATION_NUMBER, permits, now_ms)
            self._last_check = QuotaCheck(kind, group.tags, 0.0, None, 0, now_ms, group.ordinal)
            return True
        burst = bound.value * self._burst_s
        # A strict bucket is checked before tokens are taken, a permissive one afterwards.
        at_once = 0 if self._strict else permits
        left = group.tokens(_MUTATION_NUMBER, bound.value, burst, now_ms, at_once)
        if left < 0:
            self._throttle_ms = min(java_round(-left / bound.value * 1000), INT_MAX)
            self._since_ms = now_ms
            if not self._strict:
                group.add(_MUTATION_NUMBER, permits, now_ms)
            ordinal = group.ordinal
            self._last_check = QuotaCheck(
                kind, group.tags, left, bound, self._throttle_ms, now_ms, ordinal
            )
            return not self._strict
        if self._strict:
            left = group.tokens(_MUTATION_NUMBER, bound.value, burst, now_ms, permits)
        group.add(_MUTATION_NUMBER, permits, now_ms)
        self._last_check = QuotaCheck(kind, group.tags, left, bound, 0, now_ms, group.ordinal)
        return True

    def throttle_ms(self, now_ms: int) -> int:
        """Return the remaining throttle time of the client."""
        return max(0, self._throttle_ms - (now_ms - self._since_ms))

    def mutated(self, now_ms: int) -> Mutated:
        """Return what the request changed, and the resulting throttle time."""
        throttle_ms = self.throttle_ms(now_ms)
        return Mutated(self._requested, self._rejected, self._strict, self._last_check, throttle_ms)
