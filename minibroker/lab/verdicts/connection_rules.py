"""Rules: a client waits before it connects again, and keeps its connections.

Owns what counts as a failed connection, and the rates of attempts. It must never know why a
connection failed. Invariant: rates are limits for one process with several clients in it, and only
attempts of one client that fail one after the other are compared. KIP-144 and KIP-580.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from minibroker.broker.metrics.definitions import CloseReason
from minibroker.lab.verdicts.retry_rules import COMPARISONS_MIN, EQUAL_SHARE, repeated_waits
from minibroker.lab.verdicts.situations import BehaviorRule, Severity, Situation, duration
from minibroker.lab.verdicts.traffic import HANDSHAKE_APIS, ClientTraffic, ObservedConnection

ATTEMPTS_MIN: Final = 5
"""Failed attempts in a row from which there is something to judge."""
ATTEMPTS_PER_S_MAX: Final = 100
"""Attempts in one second that are never too many."""
ATTEMPTS_PER_S_AND_CONNECTION: Final = 10
"""Attempts in one second for each connection that was in use. A client with Kafka's defaults makes
five in its first second, and many clients may have one client id."""
GROWTH_WINDOW_MS: Final = 2_000
"""The first and the last part of a row of attempts that are compared."""
GROWTH_ROW_MS_MIN: Final = 2 * GROWTH_WINDOW_MS
"""Length of a row from which the time between attempts should have grown."""
LATER_ATTEMPTS_MAX: Final = 10
"""Attempts in the last part of a row that are never too many."""
LATER_SHARE_MAX: Final = 0.6
"""Attempts in the last part of a row, as a share of those in its first part.

