"""A replay in plain Python with the broker's own modules, the reference for the compiled one.

Owns the order of events and none of the arithmetic: ``quotas.manager`` decides over the ledger of
the quotas' own tests, as in ``network.quota_stage``. Invariant: nothing here is taken from the
compiled replay, and speed doesn't matter.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from minibroker.broker.quotas.manager import ClientQuotaManager, MutationQuota, Throttle, larger
from minibroker.broker.quotas.types import QuotaType
from minibroker.pipeline.whatif.proposal import Counting, Proposal
from tests.broker.quotas.oracle import OracleLedger

LENGTH_BYTES = 4


@dataclass(frozen=True)
class Event:
    """A request, as described by its activity event."""

    sequence: int
    clock_ms: int
    user: str = "u"
    client_id: str = "c"
    what: str = "other"
    """``produce``, ``fetch``, ``mutate`` or ``other``."""
    size: int = 0
    """As it is counted."""
    permits: int = 0
    strict: bool = False
    unthrottled: bool = False
    """Metadata would have made topics."""
    exempt: bool = False
    checked_ns: int = 0
    late_ns: int = 0
    late_clock_ms: int | None = None
    broker: int = 0
    connection: int = 0
    throttle_ms: int = 0
    repeated: bool = False
    started_us: int = 1
    ordinal: int | None = None
    time_ordinal: int | None = None
    back_ordinal: int | None = None
    late_ordinal: int | None = None

    @property
    def who(self) -> tuple[str, str]:
        return self.user, self.client_id


class Decision(NamedTuple):
    """How long a sender is throttled, and by which quota type."""

    ms: int
    kind: QuotaType | None


class Broker:
    """One broker's quotas."""

    def __init__(self, proposal: Proposal, counting: Counting) -> None:
        self.counting = counting
        self.quotas = ClientQuotaManager(
            OracleLedger(counting.quota_window_num, counting.window_ms)
        )
        self.quotas.set_table(proposal.table)

    def first(self, event: Event, size: int, now_ms: int) -> Throttle:
        if event.what == "produce":
            return self.quotas.produced(event.who, size, now_ms)
        if event.what == "fetch":
            if event.exempt:
                return Throttle(QuotaType.FETCH, 0)
            return self.quotas.fetched(event.who, size, now_ms)
        requested_ms = 0
        if event.what == "mutate":
            counting = self.counting
            quota = MutationQuota(
                self.quotas,
                event.who,
                windows=counting.controller_quota_window_num,
                window_ms=counting.controller_quota_window_size_seconds * 1000,
                strict=event.strict,
            )
            quota.take(event.permits, now_ms)
            requested_ms = 0 if event.unthrottled else quota.throttle_ms(now_ms)
        return Throttle(QuotaType.CONTROLLER_MUTATION, requested_ms)

    def worked(self, event: Event, now_ms: int) -> Throttle:
        if event.exempt:
            self.quotas.exempt(event.checked_ns, now_ms)
            return Throttle(QuotaType.REQUEST, 0)
        return self.quotas.worked(event.who, event.checked_ns, now_ms)

    def late(self, event: Event, now_ms: int) -> None:
        if event.exempt:
            self.quotas.exempt(event.late_ns, now_ms)
        else:
            self.quotas.record_later_time(event.who, event.late_ns, now_ms)


def open_loop(events: list[Event], proposal: Proposal, counting: Counting) -> dict[int, Decision]:
    """Return the decisions by sequence; clients are muted or, with ``delays``, responses
    delayed.
    """
    brokers = {event.broker: Broker(proposal, counting) for event in events}
    numbers = count()
    happen = [
        (event.clock_ms, event.sequence, next(numbers), "first", event, 0) for event in events
    ]
    heapq.heapify(happen)
    decided: dict[int, Decision] = {}
    while happen:
        now_ms, sequence, _, what, event, before_ms = heapq.heappop(happen)
        broker = brokers[event.broker]

        def later(
            ms: int, what: str, before_ms: int, event: Event = event, sequence: int = sequence
        ) -> None:
            heapq.heappush(happen, (ms, sequence, next(numbers), what, event, before_ms))

        if what == "late":
            broker.late(event, now_ms)
            continue
        if what == "first":
            first = broker.first(event, event.size, now_ms)
            if counting.delays and first.ms:
                decided[sequence] = Decision(first.ms, first.kind)
                later(now_ms + first.ms, "second", first.ms)
                continue
            before_ms = 0
        else:
            first = Throttle(QuotaType.PRODUCE, 0)
        second = broker.worked(event, now_ms)
        throttle = larger(first, second)
        if counting.delays:
            kind = second.kind if second.ms else decided.get(sequence, Decision(0, None)).kind
            decided[sequence] = Decision(before_ms + second.ms, kind)
        else:
            decided[sequence] = (
                Decision(0, None) if throttle is None else Decision(throttle.ms, throttle.kind)
            )
            if throttle is not None and event.what == "fetch" and not event.exempt:
                broker.quotas.take_back_fetch(event.who, event.size, now_ms)
        if event.late_clock_ms is not None:
            ended_ms = event.late_clock_ms
            if counting.delays:
                service_ms = event.late_clock_ms - event.clock_ms - event.throttle_ms
                ended_ms = now_ms + second.ms + max(0, service_ms)
            later(ended_ms, "late", 0)
    return decided
