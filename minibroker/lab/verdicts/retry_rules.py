"""Rules: a client waits before it repeats a request that failed, and does not poll in a loop.

Owns which requests are repetitions of another, and which waits are comparable: whether a client
repeats the same waits, or varies them. It must never judge a single fast retry, since a client that
has new metadata may retry at once. Invariants: requests for different partitions, groups or batches
are never compared, nor those on two connections that are open at the same time; only waits that
would be equal, or the double of each other, without jitter are compared: those that follow each
other in a row, and those at the same place of two rows. Waits that are as long as the maximum are
not, since the formula of KIP-580 limits a wait after its jitter. Kafka's ``ExponentialBackoff``.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from minibroker.lab.verdicts.exchanges import (
    EntityResult,
    ObservedExchange,
    batch_identities,
    is_retriable,
    results_of,
)
from minibroker.lab.verdicts.situations import BehaviorRule, Severity, Situation, duration
from minibroker.lab.verdicts.traffic import HANDSHAKE_APIS, ClientTraffic
from minibroker_protocol.registry import ApiKey

WAIT_MS_MIN: Final = 40
"""Shorter waits do not show jitter, because a timer's delay varies as much. Kafka's shortest wait
is 50 ms, less 20 %.
"""
WAIT_MS_MAX: Final = 750
"""Waits up to which jitter is certain: Kafka's maximum is 1000 ms by default, less 20 %."""
EQUAL_SHARE: Final = 0.05
"""Difference of two waits that count as equal."""
GROWTH: Final = 2
"""How much a wait grows without jitter, unless it stays the same. Kafka's clients double it."""
COMPARISONS_MIN: Final = 8
"""Comparisons from which there is something to judge."""
EQUAL_COMPARISONS_SHARE: Final = 0.8
"""Share of equal waits from which there is no jitter.

With Kafka's jitter of 20 % each way, a quarter of the comparisons are equal by chance. Of 10,000
such clients with the fewest comparisons, 5 have a share as large as this.
"""


class RepeatedWaits(NamedTuple):
    """How many waits repeat an earlier one."""

    equal: int
    compared: int

    @property
    def are_enough(self) -> bool:
        """Whether there is something to judge."""
        return self.compared >= COMPARISONS_MIN

    @property
    def lack_jitter(self) -> bool:
        """Whether the waits follow a schedule without jitter."""
        return self.are_enough and self.equal >= EQUAL_COMPARISONS_SHARE * self.compared


def repeated_waits(rows: Sequence[Sequence[float]]) -> RepeatedWaits:
    """Compare the waits of one client, in ms: a row has those of successive failures."""
    found = list(_comparisons(rows))
    return RepeatedWaits(sum(found), len(found))


def _comparisons(rows: Sequence[Sequence[float]]) -> Iterator[bool]:
    for row in rows:
        for earlier, later in pairwise(row):
            if _is_comparable(earlier, later):
                yield _is_equal(earlier, later) or _is_equal(GROWTH * earlier, later)
    for row, next_row in pairwise(rows):
        for earlier, later in zip(row, next_row, strict=False):
            if _is_comparable(earlier, later):
                yield _is_equal(earlier, later)


def _is_comparable(*waits: float) -> bool:
    return all(WAIT_MS_MIN <= wait <= WAIT_MS_MAX for wait in waits)


def _is_equal(earlier: float, later: float) -> bool:
    return abs(later - earlier) <= EQUAL_SHARE * earlier


