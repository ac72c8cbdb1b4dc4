"""Rules: a client asks for the new leader or coordinator when the old one says that it is not.

Owns which errors mean that the client's metadata is old. It must never know who leads a partition.
Invariant: requests that may have been in flight with the failed one are not counted. Kafka's
protocol guide, and KIP-320 and KIP-951 for leader epochs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from minibroker.lab.journal.entries import JournalEntry
from minibroker.lab.verdicts.exchanges import (
    LEADER_APIS,
    EntityResult,
    ObservedExchange,
    batch_identities,
    results_of,
)
from minibroker.lab.verdicts.situations import BehaviorRule, Severity, Situation, duration
from minibroker.lab.verdicts.traffic import ClientTraffic
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.registry import ApiKey

OLD_LEADER: Final = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})
"""Errors after which a client needs the partition's leader and epoch. UNKNOWN_LEADER_EPOCH says
that the broker's metadata is old instead.
"""
OLD_COORDINATOR: Final = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
"""Errors after which a client needs the coordinator."""
LOOKUP_MS_MAX: Final = 1_500
"""Time until the client should have requested metadata: Kafka's longest back-off, which also limits
how often a client requests it, and a margin.
"""
REQUESTS_MAX: Final = 2
"""Further requests to the old leader or coordinator that are never too many."""

_LEADER_LOOKUPS: Final = (ApiKey.METADATA, ApiKey.DESCRIBE_TOPIC_PARTITIONS)


def _observe_leaders(traffic: ClientTraffic) -> Iterator[Situation]:
    lookups = traffic.of_api(*_LEADER_LOOKUPS)
    requests: defaultdict[object, list[EntityResult]] = defaultdict(list)
    for exchange in traffic.exchanges:
        if exchange.key in LEADER_APIS:
            contents = batch_identities(exchange)
            for result in results_of(exchange):
                key = (exchange.key, result.subject, contents.get(result.subject))
                requests[key].append(result)
    for results in requests.values():
        yield from _lookups_after(traffic, results, OLD_LEADER, lookups, "Metadata")


def _observe_coordinators(traffic: ClientTraffic) -> Iterator[Situation]:
    lookups = traffic.of_api(ApiKey.FIND_COORDINATOR)
    requests: defaultdict[str, list[EntityResult]] = defaultdict(list)
    for exchange in traffic.exchanges:
        if exchange.key not in LEADER_APIS and exchange.key is not ApiKey.FIND_COORDINATOR:
            for result in results_of(exchange):
                if result.subject:
                    requests[result.subject].append(result)
    for results in requests.values():
        yield from _lookups_after(traffic, results, OLD_COORDINATOR, lookups, "FindCoordinator")


def _lookups_after(
    traffic: ClientTraffic,
    results: Sequence[EntityResult],
    errors: frozenset[ErrorCode],
    lookups: Sequence[ObservedExchange],
    lookup: str,
) -> Iterator[Situation]:
    """Yield a situation for each error that says that the metadata is old.

    A lookup that was in flight counts: its response may be newer than the error.
    """
    answers = sorted(each.answer.sequence for each in lookups if each.answer is not None)
    done = 0
    for position, failed in enumerate(results):
        answer = failed.exchange.answer
        if failed.code not in errors or answer is None or answer.sequence <= done:
            continue
        at = bisect_right(answers, answer.sequence)
        until = answers[at] if at < len(answers) else None
        if failed.has_leader:
            yield Situation((answer.sequence,))
            continue
        later = _sent_after(results, position, until, errors)
        took_ms = later[-1].clock_ms - answer.clock_ms if later else 0.0
        is_late = len(later) > REQUESTS_MAX and took_ms > LOOKUP_MS_MAX
        if is_late and not traffic.is_steady(answer.sequence, later[-1].sequence):
            continue
        if is_late:
            done = later[-1].sequence
            yield Situation(
                (answer.sequence, *(each.sequence for each in later)),
                f"sent {len(later)} more requests for {failed.subject} within {duration(took_ms)} "
                f"after {failed.error} to {failed.exchange.title}, without {lookup}",
            )
        elif until is not None:
            yield Situation((answer.sequence, until))


def _sent_after(
    results: Sequence[EntityResult], position: int, until: int | None, errors: frozenset[ErrorCode]
) -> list[JournalEntry]:
    """Return requests that were sent after a response, before a sequence number, and in vain.

    A request without one of the errors shows that the old leader or coordinator is the right one.
    """
    answer = results[position].exchange.answer
    found: list[JournalEntry] = []
    for at in range(position + 1, len(results)):
        sent = results[at].exchange.sent
        if until is not None and sent.sequence >= until:
            break
        if results[at].code not in errors:
            break
        if answer is not None and sent.sequence > answer.sequence:
            found.append(sent)
    return found


RULES: Final = (
    BehaviorRule(
        "metadata-refresh",
        "After NOT_LEADER_OR_FOLLOWER or FENCED_LEADER_EPOCH the client requests metadata, unless "
        "the response names the leader (KIP-951).",
        "Kafka's protocol guide, and KIP-320",
        Severity.ERROR,
        "NOT_LEADER_OR_FOLLOWER or FENCED_LEADER_EPOCH",
        _observe_leaders,
        "Ask for metadata of the topic before the next attempt, or use the leader that the "
        "response names (KIP-951).",
    ),
    BehaviorRule(
        "coordinator-lookup",
        "After NOT_COORDINATOR or COORDINATOR_NOT_AVAILABLE the client looks the coordinator up.",
        "Kafka's protocol guide",
        Severity.ERROR,
        "NOT_COORDINATOR or COORDINATOR_NOT_AVAILABLE",
        _observe_coordinators,
        "Forget the coordinator with any of the two errors, and send FindCoordinator before the "
        "request is repeated.",
    ),
)
