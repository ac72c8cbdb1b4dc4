"""Rules: a consumer takes its position from the group, validates it once, and fetches on.

Owns which partitions a consumer fetches, also those that a fetch session fetches without naming
them. It must never know what an application does with the records. Invariant: a response that the
journal does not have proves nothing. KIP-227, KIP-320 and Kafka's ``OffsetsForLeaderEpochClient``
and ``SubscriptionState``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Final, NamedTuple

from minibroker.lab.verdicts.exchanges import (
    Body,
    ObservedExchange,
    partitions_of,
    requested_partitions,
    returned_partitions,
    sent_batches,
    topic_of,
)
from minibroker.lab.verdicts.membership_events import (
    MembershipEvent,
    MembershipStep,
    events_by_member,
    topic_names,
)
from minibroker.lab.verdicts.situations import BehaviorRule, Severity, Situation, duration
from minibroker.lab.verdicts.traffic import ClientTraffic
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.registry import ApiKey

VALIDATIONS_MAX: Final = 3
"""Successful validations of one position that are never too many."""
IDLE_MS_MIN: Final = 30_000
"""Time without a fetch that is never too long."""
SESSIONLESS: Final = frozenset({-1, 0})
"""Session epochs of a fetch that names all its partitions (KIP-227)."""
RESET_TIMESTAMPS: Final = {-1: "the end", -2: "the start"}
"""Timestamps of ListOffsets that mean an end of the log."""


# Committed offsets --------------------------------------------------------------------------------


class _FailedLookup(NamedTuple):
    """An OffsetFetch that failed for a partition."""

    exchange: ObservedExchange
    code: int


def _observe_offset_fetches(traffic: ClientTraffic) -> Iterator[Situation]:
    names = topic_names(traffic)
    failed: dict[str, _FailedLookup] = {}
    ends: defaultdict[str, dict[int, tuple[str, int]]] = defaultdict(dict)
    position: dict[str, int] = {}
    for exchange in traffic.of_api(ApiKey.OFFSET_FETCH, ApiKey.LIST_OFFSETS, ApiKey.FETCH):
        if exchange.key is ApiKey.OFFSET_FETCH:
            for subject, code in _committed_offsets(exchange, names):
                earlier = failed.pop(subject, None)
                if code != ErrorCode.NONE:
                    failed[subject] = earlier or _FailedLookup(exchange, code)
                elif earlier is not None:
                    yield Situation((*earlier.exchange.sequences[-1:], exchange.sent.sequence))
        elif exchange.key is ApiKey.LIST_OFFSETS:
            for subject, end, offset in _listed_ends(exchange, names):
                ends[subject][offset] = (end, exchange.sent.sequence)
        else:
            for name, fields in requested_partitions(exchange):
                subject, offset = _named(name, names), fields["fetch_offset"]
                before = position.get(subject)
                position[subject] = offset
                lookup, listed = failed.get(subject), ends[subject].get(offset)
                if lookup is None or listed is None or before == offset:
                    continue
                if _is_after(exchange, lookup.exchange):
                    del failed[subject]
                    yield _reset_after(lookup, exchange, subject, listed)


def _reset_after(
    lookup: _FailedLookup, fetch: ObservedExchange, subject: str, end: tuple[str, int]
) -> Situation:
    place, listed = end
    return Situation(
        tuple(sorted({lookup.exchange.sequences[-1], listed, fetch.sent.sequence})),
        f"fetched {subject} from {place} of the log after {ErrorCode.describe(lookup.code)} to "
        f"{lookup.exchange.title}, although the committed offset is unknown",
    )


def _is_after(later: ObservedExchange, earlier: ObservedExchange) -> bool:
    answer = earlier.answer
    return answer is not None and answer.sequence < later.sent.sequence


def _committed_offsets(
    exchange: ObservedExchange, names: Mapping[str, str]
) -> Iterator[tuple[str, int]]:
    """Yield the error code of each partition of an OffsetFetch, which may be that of its group."""
    request, response = exchange.request, exchange.response
    if request is None or response is None:
        return
    asked = {each["group_id"]: each for each in request.get("groups") or (request,)}
    for group in response.get("groups") or (response,):
        code = group.get("error_code", ErrorCode.NONE)
        wanted = asked.get(group.get("group_id", request.get("group_id")), {})
        if code != ErrorCode.NONE:
            for topic in wanted.get("topics") or ():
                for partition in topic["partition_indexes"]:
                    yield _named(f"{topic_of(topic)}-{partition}", names), code
            continue
        for topic in group["topics"]:
            for partition in topic["partitions"]:
                name = _named(f"{topic_of(topic)}-{partition['partition_index']}", names)
                yield name, partition["error_code"]


def _listed_ends(
    exchange: ObservedExchange, names: Mapping[str, str]
) -> Iterator[tuple[str, str, int]]:
    """Yield the partitions whose start or end was looked up, with the offset."""
    found = dict(returned_partitions(exchange))
    for name, fields in requested_partitions(exchange):
        end = RESET_TIMESTAMPS.get(fields["timestamp"])
        offset = found.get(name, {}).get("offset", -1)
        if end is not None and offset >= 0:
            yield _named(name, names), end, offset


def _named(subject: str, names: Mapping[str, str]) -> str:
    """Return a partition with the name of its topic instead of the id, if that is known."""
    topic, _, partition = subject.rpartition("-")
    return f"{names.get(topic, topic)}-{partition}"


# Fetched partitions -------------------------------------------------------------------------------


class _FetchedPartition(NamedTuple):
    """The last that is known of a partition."""

    exchange: ObservedExchange
    session: int
    """The fetch session that has the partition; 0 if none has."""
    position: int
    lag: int
    """Records behind the position; 0 if that is unknown."""


class _FetchedPartitions:
    """Partitions that a client fetches, also those of a session that a request does not name."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names
        self._partitions: dict[str, _FetchedPartition] = {}
        self._of_session: dict[int, set[str]] = {}
        self._last_of_session: dict[int, ObservedExchange] = {}

    def note(self, exchange: ObservedExchange) -> Set[str]:
        """Apply a Fetch; return the partitions that it fetches."""
        request, response = exchange.request, exchange.response
        if request is None:
            return frozenset()
        asked = {_named(name, self._names): each for name, each in requested_partitions(exchange)}
        session = request.get("session_id", 0)
        fetched = set(asked)
        if request.get("session_epoch", -1) not in SESSIONLESS:
            fetched = self._of_session.setdefault(session, set())
            fetched |= asked.keys()
            for name in partitions_of(request, "forgotten_topics_data"):
                self._forget(_named(name, self._names), fetched)
        elif response is not None:
            session = response.get("session_id", 0)
            self._of_session[session] = fetched
        self._last_of_session[session] = exchange
        found = {_named(name, self._names): each for name, each in returned_partitions(exchange)}
        for subject in asked.keys() | found.keys():
            before = self._partitions.get(subject)
            fields = asked.get(subject)
            position = -1 if before is None else before.position
            position = position if fields is None else fields["fetch_offset"]
            self._partitions[subject] = _fetched(exchange, session, position, found.get(subject))
        return fetched

    def _forget(self, subject: str, fetched: set[str]) -> None:
        fetched.discard(subject)
        if (known := self._partitions.get(subject)) is not None:
            self._partitions[subject] = known._replace(session=0)

    def last_fetch(self, subject: str) -> tuple[ObservedExchange, int] | None:
        """Return the last request that fetched a partition, and its lag."""
        known = self._partitions.get(subject)
        if known is None:
            return None
        exchange = self._last_of_session[known.session] if known.session else known.exchange
        return exchange, known.lag