RETRIES_MIN: Final = 4
"""Retries in a row from which there is something to judge."""
RETRY_MS_MIN: Final = 10
"""Average time between an error and the retry. Kafka's default is 100 ms."""
GROWTH_RETRIES_MIN: Final = 6
"""Retries in a row from which the time between them should have grown."""
GROWTH_FACTOR_MIN: Final = 1.5
"""How much longer the last two times are than the first two. Kafka's clients double them."""
LONG_MS: Final = 750
"""A time between retries that need not grow: Kafka's largest is 1000 ms by default, less 20 %."""
REPEATS_PER_S_MAX: Final = 50
"""Equal requests in one second."""
LOOP_MS_MIN: Final = 100
"""How long a loop takes at least: requests that waited for a connection arrive at once, and end."""
CORRELATION_END: Final = 8
"""Bytes of a request until the end of its correlation id."""

Row = list[EntityResult]
RequestContent = tuple[str | None, bytes]
"""Connection, and the request without its correlation id."""


def _rows(traffic: ClientTraffic) -> Iterator[Row]:
    """Yield rows of failed requests for one entity, each with the request after them.

    Several clients may have the same client id, so a request on another connection continues a row
    only if the connection of the row is closed.
    """
    open_rows: defaultdict[tuple[object, ...], dict[str, Row]] = defaultdict(dict)
    for exchange in traffic.exchanges:
        if exchange.key in HANDSHAKE_APIS:
            continue
        connection = exchange.sent.connection or ""
        batches = batch_identities(exchange)
        for result in results_of(exchange):
            rows = open_rows[exchange.key, result.subject, batches.get(result.subject)]
            row = rows.pop(connection, None) or _row_of_closed(rows, traffic.closed_at, exchange)
            row.append(result)
            if is_retriable(result.code):
                rows[connection] = row
            else:
                yield row
    for rows in open_rows.values():
        yield from rows.values()


def _row_of_closed(
    rows: dict[str, Row], closed_at: Mapping[str, int], exchange: ObservedExchange
) -> Row:
    """Return the row of a connection that was closed before a request, or a new row."""
    for connection in rows:
        if closed_at.get(connection, exchange.sent.sequence) < exchange.sent.sequence:
            return rows.pop(connection)
    return []


def _gaps(traffic: ClientTraffic, row: Row) -> list[float] | None:
    """The times from each error to the next request; None if the clock was moved.

    A request that was on its way before the error is no repetition.
    """
    first, last = row[0].exchange.sent.sequence, row[-1].exchange.sent.sequence
    if not traffic.is_steady(first, last):
        return None
    return [
        later.exchange.sent_ms - earlier.exchange.last_ms
        for earlier, later in pairwise(row)
        if earlier.exchange.sequences[-1] < later.exchange.sent.sequence
    ]


def _evidence(row: Row) -> tuple[int, ...]:
    return tuple(sequence for result in row for sequence in result.exchange.sequences)


def _about(result: EntityResult) -> str:
    return (
        f"{result.exchange.title} for {result.subject}" if result.subject else result.exchange.title
    )


def _observe_backoff(traffic: ClientTraffic) -> Iterator[Situation]:
    for row in _rows(traffic):
        gaps = _gaps(traffic, row)
        if gaps is None or len(gaps) < RETRIES_MIN:
            continue
        average = sum(gaps) / len(gaps)
        fault = ""
        if average < RETRY_MS_MIN:
            fault = (
                f"repeated {_about(row[0])} {len(gaps)} times after {row[0].error}, "
                f"{average:.1f} ms after the error on average"
            )
        yield Situation(_evidence(row), fault)


def _observe_growth(traffic: ClientTraffic) -> Iterator[Situation]:
    for row in _rows(traffic):
        gaps = _gaps(traffic, row)
        if gaps is None or len(gaps) < GROWTH_RETRIES_MIN:
            continue
        first, last = sum(gaps[:2]) / 2, sum(gaps[-2:]) / 2
        fault = ""
        if last < LONG_MS and last < GROWTH_FACTOR_MIN * first:
            fault = (
                f"repeated {_about(row[0])} {len(gaps)} times after {row[0].error}: after "
                f"{duration(first)} at first, and after {duration(last)} at last"
            )
        yield Situation(_evidence(row), fault)


