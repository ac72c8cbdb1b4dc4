"""What a request costs and how long its sender is held for it: the quotas, as one process asks.

Owns the decisions; rates are the ledger's, the clock and the connection somebody else's: ``now_ms``
is an argument, and a throttle is a number that is given back.  Invariant: whatever is recorded is
recorded once, before it is checked or where no order of what others record could make the check
fail, and a check is violated only above the bound.  Without any quota ever set nothing is recorded,
and asking costs one look.  Echoes ``ClientQuotaManager``,
``ClientRequestQuotaManager`` and ``ControllerMutationQuotaManager``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from minibroker.quotas.counter import NOTHING, RateAndSpan
from minibroker.quotas.entity import (
    Bound,
    QuotaTable,
    Tags,
    bound_of,
    sanitize,
    sharing_group,
)
from minibroker.quotas.rate import (
    NO_CAUSE,
    Cause,
    capacity,
    deferred_limit,
    deferred_request_max,
    throttle_ms,
)
from minibroker.quotas.types import CLIENT_QUOTA_TYPES, INT_MAX, QuotaType

QUOTA_STATES_MAX: Final = 16_384
"""Users with a client-id of which a process remembers who they share counters with."""

NS_PER_PERCENT_SECOND: Final = 10_000_000
"""A percent of a second."""

EXEMPT: Final = "ExemptRequest"
"""What is counted beside the four types: the time of requests that no quota holds."""

_KINDS: Final = CLIENT_QUOTA_TYPES
PRODUCE, FETCH = _KINDS.index(QuotaType.PRODUCE), _KINDS.index(QuotaType.FETCH)
_REQUEST = _KINDS.index(QuotaType.REQUEST)
"""The numbers of their types: places in whatever has one thing for each, where every request looks.
"""
_NO_MATTER_WHAT: Final = (NOTHING,) * len(_KINDS)
"""Is free: rates are wanted."""

QuotaUser = tuple[str, str]
"""A principal's name and a client-id, as they came; no client-id is an empty one."""


class AnyGroup(Protocol):
    """See `counter.Group`."""

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
    """See `ledger.Ledger`."""

    samples: int
    window_ms: int

    def note_set(self, number: int, bits: int) -> int: ...

    def group(self, tags: Tags, now_ms: int) -> AnyGroup: ...

    def named(self, name: str, now_ms: int) -> AnyGroup: ...


class QuotaLimits(NamedTuple):
    """What may be used of each type, infinity where there is no bound."""

    bounds: tuple[float, ...]
    deferred_limit: tuple[float, ...]
    """See `rate.spare`."""
    deferred_request_max: tuple[float, ...]
    """See `rate.small`."""
    table: QuotaTable
    """Which says so."""


class QuotaState:
    """Where the requests of somebody count, and what they may use there, one for each type.

    As small as can be: each of ten thousand clients has one in every process.
    """

    __slots__ = ("bounds", "group", "groups", "is_near", "limits")

    def __init__(self, groups: Sequence[AnyGroup], limits: QuotaLimits) -> None:
        self.group = groups[0] if len(set(map(id, groups))) == 1 else None
        """That of all types, if it is the same, which it is as a rule."""
        self.groups = None if self.group else groups
        """Otherwise that of each."""
        self.limits = limits
        self.is_near = False
        """Whether they have used so much that no promise would be given."""
        self.bounds: Sequence[Bound | None] | None = None
        """What says so: `Quotas.bounds` looks it up once somebody asks, for it takes as much memory
        again as all else that a process remembers of ten thousand clients.
        """

    def group_of(self, number: int) -> AnyGroup:
        """Where a type counts."""
        if self.group is not None:
            return self.group
        assert self.groups is not None
        return self.groups[number]


class DeferredRecord:
    """To count a request of somebody when it is answered, as surely no quota holds it.

    That gets who has used much less than there is, which is nearly everybody.
    """

    __slots__ = ("_group", "_limits", "_now_ms", "_quotas", "_size", "_worked_ns", "number")

    def __init__(
        self, quotas: ClientQuotaManager, number: int, group: AnyGroup, limits: QuotaLimits
    ) -> None:
        self.number = number
        """Of the type of the bytes that it moves."""
        self._quotas = quotas
        self._group = group
        self._limits = limits

    def start(self, size: int, worked_ns: int, now_ms: int) -> bool:
        """Whether it is given. Then nothing else may be done with quotas before it is kept."""
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
        """Counts that, and what was worked since; whether that has not been done before."""
        if self._quotas.deferred is not self:
            return False
        self._quotas.deferred = None
        percent = (self._worked_ns + late_ns) / NS_PER_PERCENT_SECOND
        self._group.record_deferred(self.number, self._size, percent, self._now_ms)
        return True


class Share(NamedTuple):
    """With whom a request shares a counter, and what they may use together."""

    group: AnyGroup
    bound: Bound | None


