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
from minibroker.quotas.rate import NO_CAUSE, Cause, free, java_round, small, spare, throttle_ms
from minibroker.quotas.types import CLIENT_QUOTA_TYPES, INT_MAX, QuotaType

STANDINGS_MAX: Final = 16_384
"""Users with a client-id of which a process remembers who they share counters with."""

NS_PER_PERCENT_SECOND: Final = 10_000_000
"""A percent of a second."""

EXEMPT: Final = "ExemptRequest"
"""What is counted beside the four types: the time of requests that no quota holds."""

_KINDS: Final = CLIENT_QUOTA_TYPES
PRODUCE, FETCH = _KINDS.index(QuotaType.PRODUCE), _KINDS.index(QuotaType.FETCH)
_REQUEST = _KINDS.index(QuotaType.REQUEST)
_MUTATION = _KINDS.index(QuotaType.CONTROLLER_MUTATION)
"""The numbers of their types: places in whatever has one thing for each, where every request looks.
"""
_NO_MATTER_WHAT: Final = (NOTHING,) * len(_KINDS)
"""Is free: rates are wanted."""

Who = tuple[str, str]
"""A principal's name and a client-id, as they came; no client-id is an empty one."""


class AnyGroup(Protocol):
    """See `counter.Group`."""

    tags: Tags

    ordinal: int

    def add(self, number: int, value: float, now_ms: int) -> None: ...

    def record(
        self, number: int, value: float, now_ms: int, free: float = ...
    ) -> RateAndSpan | None: ...

    def record_both(
        self, number: int, value: float, percent: float, free: Sequence[float], now_ms: int
    ) -> tuple[RateAndSpan, RateAndSpan] | None: ...

    def promise(self, number: int, spare: Sequence[float]) -> bool: ...

    def keep(self, number: int, value: float, percent: float, now_ms: int) -> None: ...

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


class Limits(NamedTuple):
    """What may be used of each type, infinity where there is no bound."""

    bounds: tuple[float, ...]
    spare: tuple[float, ...]
    """See `rate.spare`."""
    small: tuple[float, ...]
    """See `rate.small`."""
    table: QuotaTable
    """Which says so."""


class Standing:
    """Where the requests of somebody count, and what they may use there, one for each type.

    As small as can be: each of ten thousand clients has one in every process.
    """

    __slots__ = ("bounds", "group", "groups", "is_near", "limits")

    def __init__(self, groups: Sequence[AnyGroup], limits: Limits) -> None:
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


class Promise:
    """To count a request of somebody when it is answered, as surely no quota holds it.

    That gets who has used much less than there is, which is nearly everybody.
    """

    __slots__ = ("_group", "_limits", "_now_ms", "_quotas", "_size", "_worked_ns", "number")

    def __init__(self, quotas: Quotas, number: int, group: AnyGroup, limits: Limits) -> None:
        self.number = number
        """Of the type of the bytes that it moves."""
        self._quotas = quotas
        self._group = group
        self._limits = limits

    def give(self, size: int, worked_ns: int, now_ms: int) -> bool:
        """Whether it is given. Then nothing else may be done with quotas before it is kept."""
        number, limits, percent = self.number, self._limits, worked_ns / NS_PER_PERCENT_SECOND
        if (
            size > limits.small[number]
            or percent > limits.small[_REQUEST]
            or limits.table is not self._quotas.table
            or not self._group.promise(number, limits.spare)
        ):
            return False
        self._size = size
        self._worked_ns = worked_ns
        self._now_ms = now_ms
        self._quotas.promised = self
        return True

    def keep(self, late_ns: int = 0) -> bool:
        """Counts that, and what was worked since; whether that has not been done before."""
        if self._quotas.promised is not self:
            return False
        self._quotas.promised = None
        percent = (self._worked_ns + late_ns) / NS_PER_PERCENT_SECOND
        self._group.keep(self.number, self._size, percent, self._now_ms)
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