def _observe_jitter(traffic: ClientTraffic) -> Iterator[Situation]:
    rows_of: defaultdict[tuple[object, str], list[Row]] = defaultdict(list)
    for row in _rows(traffic):
        rows_of[row[0].exchange.key, row[0].subject].append(row)
    for rows in rows_of.values():
        rows.sort(key=lambda row: row[0].exchange.sent.sequence)
        waits = repeated_waits([_gaps(traffic, row) or [] for row in rows])
        if not waits.are_enough:
            continue
        longest = max(rows, key=len)
        fault = ""
        if waits.lack_jitter:
            fault = (
                f"repeated {_about(longest[0])} without jitter: {waits.equal} of {waits.compared} "
                f"waits were the one before or its double, within {EQUAL_SHARE:.0%}"
            )
        yield Situation(_evidence(longest), fault)


def _observe_repeats(traffic: ClientTraffic) -> Iterator[Situation]:
    """Find repetitions on one connection: several clients may have the same client id."""
    recent: defaultdict[RequestContent, deque[ObservedExchange]] = defaultdict(deque)
    reported: set[RequestContent] = set()
    observed: ObservedExchange | None = None
    for exchange in traffic.exchanges:
        frame = exchange.sent.frame
        if frame is None or exchange.key is ApiKey.PRODUCE or exchange.key in HANDSHAKE_APIS:
            continue
        observed = exchange
        content = (exchange.sent.connection, frame[:4] + frame[CORRELATION_END:])
        row = recent[content]
        row.append(exchange)
        while exchange.sent_ms - row[0].sent_ms >= 1000:
            row.popleft()
        if len(row) <= REPEATS_PER_S_MAX or content in reported:
            continue
        evidence = tuple(each.sent.sequence for each in row)
        took_ms = row[-1].sent_ms - row[0].sent_ms
        if took_ms >= LOOP_MS_MIN and traffic.is_steady(evidence[0], evidence[-1]):
            reported.add(content)
            yield Situation(
                evidence,
                f"sent the same {exchange.title} {len(row)} times in {duration(took_ms)}, "
                f"{took_ms / (len(row) - 1):.1f} ms apart on average",
            )
    if observed is not None and not reported:
        yield Situation((observed.sent.sequence,))


RULES: Final = (
    BehaviorRule(
        "retry-backoff",
        "The client waits before it repeats a request that failed.",
        "KIP-580",
        Severity.WARNING,
        f"a request that failed {RETRIES_MIN} times in a row with an error that can be retried",
        _observe_backoff,
        "Wait for retry.backoff.ms, 100 ms in Kafka's client, before the request for a partition, "
        "group or batch is repeated, also if its metadata is new.",
    ),
    BehaviorRule(
        "retry-backoff-grows",
        "The more often a request fails, the longer the client waits before it repeats it.",
        "KIP-580",
        Severity.ADVICE,
        f"a request that failed {GROWTH_RETRIES_MIN} times in a row",
        _observe_growth,
        "Double the wait with each failure up to retry.backoff.max.ms, as KIP-580 has it.",
    ),
    BehaviorRule(
        "retry-backoff-jitter",
        "The client varies the time before it repeats a request that failed.",
        "KIP-580",
        Severity.ADVICE,
        f"{COMPARISONS_MIN} pairs of comparable waits between retries, of less than a second",
        _observe_jitter,
        "Multiply each wait by a random factor between 0.8 and 1.2.",
    ),
    BehaviorRule(
        "no-busy-loop",
        "The client does not send the same request on a connection more than "
        f"{REPEATS_PER_S_MAX} times a second.",
        "Kafka's documentation of fetch.max.wait.ms and retry.backoff.ms",
        Severity.WARNING,
        "a request",
        _observe_repeats,
        "Find what sends the request again at once: an error that counts as success, or a wait "
        "that was skipped. Wait as long as for a retry.",
    ),
)
