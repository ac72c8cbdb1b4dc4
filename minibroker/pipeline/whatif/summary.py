"""A short summary of the outcome: the most throttled entities, and a comparison of proposals.

Owns the selection and the text; it must never decide or replay anything. Invariant: the rows
collected are bounded by `LISTED_MAX`, whatever the size of the outcome, and every proposal is
mentioned, even if it throttles no entity. Kafka has no counterpart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from minibroker.pipeline.report import formats
from minibroker.pipeline.whatif.replay_accuracy import ReplayAccuracy
from minibroker.pipeline.whatif.rows import CLOSED

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