class Look(NamedTuple):
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
    return rate > spare(bounds[number]) or of_time > spare(bounds[_REQUEST])


class Quotas:
    """The quotas in force.  Until `set_table` there are none."""

    def __init__(self, ledger: AnyLedger) -> None:
        self._ledger = ledger
        self.table = QuotaTable()
        """What is set now."""
        self._standings: dict[Who, Standing] = {}
        self._same_limits: dict[tuple[float, ...], Limits] = {}
        self._exempt: AnyGroup | None = None
        self.promised: Promise | None = None
        """What is to be counted before anything else is asked of these quotas."""
        self.bits: dict[QuotaType, int] = dict.fromkeys(_KINDS, 0)
        self._counted = (False,) * len(_KINDS)
        self.enabled = False
        """Whether there ever was a quota since the broker's start."""
        self.looked: Callable[[Look], None] | None = None
        """Told of every look at a quota, if anybody wants to know."""
        self.set_table(self.table)

    def set_table(self, table: QuotaTable) -> None:
        """From now on these hold; counters go on, against their new bounds."""
        self.table = table
        self._standings = {}
        self._same_limits = {}
        for number, kind in enumerate(_KINDS):
            self.bits[kind] = self._ledger.note_set(number, table.bits(kind))
        self._counted = tuple(self.bits[kind] > 0 for kind in _KINDS)
        self.enabled = any(self._counted)

    def share(self, kind: QuotaType, who: Who, now_ms: int) -> Share:
        """Where a request of somebody counts."""
        number = _KINDS.index(kind)
        standing = self.standing(who, now_ms)
        return Share(standing.group_of(number), self.bounds(standing)[number])

    def bounds(self, standing: Standing) -> Sequence[Bound | None]:
        """What somebody may use, and what says so."""
        if standing.bounds is None:
            tags = [standing.group_of(number).tags for number in range(len(_KINDS))]
            standing.bounds = self._bounds(tags)
        return standing.bounds

    def _bounds(self, tags: Sequence[Tags]) -> tuple[Bound | None, ...]:
        return tuple(bound_of(self.table, *each) for each in zip(_KINDS, tags, strict=True))

    def _tags(self, kind: QuotaType, who: Who) -> Tags:
        return sharing_group(self.table, kind, self.bits[kind], sanitize(who[0]), who[1])

    def standing(self, who: Who, now_ms: int) -> Standing:
        """The same of all types."""
        found = self._standings.get(who)
        if found is None:
            tags = [self._tags(kind, who) for kind in _KINDS]
            # Types have the same sharing group as a rule, and then one lock for what they count.
            groups = {each: self._ledger.group(each, now_ms) for each in set(tags)}
            limits = self._limits(self._bounds(tags))
            found = Standing([groups[each] for each in tags], limits)
            if len(self._standings) >= STANDINGS_MAX:
                self._standings.clear()
                self._same_limits.clear()
            self._standings[who] = found
        return found

    def _limits(self, bounds: Sequence[Bound | None]) -> Limits:
        """Of many who may use the same there is one."""
        ledger = self._ledger
        values = tuple(math.inf if bound is None else bound.value for bound in bounds)
        if values not in self._same_limits:
            found = [free(value, ledger.samples, ledger.window_ms) for value in values]
            self._same_limits[values] = Limits(
                values, tuple(map(spare, found)), tuple(map(small, found)), self.table
            )
        return self._same_limits[values]

    def record(self, number: int, who: Who, value: float, now_ms: int) -> Throttle:
        """Record usage of a type, given by its number; return the throttle that results."""
        if not self._counted[number]:
            return _FREE[number]
        standing = self._standings.get(who) or self.standing(who, now_ms)
        enough = standing.limits.spare[number] if self.looked is None else NOTHING
        found = standing.group_of(number).record(number, value, now_ms, enough)
        return _FREE[number] if found is None else self._judged(number, standing, found, now_ms)

    def _judged(self, number: int, standing: Standing, found: RateAndSpan, now_ms: int) -> Throttle:
        (rate, span_ms), limit = found, standing.limits.bounds[number]
        throttle = _FREE[number]
        if rate > limit:
            capped = _KINDS[number].row.is_capped
            longest_ms = min(self._ledger.window_ms, INT_MAX) if capped else INT_MAX
            ms = min(throttle_ms(rate, limit, span_ms), longest_ms)
            throttle = Throttle(_KINDS[number], ms, Cause(rate, span_ms, limit))
        if self.looked is not None:
            group, bound = standing.group_of(number), self.bounds(standing)[number]
            self.looked(
                Look(
                    throttle.kind, group.tags, rate, bound, throttle.ms, now_ms, group.ordinal
                )
            )  # fmt: skip
        return throttle

    # Bytes -----------------------------------------------------------------------------------

    def produced(self, who: Who, size: int, now_ms: int) -> Throttle:
        """Bytes that somebody sent to be kept."""
        return self.record(PRODUCE, who, size, now_ms)

    def fetched(self, who: Who, size: int, now_ms: int) -> Throttle:
        """Bytes that somebody is about to be sent."""
        return self.record(FETCH, who, size, now_ms)

    def moved_and_worked(
        self, number: int, who: Who, size: int, worked_ns: int, now_ms: int
    ) -> Throttle | None:
        """`produced` or `fetched`, by their number, and `worked` at once, which costs less.

        The throttle that holds.
        """
        if self._counted[_REQUEST] and self._counted[number]:
            standing = self._standings.get(who) or self.standing(who, now_ms)
            group = standing.group
            if group is not None:
                enough = standing.limits.spare if self.looked is None else _NO_MATTER_WHAT
                percent = worked_ns / NS_PER_PERCENT_SECOND
                found = group.record_both(number, size, percent, enough, now_ms)
                if found is None:
                    standing.is_near = False
                    return None
                standing.is_near = is_near(found, number, standing.limits.bounds)
                return larger(
                    self._judged(number, standing, found[0], now_ms),
                    self._judged(_REQUEST, standing, found[1], now_ms),
                )
        of_bytes = self.record(number, who, size, now_ms)
        return larger(of_bytes, self.worked(who, worked_ns, now_ms))

    def promise(self, number: int, who: Who) -> Promise | None:
        """That `moved_and_worked` of a request may wait until it is answered, if that may be."""
        if not (self._counted[_REQUEST] and self._counted[number]):
            return None
        standing = self._standings.get(who)
        if standing is None or standing.is_near or standing.group is None:
            return None
        return Promise(self, number, standing.group, standing.limits)

    def keep_promise(self) -> None:
        """Before anything else is done: what was promised is counted, if anything was."""
        if self.promised is not None:
            self.promised.keep()

    def not_fetched(self, who: Who, size: int, now_ms: int) -> int | None:
        """The same bytes, which were not sent after all; the ordinal, if they are counted."""
        if not self._counted[FETCH]:
            return None
        group = self.standing(who, now_ms).group_of(FETCH)
        group.add(FETCH, -size, now_ms)
        return group.ordinal

    def fetch_bytes_max(self, who: Who, now_ms: int) -> int:
        """The most that somebody can be sent at once without being throttled for it alone."""
        if not self._counted[FETCH]:
            return INT_MAX
        ledger, limit = self._ledger, self.standing(who, now_ms).limits.bounds[FETCH]
        if limit == math.inf:
            return INT_MAX
        return int(min(limit * (ledger.samples - 1) * ledger.window_ms / 1000, INT_MAX))

    # Time ------------------------------------------------------------------------------------

    def worked(self, who: Who, worked_ns: int, now_ms: int) -> Throttle:
        """Time that processes worked for somebody's request."""
        return self.record(_REQUEST, who, worked_ns / NS_PER_PERCENT_SECOND, now_ms)

    def worked_on(self, who: Who, worked_ns: int, now_ms: int) -> int | None:
        """The same of what was only known when the answer had gone: nobody is held for it now.

        The ordinal, if it is counted.
        """
        if not self._counted[_REQUEST]:
            return None
        standing = self._standings.get(who) or self.standing(who, now_ms)
        group = standing.group_of(_REQUEST)
        group.add(_REQUEST, worked_ns / NS_PER_PERCENT_SECOND, now_ms)
        return group.ordinal

    def exempt(self, worked_ns: int, now_ms: int) -> None:
        """Time worked for requests that no quota holds, whoever sent them."""
        if self._counted[_REQUEST]:
            if self._exempt is None:
                self._exempt = self._ledger.named(EXEMPT, now_ms)
            self._exempt.add(0, worked_ns / NS_PER_PERCENT_SECOND, now_ms)

    def throttled(self, throttle: Throttle, who: Who, api_key: int, now_ms: int) -> None:
        """Somebody is held, for a request of an API."""
        number = _KINDS.index(throttle.kind)
        group = self.standing(who, now_ms).group_of(number)
        group.throttled(number, throttle.ms, api_key, throttle.cause, now_ms)


