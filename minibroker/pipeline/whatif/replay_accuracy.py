"""The accuracy of a replay: compares its decisions with the recorded ones.

Owns the comparison and the reasons for differences; it must never correct a replay. Invariant:
every decision is either equal to the millisecond or has one of the reasons below, the last of which
is unknown. A reason is a verified fact about the recording, such as missing events, not a guess.
Kafka has no counterpart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from minibroker.lab.activity.events import ActivityKind
from minibroker.pipeline.report import formats
from minibroker.pipeline.whatif.addresses import ConnectionDecision, RecheckDecision
from minibroker.pipeline.whatif.columns import (
    CHECKS,
    EXEMPT,
    MUTATES,
    NEVER,
    Answers,
    Flags,
    Floats,
    Longs,
    Requests,
    Sharing,
    check_field,
    longs,
    of_kind,
)
from minibroker.pipeline.whatif.proposal import Counting
from minibroker.pipeline.whatif.replay import Replay
from minibroker.pipeline.whatif.rows import CLOSED


class Comparison(StrEnum):
    """How a replayed decision compares with the recorded one: equal, or why it differs."""

    EQUAL = "equal"
    BEFORE = "usage from before the start of the recording is unknown"
    DROPPED = "the broker dropped events, so some are missing"
    QUOTA = "a different quota was in force"
    TOPICS = "some topics of a request with several topics were rejected"
    ORDER = "other usage was recorded in the same millisecond, in an unknown order"
    AFTER = "an unknown order shortly before affected this counter"
    UNKNOWN = "not explained"


class LeftOut(StrEnum):
    """Recorded decisions on connections that are not compared."""

    BEFORE = "decisions in the first seconds, when the counters are unknown"
    SAMPLED = "connections of a sampled recording, because the others are unknown"
    AT_ONCE = "connections rejected at once, because too many were delayed"
    UNFINISHED = "connections whose delay ended after the recording"


class ComparedDecision(StrEnum):
    """What a row is about."""

    REQUEST = "request"
    CONNECTION = "connection"
    LEFT_OUT = "left out"


NEAR_MS: Final = 1
"""A process reads the clock before it records, so others may record first within this time.
Ordinals give the order, except for events recorded without quotas, and for delayed responses.
"""

COMPARED: Final = pa.schema(
    [
        ("subject", pa.string()),
        ("why", pa.string()),
        ("decisions", pa.int64()),
        ("throttles", pa.int64()),
        ("broker", pa.int32()),
        ("sequence", pa.int64()),
        ("recorded_ms", pa.int64()),
        ("replayed_ms", pa.int64()),
    ]
)
"""A row for all equal decisions of a task, and one for each different one. On a connection, the
time is its delay: 0 if it was admitted, null if it was rejected after its delay. A row of what is
left out has the number of decisions, and the reason.
"""

_FAR: Final = 1 << 42


@dataclass(frozen=True)
class ReplayAccuracy:
    """The result; ``throttles`` are the decisions to throttle, in the recording or the replay."""

    decisions: int
    throttles: int
    equal: int
    """How many of ``throttles`` are equal."""
    differing: dict[Comparison, int]
    examples: Sequence[tuple[int, int, int | None, int | None, Comparison]]
    """Broker, sequence, recorded throttle, replayed throttle, and reason of some differences."""
    connections: ReplayAccuracy | None = None
    """The decisions on connections, as delays and rechecks; None for the part itself."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """How many decisions on connections were not compared, by reason."""

    @property
    def share(self) -> float:
        """The share of throttles that are equal to the millisecond."""
        return self.equal / self.throttles if self.throttles else 1.0


def compare_decisions(
    run: Replay, events: pa.Table, counting: Counting, dropped: Mapping[int, Sequence[int]]
) -> pa.RecordBatch:
    """Compare the decisions of a replay of ``events``, under one proposal, since the last call.

    ``dropped`` are the times, by broker, of reports of dropped events.
    """
    ((_, requests, answers),) = run.answered
    run.answered.clear()
    brokers = np.array([sender.broker for sender in run.senders.all], np.int64)[requests.group]
    facts = _aligned(of_kind(events, ActivityKind.REQUEST), brokers, requests.sequence)
    replayed = answers.throttles[:, 0]
    rows = np.flatnonzero(replayed != requests.throttled_ms)
    whys = _reasons(run, requests, answers, facts, counting, _times(dropped, brokers), rows)
    equal = replayed == requests.throttled_ms
    columns = {
        "subject": [ComparedDecision.REQUEST.value] * (len(rows) + 1),
        "why": [Comparison.EQUAL.value, *whys],
        "decisions": [int(equal.sum()), *[1] * len(rows)],
        "throttles": [int((equal & (replayed > 0)).sum()), *[1] * len(rows)],
        "broker": [None, *brokers[rows].tolist()],
        "sequence": [None, *requests.sequence[rows].tolist()],
        "recorded_ms": [None, *requests.throttled_ms[rows].tolist()],
        "replayed_ms": [None, *replayed[rows].tolist()],
    }
    return pa.RecordBatch.from_pydict(columns, schema=COMPARED)


def compare_connections(
    run: Replay, counting: Counting, dropped: Mapping[int, Sequence[int]]
) -> pa.RecordBatch:
    """Compare the decisions on connections of a replay under one proposal, since the last call."""
    (addresses,) = run.addresses
    brokers = run.senders.lives.brokers()
    equal: Counter[bool] = Counter()
    """The number of equal decisions, by whether the connection was throttled."""
    left_out: Counter[str] = Counter(run.arrivals.not_replayed)
    rows: list[dict[str, object]] = []
    for decision in addresses.decided:
        if isinstance(decision, RecheckDecision) and not decision.was_delayed_equally:
            continue  # The decision to delay it is already different.
        reason = _left_out(decision)
        if reason is not None:
            left_out[reason] += 1
            continue
        recorded_ms, replayed_ms = _outcomes(decision)
        if recorded_ms == replayed_ms:
            equal[isinstance(decision, RecheckDecision) or decision.delay_ms > 0] += 1
            continue
        arrival = decision.arrival
        broker = brokers[arrival.life]
        why = _reason_of_connection(decision, counting, dropped.get(broker, ()))
        rows.append(
            {
                "subject": ComparedDecision.CONNECTION.value,
                "why": why.value,
                "decisions": 1,
                "throttles": 1,
                "broker": broker,
                "sequence": arrival.sequence,
                "recorded_ms": recorded_ms,
                "replayed_ms": replayed_ms,
            }
        )
    addresses.decided.clear()
    run.arrivals.not_replayed.clear()
    same = {"why": Comparison.EQUAL.value, "decisions": equal.total(), "throttles": equal[True]}
    rows.append({"subject": ComparedDecision.CONNECTION.value, **same})
    rows += (
        {
            "subject": ComparedDecision.LEFT_OUT.value,
            "why": why,
            "decisions": number,
            "throttles": 0,
        }
        for why, number in left_out.items()
        if number
    )
    return pa.RecordBatch.from_pylist(rows, schema=COMPARED)


def _left_out(decision: ConnectionDecision | RecheckDecision) -> LeftOut | None:
    arrival = decision.arrival
    if arrival.is_sampled:
        return LeftOut.SAMPLED
    if arrival.delay_ms is None:
        return LeftOut.AT_ONCE
    if isinstance(decision, RecheckDecision) and arrival.recheck is None:
        return LeftOut.UNFINISHED
    return LeftOut.BEFORE if decision.is_repeated else None


def _outcomes(decision: ConnectionDecision | RecheckDecision) -> tuple[int | None, int | None]:
    """The recorded and the replayed delay, as in ``COMPARED``."""
    arrival = decision.arrival
    if isinstance(decision, ConnectionDecision):
        return arrival.delay_ms, decision.delay_ms
    assert arrival.recheck is not None
    return 0 if arrival.recheck.admitted else None, 0 if decision.admitted else None


def _reason_of_connection(
    decision: ConnectionDecision | RecheckDecision,
    counting: Counting,
    dropped: Sequence[int],
) -> Comparison:
    """Why a decision differs. A wrong one changes later ones, so a dropped event explains all."""
    if any(at <= decision.arrival.ms + counting.remembered_ms for at in dropped):
        return Comparison.DROPPED
    if isinstance(decision, ConnectionDecision) and not decision.is_limited:
        return Comparison.QUOTA
    return Comparison.UNKNOWN


def _aligned(seen: pa.Table, brokers: Longs, sequence: Longs) -> pa.Table:
    """The events in the order of the given rows."""
    there = np.lexsort((longs(seen, "sequence"), longs(seen, "broker")))
    here = np.lexsort((sequence, brokers))
    order = np.empty(len(here), np.int64)
    order[here] = there
    return seen.take(pa.array(order))


def _times(dropped: Mapping[int, Sequence[int]], brokers: Longs) -> dict[int, Longs]:
    return {
        broker: np.sort(np.array(dropped.get(broker, ()), np.int64))
        for broker in np.unique(brokers).tolist()
    }


def _reasons(
    run: Replay,
    requests: Requests,
    answers: Answers,
    facts: pa.Table,
    counting: Counting,
    dropped: Mapping[int, Longs],
    rows: Longs,
) -> list[str]:
    if not len(rows):
        return []
    sharing = run.sharing(0)
    component = np.array(run.components(), np.int64)[requests.group]
    loose = np.full(len(facts), True) if counting.delays else ~_valid(facts, "ordinal")
    near = _near(requests, component) & np.isin(component, component[loose])
    other_rate = _rate_differs(facts, answers)
    other_quota = _quota_differs(facts, sharing, requests)
    unsure = _keys(component, requests.ms, np.flatnonzero(near & other_rate))
    brokers = longs(facts, "broker")
    refused, wanted = longs(facts, "mutations_refused"), longs(facts, "mutations")
    by_topic = (requests.flags & MUTATES > 0) & (refused > 0) & (refused < wanted)
    remembered_ms = counting.remembered_ms
    found = []
    for row in rows.tolist():
        ms, times = int(requests.ms[row]), dropped[int(brokers[row])]
        since = _key(int(component[row]), ms - remembered_ms)
        tests = (
            (Comparison.BEFORE, ms < sharing.counted_from_ms[requests.group[row]]),
            (Comparison.DROPPED, _between(times, ms - remembered_ms, ms + remembered_ms)),
            (Comparison.QUOTA, other_quota[row]),
            (Comparison.TOPICS, by_topic[row]),
            (Comparison.ORDER, near[row]),
            (Comparison.AFTER, _between(unsure, since, _key(int(component[row]), ms))),
        )
        found.append(next((why for why, holds in tests if holds), Comparison.UNKNOWN).value)
    return found


def _between(times: Longs, first: int, last: int) -> bool:
    return bool(np.searchsorted(times, first) < np.searchsorted(times, last, side="right"))


def _key(component: int, ms: int) -> int:
    return component * _FAR + ms


def _keys(component: Longs, ms: Longs, rows: Longs) -> Longs:
    found: Longs = np.sort(component[rows] * _FAR + ms[rows])
    return found


def _near(requests: Requests, component: Longs) -> Flags:
    """Flag requests within ``NEAR_MS`` of another amount in the same component."""
    late = np.flatnonzero((requests.late_ms != NEVER) & (requests.flags & EXEMPT == 0))
    everything = np.arange(len(component))
    counted = np.sort(
        np.concatenate(
            (_keys(component, requests.ms, everything), _keys(component, requests.late_ms, late))
        )
    )
    at = component * _FAR + requests.ms
    company = np.searchsorted(counted, at + NEAR_MS, side="right")
    company -= np.searchsorted(counted, at - NEAR_MS)
    own = 1 + (np.abs(requests.late_ms - requests.ms) <= NEAR_MS)
    found: Flags = company > own
    return found


def _numbers(facts: pa.Table, check: str, field: str) -> Floats:
    """A figure of recorded quota checks; NaN if there was no check."""
    column = pc.cast(check_field(facts, check, field), pa.float64())
    return column.to_numpy(zero_copy_only=False).astype(np.float64)  # type: ignore[no-any-return]


def _rate_differs(facts: pa.Table, answers: Answers) -> Flags:
    found = np.zeros(len(facts), np.bool_)
    for kind, check in enumerate(CHECKS):
        recorded, replayed = _numbers(facts, check, "rate"), answers.rate[:, kind]
        looked_at = (answers.type_throttles[:, kind] >= 0) & ~np.isnan(recorded)
        found |= looked_at & ~np.isclose(recorded, replayed, rtol=1e-9, atol=1e-9)
    return found


def _quota_differs(facts: pa.Table, sharing: Sharing, requests: Requests) -> Flags:
    """Flag rows whose recorded bound differs from the replayed one."""
    found = np.zeros(len(facts), np.bool_)
    for kind, check in enumerate(CHECKS):
        recorded = _numbers(facts, check, "bound")
        here = sharing.counter[requests.group, kind] >= 0
        bound = np.where(here, sharing.bound[requests.group, kind], np.nan)
        looked_at = _valid(facts, check)
        found |= looked_at & ~((recorded == bound) | (np.isnan(recorded) & np.isnan(bound)))
    return found


def _valid(facts: pa.Table, check: str) -> Flags:
    found: Flags = pc.is_valid(facts.column(check)).to_numpy()
    return found


# ------- A short summary of the outcome: the most throttled entities, and a comparison of proposals
# Owns the selection and the text; it must never decide or replay anything. Invariant: the rows
# collected are bounded by `LISTED_MAX`, whatever the size of the outcome, and every proposal is
# mentioned, even if it throttles no entity. Kafka has no counterpart.


LISTED_MAX: Final = 8
"""Entities listed under each proposal, those throttled longest."""

NAME_MAX: Final = 30

_WHO: Final = ("user", "client_id", "ip")


def summary(outcome: DataFrame, proposals: Sequence[str], loops: Sequence[str]) -> Iterator[str]:
    """The lines of the summary."""
    whole = outcome.where("start_us is null")
    totals = {(row.proposal, row.loop): row for row in _totals(whole).collect()}
    for proposal in proposals:
        for loop in loops:
            yield ""
            yield from _replay_lines(whole, totals.get((proposal, loop)), proposal, loop)
    if len(proposals) * len(loops) > 1:
        yield ""
        yield from _compared(whole, [(each, loop) for each in proposals for loop in loops])


def replay_totals(outcome: DataFrame) -> list[dict[str, Any]]:
    """The totals of each proposal and loop."""
    totals = _totals(outcome.where("start_us is null")).orderBy("proposal", "loop")
    return [row.asDict() for row in totals.collect()]


def accuracy_lines(accuracy: ReplayAccuracy) -> Iterator[str]:
    """Describe how the replay compares with the recorded decisions, and what was left out."""
    decided = f"{formats.many(accuracy.decisions, 'decision')} compared"
    yield f"{decided}: {_equal(accuracy, 'throttle', 'throttles')}"
    yield from _difference_lines(accuracy)
    connections = accuracy.connections
    if connections is not None:
        decided = f"{formats.many(connections.decisions, 'decision')} on connections compared"
        yield f"{decided}: {_equal(connections, 'delay or recheck', 'delays and rechecks')}"
        yield from _difference_lines(connections)
    if accuracy.left_out:
        yield "not compared:"
        for why, number in sorted(accuracy.left_out.items(), key=lambda each: -each[1]):
            yield f"  {formats.count(number):>10}  {why}"


def _equal(accuracy: ReplayAccuracy, one: str, more: str) -> str:
    if not accuracy.throttles:
        return f"no {one} among them"
    equal = f"{formats.count(accuracy.equal)} of {formats.many(accuracy.throttles, one, more)}"
    return f"{equal} equal to the millisecond ({accuracy.share:.3%})"


def _difference_lines(accuracy: ReplayAccuracy) -> Iterator[str]:
    for why, number in sorted(accuracy.differing.items(), key=lambda each: -each[1]):
        yield f"  {formats.count(number):>10}  {why}"
    for broker, sequence, recorded_ms, replayed_ms, why in accuracy.examples[:LISTED_MAX]:
        times = f"{_throttle(recorded_ms)} recorded, {_throttle(replayed_ms)} replayed"
        yield f"  broker {broker}, sequence {sequence}: {times}; {why}"


def _throttle(ms: int | None) -> str:
    return "rejection" if ms is None else f"{formats.count(ms)} ms"


def _totals(whole: DataFrame) -> DataFrame:
    who = F.struct(*_WHO)
    return whole.groupBy("proposal", "loop").agg(
        F.sum("requests").alias("checks"),
        F.sum("throttled").alias("throttled"),
        F.sum("throttle_ms").alias("throttle_ms"),
        F.countDistinct(who).alias("bounded"),
        F.countDistinct(F.when(F.col("throttled") > 0, who)).alias("throttled_entities"),
        F.min("first_us").alias("first_us"),
        F.max("last_us").alias("last_us"),
        F.sum("given_up").alias("given_up"),
    )


def called(proposal: str, loop: str) -> str:
    """The display name of a replay."""
    return f"{proposal}, closed loop" if loop == CLOSED else proposal


def _replay_lines(whole: DataFrame, total: Row | None, proposal: str, loop: str) -> Iterator[str]:
    name = called(proposal, loop)
    if total is None:
        yield f"{name}: limits none of the recorded senders"
        return
    limited = f"the {formats.many(total.bounded, 'sender')} that it limits"
    if not total.throttled:
        yield f"{name}: throttles none of {limited}"
        return
    entities = f"{formats.count(total.throttled_entities)} of {limited}"
    times = formats.many(total.throttled, "time")
    yield f"{name}: throttles {entities}, {times}, {formats.duration(total.throttle_ms)} in total"
    yield f"  {formats.period(total.first_us, total.last_us)}"
    if total.given_up:
        unserved = formats.many(total.given_up, "request or connection", "requests or connections")
        yield f"  {unserved} would never have been served"
    worst = whole.where((F.col("proposal") == proposal) & (F.col("loop") == loop))
    worst = worst.groupBy(*_WHO, "quota_type", "bound").agg(
        F.sum("requests").alias("requests"),
        F.sum("throttled").alias("throttled"),
        F.sum("throttle_ms").alias("throttle_ms"),
        F.max("throttle_ms_max").alias("throttle_ms_max"),
        F.max("late_ms").alias("late_ms"),
        F.min("first_us").alias("first_us"),
        F.max("last_us").alias("last_us"),
    )
    worst = worst.where("throttled > 0").orderBy(F.desc("throttle_ms"), *_WHO, "quota_type")
    for row in worst.limit(LISTED_MAX).collect():
        yield from _line(row)


def _line(row: Row) -> Iterator[str]:
    who = formats.visible(_who(row), NAME_MAX)
    bound = f"{row.quota_type}={formats.figure(row.bound)}"
    times = f"{formats.count(row.throttled)} of {formats.count(row.requests)}"
    longest = f"longest {formats.duration(row.throttle_ms_max)}"
    throttle = f"{formats.duration(row.throttle_ms):>12}  {longest:16}"
    when = f"{formats.moment(row.first_us)[5:]} to {formats.moment(row.last_us)[5:]}"
    yield f"  {who:{NAME_MAX}}  {bound:32}  {times:>22}  {throttle}  {when}"
    if row.late_ms:
        yield f"  {'':{NAME_MAX}}  its last request ends {formats.duration(row.late_ms)} later"


def _who(row: Any) -> str:
    return row.ip or formats.party(row.user, row.client_id)


def _compared(whole: DataFrame, columns: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Throttle time under each proposal, of the entities throttled longest under any."""
    sums = [
        F.sum(
            F.when((F.col("proposal") == proposal) & (F.col("loop") == loop), F.col("throttle_ms"))
        ).alias(f"throttle_ms_{number}")
        for number, (proposal, loop) in enumerate(columns)
    ]
    throttled = whole.groupBy(*_WHO).agg(*sums).fillna(0)
    most = F.greatest(*(F.col(f"throttle_ms_{number}") for number in range(len(columns))))
    rows = throttled.where(most > 0).orderBy(most.desc(), *_WHO).limit(LISTED_MAX).collect()
    if not rows:
        return
    names = formats.labels((called(*column) for column in columns), 24)
    yield f"{'total throttle time under':{NAME_MAX + 2}}" + "".join(
        f"  {name:>24}" for name in names
    )
    for row in rows:
        figures = (formats.duration(row[f"throttle_ms_{number}"]) for number in range(len(columns)))
        who = formats.visible(_who(row), NAME_MAX)
        yield f"  {who:{NAME_MAX}}" + "".join(f"  {figure:>24}" for figure in figures)
