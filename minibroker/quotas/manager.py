"""What a request costs and how long its sender is held for it: the quotas, as one process asks.

Owns the decisions; rates are the ledger's, the clock and the connection somebody else's: ``now_ms``
is an argument, and a throttle is a number that is given back.  Invariant: whatever is recorded is
recorded once, before it is checked, and a check is violated only above the bound.  Without any
quota ever set nothing is recorded, and asking costs one look.  Echoes ``ClientQuotaManager``,
``ClientRequestQuotaManager`` and ``ControllerMutationQuotaManager``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

from minibroker.quotas.entity import (
    Bound,
    QuotaTable,
    QuotaType,
    Tags,
    bound_of,
    sanitize,
    sharing_group,
)
from minibroker.quotas.rate import java_round, throttle_ms

INT_MAX: Final = 2**31 - 1
"""A throttle's field has 32 bits."""

SHARES_MAX: Final = 16_384
"""Users with a client-id of which a process remembers who they share a counter with."""

NS_PER_PERCENT_SECOND: Final = 10_000_000
"""A percent of a second."""

EXEMPT: Final = "ExemptRequest"
"""What is counted beside the four types: the time of requests that no quota holds."""

_EXEMPT_TAGS: Final = Tags("", "")
_NUMBERS: Final[Mapping[QuotaType, int]] = {kind: n for n, kind in enumerate(QuotaType)}

Who = tuple[str, str]
"""A principal's name and a client-id, as they came; no client-id is an empty one."""


class AnyCounter(Protocol):
    """See `ledger.Counter`."""

    def add(self, value: float, now_ms: int) -> None: ...

    def record(self, value: float, now_ms: int) -> tuple[float, int]: ...

    def throttled(self, throttle_ms: int, api_key: int, now_ms: int) -> None: ...

    def tokens(self, quota: float, burst: float, now_ms: int, permits: float) -> float: ...


class AnyLedger(Protocol):
    """See `ledger.Ledger`."""

    samples: int
    window_ms: int

    def note_set(self, number: int, bits: int) -> int: ...

    def counter(self, kind: str, tags: Tags, now_ms: int) -> AnyCounter: ...


class Share(NamedTuple):
    """With whom a request shares a counter, and what they may use together."""

    counter: AnyCounter
    tags: Tags
    bound: Bound | None


class Throttle(NamedTuple):
    """How long, and by which quota: that one's throttle times have it."""

    kind: QuotaType
    ms: int


_FREE: Final = {kind: Throttle(kind, 0) for kind in QuotaType}
"""What nearly every request gets."""


def larger(first: Throttle, second: Throttle) -> Throttle | None:
    """The one of two throttles that holds; of equal ones the second.  None if neither does."""
    chosen = first if first.ms > second.ms else second
    return chosen if chosen.ms > 0 else None