On a busy machine, clients that wait longer and longer had 0.5 at most, and others 0.75 at least.
"""
IN_USE_MS: Final = 1000
"""A connection with a request in so long before its end is replaced by another one."""
SHORT_CONNECTIONS_MIN: Final = 10
"""Connections for a single request from which they are a habit."""
SHORT_SHARE_MAX: Final = 0.5
"""Share of connections that may be for a single request."""


def _failed_rows(traffic: ClientTraffic) -> Iterator[list[ObservedConnection]]:
    """Yield rows of connections without any response, while no other connection succeeded."""
    row: list[ObservedConnection] = []
    for connection in traffic.connections:
        if connection.opened is None:
            continue
        if connection.is_served:
            yield row
            row = []
        elif connection.closed is not None:
            row.append(connection)
    yield row


def _judged_rows(traffic: ClientTraffic) -> Iterator[tuple[list[ObservedConnection], list[float]]]:
    for row in _failed_rows(traffic):
        if len(row) < ATTEMPTS_MIN:
            continue
        if traffic.is_steady(row[0].first.sequence, row[-1].first.sequence):
            yield row, [each.first.clock_ms for each in row]


def _observe_backoff(traffic: ClientTraffic) -> Iterator[Situation]:
    for row, times in _judged_rows(traffic):
        in_use = 0
        if len(row) > ATTEMPTS_PER_S_MAX:
            in_use = len(_connections_in_use(traffic, row[0]))
        attempts_max = max(ATTEMPTS_PER_S_MAX, ATTEMPTS_PER_S_AND_CONNECTION * in_use)
        for at in range(len(row)):
            later = at + attempts_max
            if later < len(row) and times[later] - times[at] < 1000:
                yield Situation(
                    _evidence(row[at : later + 1]),
                    f"connected {attempts_max + 1} times within "
                    f"{duration(times[later] - times[at])}, although no connection was served",
                )
                break
        else:
            yield Situation(_evidence(row))


def _observe_growth(traffic: ClientTraffic) -> Iterator[Situation]:
    for row, times in _judged_rows(traffic):
        if times[-1] - times[0] < GROWTH_ROW_MS_MIN:
            continue
        first = bisect_left(times, times[0] + GROWTH_WINDOW_MS)
        last = len(times) - bisect_left(times, times[-1] - GROWTH_WINDOW_MS)
        fault = ""
        if last > LATER_ATTEMPTS_MAX and last > LATER_SHARE_MAX * first:
            fault = (
                f"connected {first} times in the first {duration(GROWTH_WINDOW_MS)} and {last} "
                f"times in the last ones of {duration(times[-1] - times[0])} without success"
            )
        yield Situation(_evidence(row), fault)


def _observe_jitter(traffic: ClientTraffic) -> Iterator[Situation]:
    rows = [
        row
        for row in _failed_rows(traffic)
        if len(row) > 1
        and traffic.is_steady(row[0].first.sequence, row[-1].first.sequence)
        and _replaces_one_connection(traffic, row[0])
    ]
    waits = repeated_waits([_waits(row) for row in rows])
    if not waits.are_enough:
        return
    fault = ""
    if waits.lack_jitter:
        fault = (
            f"connected again without jitter: {waits.equal} of {waits.compared} waits were the "
            f"one before or its double, within {EQUAL_SHARE:.0%}"
        )
    yield Situation(_evidence(max(rows, key=len)), fault)


def _waits(row: Sequence[ObservedConnection]) -> list[float]:
    """The times from the end of each connection to the start of the next one."""
    return [
        later.first.clock_ms - earlier.closed.clock_ms
        for earlier, later in pairwise(row)
        if earlier.closed is not None
    ]


def _replaces_one_connection(traffic: ClientTraffic, attempt: ObservedConnection) -> bool:
    """Whether the client used one connection before a failed attempt.

    The attempts to replace several connections have waits of their own, which are not
    distinguishable.
    """
    return len(_connections_in_use(traffic, attempt)) == 1


def _connections_in_use(
    traffic: ClientTraffic, attempt: ObservedConnection
) -> list[ObservedConnection]:
    """Return the connections that the client used before a failed attempt."""
    served = [each for each in traffic.connections if each.is_served and _is_before(each, attempt)]
    start = max((each.exchanges[-1].last_ms for each in served), default=0.0)
    return [each for each in served if each.exchanges[-1].last_ms >= start - IN_USE_MS]


def _is_before(connection: ObservedConnection, attempt: ObservedConnection) -> bool:
    return connection.first.sequence < attempt.first.sequence


def _observe_reuse(traffic: ClientTraffic) -> Iterator[Situation]:
    served = [each for each in traffic.connections if each.is_served]
    short = [each for each in served if _is_closed_by_client(each) and _requests(each) <= 1]
    if len(served) < 2 and not _requests_of(served):
        return
    fault = ""
    if len(short) >= SHORT_CONNECTIONS_MIN and len(short) > SHORT_SHARE_MAX * len(served):
        fault = (
            f"{len(short)} of {len(served)} connections were for a single request, unless as many "
            "clients have this client id"
        )
    yield Situation(_evidence(short or served), fault)


def _is_closed_by_client(connection: ObservedConnection) -> bool:
    closed = connection.closed
    return closed is not None and closed.details.get("reason") in _BY_CLIENT


_BY_CLIENT: Final = frozenset({CloseReason.CLIENT_CLOSED, CloseReason.CLIENT_RESET})


def _requests(connection: ObservedConnection) -> int:
    return sum(each.key not in HANDSHAKE_APIS for each in connection.exchanges)


def _requests_of(connections: Sequence[ObservedConnection]) -> int:
    return sum(map(_requests, connections))


def _observe_correlation(traffic: ClientTraffic) -> Iterator[Situation]:
    for connection in traffic.connections:
        for previous, exchange in pairwise(connection.exchanges):
            same = previous.sent.correlation_id == exchange.sent.correlation_id
            number = exchange.sent.correlation_id
            yield Situation(
                (previous.sent.sequence, exchange.sent.sequence),
                f"sent two requests in a row with the correlation id {number}" if same else "",
            )


def _evidence(connections: Sequence[ObservedConnection]) -> tuple[int, ...]:
    return tuple(each.first.sequence for each in connections)


RULES: Final = (
    BehaviorRule(
        "reconnect-backoff",
        "The client waits before it connects again after a connection failed.",
        "KIP-144",
        Severity.WARNING,
        f"{ATTEMPTS_MIN} connections in a row that failed",
        _observe_backoff,
        "Wait for reconnect.backoff.ms, 50 ms in Kafka's client, before the next attempt to the "
        "same broker.",
    ),
    BehaviorRule(
        "reconnect-backoff-grows",
        "The more connections fail in a row, the longer the client waits.",
        "KIP-144 and KIP-580",
        Severity.ADVICE,
        f"connections that fail for {duration(GROWTH_ROW_MS_MIN)}",
        _observe_growth,
        "Double the wait with each failed attempt up to reconnect.backoff.max.ms, and start "
        "again from the first one only after a connection that worked.",
    ),
    BehaviorRule(
        "reconnect-backoff-jitter",
        "The client varies the time before it connects again.",
        "KIP-144",
        Severity.ADVICE,
        f"{COMPARISONS_MIN} pairs of comparable waits between failed connections that replace a "
        "single one, of less than a second",
        _observe_jitter,
        "Multiply each wait by a random factor between 0.8 and 1.2, so that many clients do not "
        "come back at once.",
    ),
    BehaviorRule(
        "connection-reuse",
        "The client uses a connection for many requests.",
        "Kafka's protocol guide, network",
        Severity.WARNING,
        "a connection with a request",
        _observe_reuse,
        "Keep the connection to each broker open, and send metadata and coordinator requests on "
        "it, too.",
    ),
    BehaviorRule(
        "correlation-ids",
        "Successive requests on a connection have different correlation ids.",
        "Kafka's protocol guide, request header",
        Severity.ERROR,
        "two requests on a connection",
        _observe_correlation,
        "Count correlation ids for each connection.",
    ),
)