def _fetched(
    exchange: ObservedExchange, session: int, position: int, result: Body | None
) -> _FetchedPartition:
    if result is None or result["error_code"] != ErrorCode.NONE or position < 0:
        return _FetchedPartition(exchange, session, position, 0)
    batches = sent_batches(result["records"])
    if batches:
        position = batches[-1].header.next_offset
    elif result["records"]:
        return _FetchedPartition(exchange, session, position, 0)
    return _FetchedPartition(
        exchange, session, position, max(0, int(result["high_watermark"]) - position)
    )


# Validation ---------------------------------------------------------------------------------------


def _observe_validations(traffic: ClientTraffic) -> Iterator[Situation]:
    names = topic_names(traffic)
    fetches = _FetchedPartitions(names)
    rows: defaultdict[tuple[str, int], list[ObservedExchange]] = defaultdict(list)
    for exchange in traffic.of_api(ApiKey.OFFSET_FOR_LEADER_EPOCH, ApiKey.FETCH):
        if exchange.key is ApiKey.OFFSET_FOR_LEADER_EPOCH:
            found = dict(returned_partitions(exchange))
            for subject, fields in requested_partitions(exchange):
                result = found.get(subject)
                if result is not None and result["error_code"] == ErrorCode.NONE:
                    rows[subject, fields["leader_epoch"]].append(exchange)
            continue
        fetched = fetches.note(exchange)
        for key in [each for each in rows if each[0] in fetched]:
            yield _judged_validations(key, rows.pop(key))
    for key, row in rows.items():
        if len(row) > VALIDATIONS_MAX:
            yield _judged_validations(key, row)