class Quotas:
    """The quotas in force.  Until `set_table` there are none."""

    def __init__(self, ledger: AnyLedger) -> None:
        self._ledger = ledger
        self._table = QuotaTable()
        self._shares: dict[QuotaType, dict[Who, Share]] = {}
        self._exempt: AnyCounter | None = None
        self.bits: dict[QuotaType, int] = dict.fromkeys(QuotaType, 0)
        self.enabled = False
        """Whether there ever was a quota since the broker's start."""
        self.set_table(self._table)

    @property
    def table(self) -> QuotaTable:
        """What is set now."""
        return self._table

    def set_table(self, table: QuotaTable) -> None:
        """From now on these hold; counters go on, against their new bounds."""
        self._table = table
        self._shares = {kind: {} for kind in QuotaType}
        for kind, number in _NUMBERS.items():
            self.bits[kind] = self._ledger.note_set(number, table.bits(kind))
        self.enabled = any(self.bits.values())

    def share(self, kind: QuotaType, who: Who, now_ms: int) -> Share:
        """Where a request of somebody counts."""
        shares = self._shares[kind]
        found = shares.get(who)
        if found is None:
            tags = sharing_group(self._table, kind, self.bits[kind], sanitize(who[0]), who[1])
            bound = bound_of(self._table, kind, tags)
            found = Share(self._ledger.counter(kind, tags, now_ms), tags, bound)
            if len(shares) >= SHARES_MAX:
                shares.clear()
            shares[who] = found
        return found

    def _record(self, kind: QuotaType, who: Who, value: float, now_ms: int) -> Throttle:
        if not self.bits[kind]:
            return _FREE[kind]
        share = self._shares[kind].get(who) or self.share(kind, who, now_ms)
        rate, span_ms = share.counter.record(value, now_ms)
        if share.bound is None or rate <= share.bound.value:
            return _FREE[kind]
        return Throttle(kind, min(throttle_ms(rate, share.bound.value, span_ms), INT_MAX))

    # Bytes -----------------------------------------------------------------------------------

    def produced(self, who: Who, size: int, now_ms: int) -> Throttle:
        """Bytes that somebody sent to be kept."""
        return self._record(QuotaType.PRODUCE, who, size, now_ms)

    def fetched(self, who: Who, size: int, now_ms: int) -> Throttle:
        """Bytes that somebody is about to be sent."""
        return self._record(QuotaType.FETCH, who, size, now_ms)

    def not_fetched(self, who: Who, size: int, now_ms: int) -> None:
        """The same bytes, which were not sent after all."""
        if self.bits[QuotaType.FETCH]:
            self.share(QuotaType.FETCH, who, now_ms).counter.add(-size, now_ms)

    def fetch_bytes_max(self, who: Who, now_ms: int) -> int:
        """The most that somebody can be sent at once without being throttled for it alone."""
        if not self.bits[QuotaType.FETCH]:
            return INT_MAX
        bound = self.share(QuotaType.FETCH, who, now_ms).bound
        if bound is None:
            return INT_MAX
        ledger = self._ledger
        return int(min(bound.value * (ledger.samples - 1) * ledger.window_ms / 1000, INT_MAX))

    # Time ------------------------------------------------------------------------------------

    def worked(self, who: Who, worked_ns: int, now_ms: int) -> Throttle:
        """Time that processes worked for somebody's request; no longer held than one window."""
        percent = worked_ns / NS_PER_PERCENT_SECOND
        found = self._record(QuotaType.REQUEST, who, percent, now_ms)
        longest_ms = self._ledger.window_ms
        return found if found.ms <= longest_ms else found._replace(ms=longest_ms)

    def worked_on(self, who: Who, worked_ns: int, now_ms: int) -> None:
        """The same of what was only known when the answer had gone: nobody is held for it now."""
        if self.bits[QuotaType.REQUEST]:
            counter = self.share(QuotaType.REQUEST, who, now_ms).counter
            counter.add(worked_ns / NS_PER_PERCENT_SECOND, now_ms)

    def exempt(self, worked_ns: int, now_ms: int) -> None:
        """Time worked for requests that no quota holds, whoever sent them."""
        if self.bits[QuotaType.REQUEST]:
            if self._exempt is None:
                self._exempt = self._ledger.counter(EXEMPT, _EXEMPT_TAGS, now_ms)
            self._exempt.add(worked_ns / NS_PER_PERCENT_SECOND, now_ms)

    def throttled(self, throttle: Throttle, who: Who, api_key: int, now_ms: int) -> None:
        """Somebody is held, for a request of an API."""
        self.share(throttle.kind, who, now_ms).counter.throttled(throttle.ms, api_key, now_ms)


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

    def take(self, permits: int, now_ms: int) -> bool:
        """Counts changes; whether they may be made."""
        kind = QuotaType.CONTROLLER_MUTATION
        if not self._quotas.bits[kind]:
            return True
        counter, _, bound = self._quotas.share(kind, self._who, now_ms)
        if bound is None:
            counter.add(permits, now_ms)
            return True
        burst = bound.value * self._burst_s
        # A strict bucket is looked at before anything is taken, a permissive one afterwards.
        left = counter.tokens(bound.value, burst, now_ms, 0 if self._strict else permits)
        if self._strict and left >= 0:
            counter.tokens(bound.value, burst, now_ms, permits)
        if not self._strict or left >= 0:
            counter.add(permits, now_ms)
        if left >= 0:
            return True
        self._throttle_ms = min(java_round(-left / bound.value * 1000), INT_MAX)
        self._since_ms = now_ms
        return not self._strict

    def throttle_ms(self, now_ms: int) -> int:
        """How long the sender is to be held, from now on."""
        return max(0, self._throttle_ms - (now_ms - self._since_ms))