class Mutated(NamedTuple):
    """What one request changed of the cluster, or was refused to, in partitions; ``look`` at the
    quota is the last there was.
    """

    wanted: int
    refused: int
    strict: bool
    look: Look | None
    throttle_ms: int


UNCOUNTED: Final = Mutated(0, 0, False, None, 0)
"""Of a request that was not carried out."""


class MutationQuota:
    """What one request may change of the cluster: a bucket of tokens, a token a partition.

    ``strict`` refuses once the bucket is overdrawn, otherwise the request is done and its sender
    held (KIP-599).
    """

    def __init__(
        self, quotas: Quotas, who: Who, *, windows: int, window_ms: int, strict: bool
    ) -> None:
        self._quotas = quotas
        self._who = who
        self._burst_s = windows * window_ms / 1000
        self._strict = strict
        self._throttle_ms = 0
        self._since_ms = 0
        self._wanted = 0
        self._refused = 0
        self._look: Look | None = None

    def take(self, permits: int, now_ms: int) -> bool:
        """Counts changes; whether they may be made."""
        self._wanted += permits
        may = self._take(permits, now_ms)
        self._refused += 0 if may else permits
        return may

    def _take(self, permits: int, now_ms: int) -> bool:
        kind = QuotaType.CONTROLLER_MUTATION
        if not self._quotas.bits[kind]:
            return True
        group, bound = self._quotas.share(kind, self._who, now_ms)
        if bound is None:
            group.add(_MUTATION, permits, now_ms)
            self._look = Look(kind, group.tags, 0.0, None, 0, now_ms, group.ordinal)
            return True
        burst = bound.value * self._burst_s
        # A strict bucket is looked at before anything is taken, a permissive one afterwards.
        at_once = 0 if self._strict else permits
        left = group.tokens(_MUTATION, bound.value, burst, now_ms, at_once)
        if left < 0:
            self._throttle_ms = min(java_round(-left / bound.value * 1000), INT_MAX)
            self._since_ms = now_ms
            if not self._strict:
                group.add(_MUTATION, permits, now_ms)
            ordinal = group.ordinal
            self._look = Look(kind, group.tags, left, bound, self._throttle_ms, now_ms, ordinal)
            return not self._strict
        if self._strict:
            left = group.tokens(_MUTATION, bound.value, burst, now_ms, permits)
        group.add(_MUTATION, permits, now_ms)
        self._look = Look(kind, group.tags, left, bound, 0, now_ms, group.ordinal)
        return True

    def throttle_ms(self, now_ms: int) -> int:
        """How long the sender is to be held, from now on."""
        return max(0, self._throttle_ms - (now_ms - self._since_ms))

    def mutated(self, now_ms: int) -> Mutated:
        """What came of it."""
        throttle_ms = self.throttle_ms(now_ms)
        return Mutated(self._wanted, self._refused, self._strict, self._look, throttle_ms)