def _judged_validations(key: tuple[str, int], row: list[ObservedExchange]) -> Situation:
    subject, epoch = key
    evidence = tuple(sequence for each in row for sequence in each.sequences)
    if len(row) <= VALIDATIONS_MAX:
        return Situation(evidence)
    took_ms = row[-1].sent_ms - row[0].sent_ms
    return Situation(
        evidence,
        f"validated its position in {subject} with leader epoch {epoch} {len(row)} times within "
        f"{duration(took_ms)}, each time with success, before it fetched",
    )


# Lag ----------------------------------------------------------------------------------------------


class _HeldPartitions(NamedTuple):
    """Partitions that a member certainly has until an event."""

    start: MembershipEvent
    end: MembershipEvent
    """Before the next assignment or the loss of the membership; the last sign of the member."""
    limit_ms: float
    """``max.poll.interval.ms``: a consumer that does not poll for so long leaves its group."""


def _observe_lag(traffic: ClientTraffic) -> Iterator[Situation]:
    fetches = _FetchedPartitions(topic_names(traffic))
    held = [each for events in events_by_member(traffic) for each in _holdings(events)]
    held.sort(key=lambda each: each.end.sequence, reverse=True)
    for exchange in traffic.of_api(ApiKey.FETCH):
        while held and held[-1].end.sequence < exchange.sent.sequence:
            yield from _judged_lags(traffic, fetches, held.pop())
        fetches.note(exchange)
    for each in reversed(held):
        yield from _judged_lags(traffic, fetches, each)


def _judged_lags(
    traffic: ClientTraffic, fetches: _FetchedPartitions, held: _HeldPartitions
) -> Iterator[Situation]:
    """Judge the time from the last fetch of each partition to the last sign of its member."""
    for subject in sorted(held.start.partitions or ()):
        found = fetches.last_fetch(subject)
        if found is None:
            continue
        exchange, lag = found
        evidence = (exchange.sequences[-1], held.end.sequence)
        if not lag or exchange.sent.sequence < held.start.sequence:
            continue
        if evidence[0] > evidence[1] or not traffic.is_steady(*evidence):
            continue
        idle_ms = held.end.ms - exchange.last_ms
        fault = ""
        if idle_ms > held.limit_ms:
            fault = (
                f"did not fetch {subject} for {duration(idle_ms)} as {held.end.member}, although "
                f"{lag} records are left"
            )
        yield Situation(evidence, fault)


def _holdings(events: Sequence[MembershipEvent]) -> Iterator[_HeldPartitions]:
    start: MembershipEvent | None = None
    limit_ms = 0.0
    for before, event in zip((events[0], *events), events, strict=False):
        is_end = event.step in {MembershipStep.LOST, MembershipStep.LEFT}
        if is_end or event.step is MembershipStep.ASSIGNED:
            if start is not None:
                yield _HeldPartitions(start, before, limit_ms)
            start = event if limit_ms and not is_end else None
        if event.poll_ms:
            limit_ms = max(IDLE_MS_MIN, event.poll_ms)
    if start is not None:
        yield _HeldPartitions(start, events[-1], limit_ms)


RULES: Final = (
    BehaviorRule(
        "committed-position",
        "After an OffsetFetch that failed, the consumer repeats it, and does not start at an end "
        "of the log.",
        "Kafka's documentation of auto.offset.reset",
        Severity.ERROR,
        "an OffsetFetch that failed, and a Fetch or another OffsetFetch of the partition",
        _observe_offset_fetches,
        'Treat an error of OffsetFetch as "not known yet" and repeat the request; only an '
        "offset of -1 without an error means that there is none.",
    ),
    BehaviorRule(
        "epoch-validation",
        "After a response with the end of a leader epoch, the consumer fetches the partition, and "
        "does not validate its position again and again.",
        "KIP-320",
        Severity.ERROR,
        "a response to OffsetForLeaderEpoch without an error",
        _observe_validations,
        "Leave the state of validation after each response, also one that names an older epoch, "
        "and validate again only after new metadata.",
    ),
    BehaviorRule(
        "fetches-on",
        "A member fetches an assigned partition that has records left, unless the application "
        "pauses it.",
        "KIP-62",
        Severity.WARNING,
        "a group member whose last fetch of an assigned partition left records",
        _observe_lag,
        "Look for partitions that are assigned, not paused and in no fetch, for example after "
        "an error or an expired fetch session.",
    ),
)