class Throttle(NamedTuple):
    """How long, and by which quota: that one's throttle times have it."""

    kind: QuotaType
    ms: int
    cause: Cause = NO_CAUSE


class QuotaCheck(NamedTuple):
    """What was found when a request was counted: the rate then, or the tokens left.

    ``ordinal`` orders what those who share the counter, and others of theirs, had counted.
    """

    kind: QuotaType
    tags: Tags
    rate: float
    bound: Bound | None
    throttle_ms: int
    now_ms: int
    ordinal: int


_FREE: Final = tuple(Throttle(kind, 0) for kind in _KINDS)
"""What nearly every request gets."""


def larger(first: Throttle, second: Throttle) -> Throttle | None:
    """The one of two throttles that holds; of equal ones the second.  None if neither does."""
    chosen = first if first.ms > second.ms else second
    return chosen if chosen.ms > 0 else None


def is_near(rates: Sequence[RateAndSpan], number: int, bounds: Sequence[float]) -> bool:
    """Whether that of a type, or of request time, is above what is `spare` of its bound."""
    (rate, _), (of_time, _) = rates
    return rate > deferred_limit(bounds[number]) or of_time > deferred_limit(bounds[_REQUEST])


class ClientQuotaManager:
    """The quotas in force.  Until `set_table` there are none."""

    def __init__(self, ledger: AnyLedger) -> None:
        self._ledger = ledger
        self.table = QuotaTable()
        """What is set now."""
        self._states: dict[QuotaUser, QuotaState] = {}
        self._same_limits: dict[tuple[float, ...], QuotaLimits] = {}
        self._exempt: AnyGroup | None = None
        self.deferred: DeferredRecord | None = None
        """What is to be counted before anything else is asked of these quotas."""
        self.bits: dict[QuotaType, int] = dict.fromkeys(_KINDS, 0)
        self._counted = (False,) * len(_KINDS)
        self.enabled = False
        """Whether there ever was a quota since the broker's start."""
        self.looked: Callable[[QuotaCheck], None] | None = None
        """Told of every look at a quota, if anybody wants to know."""
        self.set_table(self.table)

    def set_table(self, table: QuotaTable) -> None:
        """From now on these hold; counters go on, against their new bounds."""
        self.table = table
        self._states = {}
        self._same_limits = {}
        for number, kind in enumerate(_KINDS):
            self.bits[kind] = self._ledger.note_set(number, table.bits(kind))
        self._counted = tuple(self.bits[kind] > 0 for kind in _KINDS)
        self.enabled = any(self._counted)

    def share(self, kind: QuotaType, who: QuotaUser, now_ms: int) -> Share:
        """Where a request of somebody counts."""
        number = _KINDS.index(kind)
        state = self.state(who, now_ms)
        return Share(state.group_of(number), self.bounds(state)[number])

    def bounds(self, state: QuotaState) -> Sequence[Bound | None]:
        """What somebody may use, and what says so."""
        if state.bounds is None:
            tags = [state.group_of(number).tags for number in range(len(_KINDS))]
            state.bounds = self._bounds(tags)
        return state.bounds

    def _bounds(self, tags: Sequence[Tags]) -> tuple[Bound | None, ...]:
        return tuple(bound_of(self.table, *each) for each in zip(_KINDS, tags, strict=True))

    def _tags(self, kind: QuotaType, who: QuotaUser) -> Tags:
        return sharing_group(self.table, kind, self.bits[kind], sanitize(who[0]), who[1])

    def state(self, who: QuotaUser, now_ms: int) -> QuotaState:
        """The same of all types."""
        found = self._states.get(who)
        if found is None:
            tags = [self._tags(kind, who) for kind in _KINDS]
            # Types have the same sharing group as a rule, and then one lock for what they count.
            groups = {each: self._ledger.group(each, now_ms) for each in set(tags)}
            limits = self._limits(self._bounds(tags))
            found = QuotaState([groups[each] for each in tags], limits)
            if len(self._states) >= QUOTA_STATES_MAX:
                self._states.clear()
                self._same_limits.clear()
            self._states[who] = found
        return found

    def _limits(self, bounds: Sequence[Bound | None]) -> QuotaLimits:
        """Of many who may use the same there is one."""
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

    def record(self, number: int, who: QuotaUser, value: float, now_ms: int) -> Throttle:
        """Record usage of a type, given by its number; return the throttle that results."""
        if not self._counted[number]:
            return _FREE[number]
        state = self._states.get(who) or self.state(who, now_ms)
        enough = state.limits.deferred_limit[number] if self.looked is None else NOTHING
        found = state.group_of(number).record(number, value, now_ms, enough)
        return _FREE[number] if found is None else self._judged(number, state, found, now_ms)

    def _judged(self, number: int, state: QuotaState, found: RateAndSpan, now_ms: int) -> Throttle:
        (rate, span_ms), limit = found, state.limits.bounds[number]
        throttle = _FREE[number]
        if rate > limit:
            capped = _KINDS[number].row.is_capped
            longest_ms = min(self._ledger.window_ms, INT_MAX) if capped else INT_MAX
            ms = min(throttle_ms(rate, limit, span_ms), longest_ms)
            throttle = Throttle(_KINDS[number], ms, Cause(rate, span_ms, limit))
        if self.looked is not None:
            group, bound = state.group_of(number), self.bounds(state)[number]
            self.looked(
                QuotaCheck(
                    throttle.kind, group.tags, rate, bound, throttle.ms, now_ms, group.ordinal
                )
            )  # fmt: skip
        return throttle

    # Bytes -----------------------------------------------------------------------------------

    def produced(self, who: QuotaUser, size: int, now_ms: int) -> Throttle:
        """Bytes that somebody sent to be kept."""
        return self.record(PRODUCE, who, size, now_ms)

    def fetched(self, who: QuotaUser, size: int, now_ms: int) -> Throttle:
        """Bytes that somebody is about to be sent."""
        return self.record(FETCH, who, size, now_ms)

    def moved_and_worked(
        self, number: int, who: QuotaUser, size: int, worked_ns: int, now_ms: int
    ) -> Throttle | None:
        """`produced` or `fetched`, by their number, and `worked` at once, which costs less.

        The throttle that holds.
        """
        if self._counted[_REQUEST] and self._counted[number]:
            state = self._states.get(who) or self.state(who, now_ms)
            group = state.group
            if group is not None:
                enough = state.limits.deferred_limit if self.looked is None else _NO_MATTER_WHAT
                percent = worked_ns / NS_PER_PERCENT_SECOND
                found = group.record_both(number, size, percent, enough, now_ms)
                if found is None:
                    state.is_near = False
                    return None
                state.is_near = is_near(found, number, state.limits.bounds)
                return larger(
                    self._judged(number, state, found[0], now_ms),
                    self._judged(_REQUEST, state, found[1], now_ms),
                )
        of_bytes = self.record(number, who, size, now_ms)
        return larger(of_bytes, self.worked(who, worked_ns, now_ms))

    def defer(self, number: int, who: QuotaUser) -> DeferredRecord | None:
        """That `moved_and_worked` of a request may wait until it is answered, if that may be."""
        if not (self._counted[_REQUEST] and self._counted[number]):
            return None
        state = self._states.get(who)
        if state is None or state.is_near or state.group is None:
            return None
        return DeferredRecord(self, number, state.group, state.limits)

    def complete_deferred(self) -> None:
        """Before anything else is done: what was promised is counted, if anything was."""
        if self.deferred is not None:
            self.deferred.complete()

    def not_fetched(self, who: QuotaUser, size: int, now_ms: int) -> int | None:
        """The same bytes, which were not sent after all; the ordinal, if they are counted."""
        if not self._counted[FETCH]:
            return None
        group = self.state(who, now_ms).group_of(FETCH)
        group.add(FETCH, -size, now_ms)
        return group.ordinal

    def fetch_bytes_max(self, who: QuotaUser, now_ms: int) -> int:
        """The most that somebody can be sent at once without being throttled for it alone."""
        if not self._counted[FETCH]:
            return INT_MAX
        ledger, limit = self._ledger, self.state(who, now_ms).limits.bounds[FETCH]
        if limit == math.inf:
            return INT_MAX
        return int(min(limit * (ledger.samples - 1) * ledger.window_ms / 1000, INT_MAX))

    # Time ------------------------------------------------------------------------------------

    def worked(self, who: QuotaUser, worked_ns: int, now_ms: int) -> Throttle:
        """Time that processes worked for somebody's request."""
        return self.record(_REQUEST, who, worked_ns / NS_PER_PERCENT_SECOND, now_ms)

    def worked_on(self, who: QuotaUser, worked_ns: int, now_ms: int) -> int | None:
        """The same of what was only known when the answer had gone: nobody is held for it now.

        The ordinal, if it is counted.
        """
        if not self._counted[_REQUEST]:
            return None
        state = self._states.get(who) or self.state(who, now_ms)
        group = state.group_of(_REQUEST)
        group.add(_REQUEST, worked_ns / NS_PER_PERCENT_SECOND, now_ms)
        return group.ordinal

    def exempt(self, worked_ns: int, now_ms: int) -> None:
        """Time worked for requests that no quota holds, whoever sent them."""
        if self._counted[_REQUEST]:
            if self._exempt is None:
                self._exempt = self._ledger.named(EXEMPT, now_ms)
            self._exempt.add(0, worked_ns / NS_PER_PERCENT_SECOND, now_ms)

    def throttled(self, throttle: Throttle, who: QuotaUser, api_key: int, now_ms: int) -> None:
        """Somebody is held, for a request of an API."""
        number = _KINDS.index(throttle.kind)
        group = self.state(who, now_ms).group_of(number)
        group.throttled(number, throttle.ms, api_key, throttle.cause, now_ms)
