"""The replay as a Spark job: distribution of senders, and order of their requests.

Owns the partitioning of a table into tasks; a task runs `replay.Replay`. It must never know a
command line. Invariant: all senders that share a counter under any proposal (and, in a closed loop,
a connection) are replayed in one task, by time and sequence, so the result is the same for any
number of cores, partitions and files. `decision_batches` writes one row for each request and
proposal, which ``broker`` and ``sequence`` link to the activity table. Kafka has no counterpart.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.pandas.types import from_arrow_schema

from minibroker.broker.quotas.rate import ORDINALS_PER_MS
from minibroker.broker.quotas.types import CLIENT_QUOTA_TYPES, USER_AND_CLIENT
from minibroker.lab.activity.events import ActivityKind
from minibroker.pipeline.activity_table import (
    BUCKET,
    Bucket,
    buckets_of,
    freeze_loaded_objects,
    read,
)
from minibroker.pipeline.errors import BadInput
from minibroker.pipeline.whatif.columns import (
    ALL,
    CHECKS,
    COMMON,
    KINDS,
    OF_CONNECTIONS,
    OF_KINDS,
    OF_REQUESTS,
    Sender,
)
from minibroker.pipeline.whatif.proposal import Components, Counting, Proposal
from minibroker.pipeline.whatif.replay import Replay
from minibroker.pipeline.whatif.replay_accuracy import (
    COMPARED,
    ComparedDecision,
    Comparison,
    ReplayAccuracy,
    compare_connections,
    compare_decisions,
)
from minibroker.pipeline.whatif.rows import (
    CLOSED,
    KEY_COLUMNS,
    LEAST,
    MOST,
    OPEN,
    OUTCOME,
    SUMS,
    merged,
)

_KEYS: Final = [kind.row.config_key for kind in KINDS]
_ASKED: Final = [f"{key}_ms" for key in _KEYS]

DECISIONS: Final = pa.schema(
    [
        ("proposal", pa.string()),
        ("loop", pa.string()),
        ("broker", pa.int32()),
        ("sequence", pa.int64()),
        ("quota_type", pa.string()),
        ("throttle_ms", pa.int64()),
        ("recorded_ms", pa.int64()),
        *((name, pa.int64()) for name in _ASKED),
    ]
)
"""``throttle_ms`` is the replayed throttle time, caused by ``quota_type``; ``recorded_ms`` is the
recorded one. The other columns are the throttle times of each quota type alone, null if it was not
checked.
"""


def decision_batches(run: Replay) -> Iterator[pa.RecordBatch]:
    """The decisions of a replay since the last call."""
    keys = pa.array(_KEYS)
    brokers = np.array([sender.broker for sender in run.senders.all], np.int32)
    for proposal, requests, answers in run.answered:
        rows = len(requests.ms)
        decided, by_type = answers.throttles, answers.type_throttles
        columns = [
            pa.array([proposal.name]).take(np.zeros(rows, np.int64)),
            pa.array([CLOSED if run.closed else OPEN]).take(np.zeros(rows, np.int64)),
            pa.array(brokers[requests.group]),
            pa.array(requests.sequence),
            keys.take(pa.array(np.maximum(decided[:, 1], 0), mask=decided[:, 1] < 0)),
            pa.array(decided[:, 0]),
            pa.array(requests.throttled_ms.astype(np.int64)),
            *(pa.array(by_type[:, at], mask=by_type[:, at] < 0) for at in range(len(KINDS))),
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=DECISIONS)
    run.answered.clear()
    for addresses in run.addresses:
        addresses.decided.clear()


FEED_ROWS: Final = 262_144
"""Requests replayed in one batch, large enough to amortize its overhead."""

TOGETHER_MAX: Final = 10_000_000
"""Maximum number of events in memory when a whole component has to be: some 3 GB."""

SENDERS_MAX: Final = 5_000_000
"""Users with client-id that the driver examines to find shared counters."""

_COMPONENT: Final = "component"


def counted_from(activity: DataFrame, counting: Counting) -> dict[int, int]:
    """By broker: the time from which its counters depend only on recorded events."""
    first = activity.groupBy("broker").agg(F.min("clock_ms").alias("ms"))
    return {row.broker: row.ms + counting.remembered_ms for row in first.collect()}


def whatif(
    activity: DataFrame,
    proposals: Sequence[Proposal],
    counting: Counting,
    *,
    closed: bool = False,
    partitions: int | None = None,
) -> DataFrame:
    """Replay under each proposal; rows as in `rows.OUTCOME`."""
    replayed = _grouped(
        activity, proposals, _checks(counting), closed=closed, partitions=partitions
    ).mapInArrow(_replaying(proposals, counting, closed=closed), from_arrow_schema(OUTCOME))
    return _merged(replayed)


def whatif_of_buckets(
    spark: SparkSession,
    buckets: Sequence[Bucket],
    proposals: Sequence[Proposal],
    counting: Counting,
) -> DataFrame:
    """Like `whatif` in the open loop, for files in which no counter spans two buckets."""
    alone = shares_alone(proposals)
    fields = fields_wanted(proposals)

    def replay(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_loaded_objects()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                run = Replay(proposals, counting)
                for files in buckets[number].hours:
                    for events in read(files, fields, by_group=alone):
                        run.feed(events)
                    yield from merged(run.hour())
                yield from merged(run.end())

    numbers = spark.range(0, len(buckets), 1, max(1, len(buckets)))
    return numbers.mapInArrow(replay, from_arrow_schema(OUTCOME))


def decisions(
    activity: DataFrame,
    proposals: Sequence[Proposal],
    counting: Counting,
    *,
    closed: bool = False,
    partitions: int | None = None,
) -> DataFrame:
    """The decision for each request; rows as in `decisions.DECISIONS`."""
    rows = _grouped(activity, proposals, _checks(counting), closed=closed, partitions=partitions)
    return rows.mapInArrow(
        _replaying(proposals, counting, closed=closed, answers=True), from_arrow_schema(DECISIONS)
    )


def replay_accuracy(
    activity: DataFrame, proposal: Proposal, counting: Counting, *, examples: int = 20
) -> ReplayAccuracy:
    """Compare the recorded decisions with a replay under the quotas that were in force."""
    dropped: dict[int, list[int]] = {}
    missing = activity.where(F.col("kind") == ActivityKind.DROPPED.value)
    for row in missing.select("broker", "clock_ms").collect():
        dropped.setdefault(row.broker, []).append(row.clock_ms)

    def replay(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        run = Replay([proposal], counting, answers=True)
        for events in _cut(batches, whole=True):
            run.feed(events)
            run.settle()
            if run.answered:
                yield compare_decisions(run, events, counting, dropped)
            yield compare_connections(run, counting, dropped)
        run.end()
        yield compare_connections(run, counting, dropped)

    rows = _grouped(activity, [proposal], CHECKS, closed=False, partitions=None)
    found = rows.mapInArrow(replay, from_arrow_schema(COMPARED)).persist()
    try:
        sums = found.groupBy("subject", "why").agg(
            F.sum("decisions").alias("n"), F.sum("throttles").alias("t")
        )
        counts = sums.collect()
        shown = {
            subject: _some_differences(found.where(F.col("subject") == subject.value), examples)
            for subject in (ComparedDecision.REQUEST, ComparedDecision.CONNECTION)
        }
    finally:
        found.unpersist()
    connections = _accuracy(counts, ComparedDecision.CONNECTION, shown)
    left_out = {row.why: row.n for row in counts if row.subject == ComparedDecision.LEFT_OUT.value}
    requests = _accuracy(counts, ComparedDecision.REQUEST, shown)
    return dataclasses.replace(requests, connections=connections, left_out=left_out)


def _some_differences(compared: DataFrame, most: int) -> list[Row]:
    differing = compared.where(F.col("why") != Comparison.EQUAL.value)
    return differing.orderBy("why", "broker", "sequence").limit(most).collect()


def _accuracy(
    counts: Iterable[Row],
    subject: ComparedDecision,
    shown: Mapping[ComparedDecision, Iterable[Row]],
) -> ReplayAccuracy:
    by_reason = {
        Comparison(row.why): (row.n, row.t) for row in counts if row.subject == subject.value
    }
    return ReplayAccuracy(
        sum(n for n, _ in by_reason.values()),
        sum(throttles for _, throttles in by_reason.values()),
        by_reason.get(Comparison.EQUAL, (0, 0))[1],
        {why: n for why, (n, _) in by_reason.items() if why is not Comparison.EQUAL},
        [
            (row.broker, row.sequence, row.recorded_ms, row.replayed_ms, Comparison(row.why))
            for row in shown[subject]
        ],
    )


def shares_alone(proposals: Iterable[Proposal]) -> bool:
    """Whether no proposal has a counter that senders with different names share."""
    tables = [proposal.table for proposal in proposals]
    return all(
        table.bits(kind) in (0, USER_AND_CLIENT) for table in tables for kind in CLIENT_QUOTA_TYPES
    )


def fields_wanted(proposals: Iterable[Proposal]) -> list[str]:
    """The columns for an open loop with muted senders; reading others would take time."""
    found = [*COMMON, *OF_REQUESTS]
    for kind, fields in OF_KINDS.items():
        if any(proposal.table.bounds.get(kind) for proposal in proposals) or any(
            kind in proposal.table.defaults for proposal in proposals
        ):
            found += fields
    if any(proposal.limits_addresses for proposal in proposals):
        found += OF_CONNECTIONS
    return [*found, "mutation.clock_ms"] if "mutations" in found else found


def _merged(replayed: DataFrame) -> DataFrame:
    """Merge the rows of a broker's several lives."""
    columns: list[Column] = [
        *(F.sum(name).alias(name) for name in SUMS),
        *(F.max(name).alias(name) for name in MOST),
        *(F.min(name).alias(name) for name in LEAST),
    ]
    return replayed.groupBy(*KEY_COLUMNS).agg(*columns).select(*OUTCOME.names)


def _replaying(
    proposals: Sequence[Proposal], counting: Counting, *, closed: bool, answers: bool = False
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    whole = closed or counting.delays

    def replay(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_loaded_objects()
        run = Replay(proposals, counting, closed=closed, answers=answers)
        for events in _cut(batches, whole=whole):
            run.feed(events)
            if whole:
                run.settle()
            yield from decision_batches(run) if answers else run.finished_rows()
        rest = run.end()
        yield from decision_batches(run) if answers else rest

    return replay


def _cut(batches: Iterable[pa.RecordBatch], *, whole: bool) -> Iterator[pa.Table]:
    """Combine batches; with ``whole``, no component is split between two."""
    kept: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        kept.append(batch)
        rows += batch.num_rows
        if rows < FEED_ROWS:
            continue
        events = pa.Table.from_batches(kept)
        end = _last_change(events) if whole else rows
        if end:
            yield events.slice(0, end)
        elif rows > TOGETHER_MAX:
            raise BadInput(
                f"more than {TOGETHER_MAX:,} events of senders that share a quota or a connection"
                " would have to be in memory at once, because in a closed loop requests wait for"
                " each other: replay fewer hours, or in an open loop"
            )
        kept = events.slice(end).to_batches()
        rows -= end
    if kept:
        yield pa.Table.from_batches(kept)


def _last_change(events: pa.Table) -> int:
    """The start of the last component, which may continue in the next batch."""
    keys = [events.column(name).to_numpy() for name in ("broker", _COMPONENT)]
    same = (keys[0] == keys[0][-1]) & (keys[1] == keys[1][-1])
    others = (~same).nonzero()[0]
    return int(others[-1]) + 1 if len(others) else 0


def _checks(counting: Counting) -> Sequence[str]:
    """The recorded quota checks that a replay needs; they are half of an event, so few are read."""
    return CHECKS if counting.delays else CHECKS[3:]


def _grouped(
    activity: DataFrame,
    proposals: Sequence[Proposal],
    checks: Sequence[str],
    *,
    closed: bool,
    partitions: int | None,
) -> DataFrame:
    """The relevant events, grouped by component and sorted."""
    seen = activity.where(
        F.col("kind").isin(ActivityKind.REQUEST.value, ActivityKind.CONNECTION.value)
    )
    seen = seen.select(*ALL, *checks)
    # Nulls would never match in the join.
    names = {name: F.coalesce(name, F.lit("")) for name in ("user", "client_id")}
    of_connection = F.when(F.col("kind") == ActivityKind.CONNECTION.value, F.col("ip"))
    seen = seen.withColumns({**names, "ip_of_connection": of_connection})
    numbered = _components(seen, proposals, closed=closed)
    if numbered is None:
        component = F.xxhash64("user", "client_id", "ip_of_connection")
    else:
        seen = seen.join(F.broadcast(numbered), ["user", "client_id"], "left")
        component = F.coalesce("number", F.xxhash64("ip_of_connection"))
    seen = seen.withColumn(_COMPONENT, component)
    by = ("broker", _COMPONENT)
    spread = seen.repartition(partitions, *by) if partitions else seen.repartition(*by)
    order = F.coalesce(F.col("ordinal"), F.col("clock_ms") * ORDINALS_PER_MS)
    return spread.sortWithinPartitions(*by, order, "sequence")


def _components(
    requests: DataFrame, proposals: Sequence[Proposal], *, closed: bool
) -> DataFrame | None:
    """Users and client-ids with the number of their component; None if each is a component of its
    own.
    """
    requests = requests.where(F.col("kind") == ActivityKind.REQUEST.value)
    shared = _sharing_connections(requests) if closed else []
    if shares_alone(proposals) and not shared:
        return None
    pairs = requests.select("user", "client_id").distinct().limit(SENDERS_MAX).collect()
    found = Components()
    for user, client_id in pairs:
        _add(found, proposals, user, client_id)
    for senders in shared:
        first, *others = (_add(found, proposals, *sender) for sender in senders)
        for other in others:
            found.join(first, other)
    rows = [
        (sender.user, sender.client_id, root)
        for sender, root in zip(found.senders, found.roots(), strict=True)
    ]
    return requests.sparkSession.createDataFrame(
        rows, "user string, client_id string, number bigint"
    )


def _sharing_connections(requests: DataFrame) -> list[list[tuple[str, str]]]:
    """Distinct sets of users and client-ids that used the same connection."""
    who = F.struct("user", "client_id")
    users = requests.groupBy("broker", "connection").agg(F.collect_set(who).alias("senders"))
    several = users.where(F.size("senders") > 1).select(F.array_sort("senders").alias("senders"))
    return [
        [(sender.user, sender.client_id) for sender in row.senders]
        for row in several.distinct().collect()
    ]


def _add(found: Components, proposals: Iterable[Proposal], user: str, client_id: str) -> int:
    keys = [key for proposal in proposals for key in proposal.counters_of(user, client_id)]
    return found.add(Sender(0, 0, user, client_id), keys)


def buckets_alone(activity: DataFrame, path: str, proposals: Sequence[Proposal]) -> list[Bucket]:
    """The buckets of a local table, if each can be replayed by itself because no counter spans two
    of them; otherwise empty.
    """
    buckets = buckets_of(path)
    if not buckets or shares_alone(proposals):
        return buckets
    requests = activity.where(F.col("kind") == ActivityKind.REQUEST.value)
    names = (F.coalesce(name, F.lit("")).alias(name) for name in ("user", "client_id"))
    pairs = requests.select(*names, BUCKET).distinct().limit(SENDERS_MAX)
    return buckets if in_one_bucket(proposals, pairs.toLocalIterator()) else []


def in_one_bucket(proposals: Sequence[Proposal], pairs: Iterable[Sequence[Any]]) -> bool:
    """Whether no counter spans two buckets; ``pairs`` are (user, client-id, bucket)."""
    found = Components()
    places: list[tuple[int, int]] = []
    for user, client_id, bucket in pairs:
        places.append((_add(found, proposals, user, client_id), bucket))
    roots = found.roots()
    where: dict[int, int] = {}
    return all(where.setdefault(roots[number], bucket) == bucket for number, bucket in places)
