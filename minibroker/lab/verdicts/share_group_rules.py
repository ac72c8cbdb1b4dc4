"""Rules: a member of a share group acknowledges what it has acquired, once and in time.

Owns which records a member has, as far as it was sent. It must never know the broker's state.
Invariant: a member whose session started before the journal, or to which a response was sent that
the journal does not keep, may have any records until it opens a new session. KIP-932.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from minibroker.lab.verdicts.commit_rules import IN_FLIGHT_MS
from minibroker.lab.verdicts.consumer_group_rules import FENCES, was_sent_after
from minibroker.lab.verdicts.exchanges import Body, ObservedExchange
from minibroker.lab.verdicts.membership_events import MemberId, topic_names
from minibroker.lab.verdicts.situations import BehaviorRule, Severity, Situation, duration
from minibroker.lab.verdicts.traffic import ClientTraffic
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.registry import ApiKey

JOIN_EPOCH: Final = 0
OPENING_EPOCH: Final = 0
"""Epoch of a request that opens a share session."""
SESSION_ERRORS: Final = frozenset(
    {ErrorCode.SHARE_SESSION_NOT_FOUND, ErrorCode.INVALID_SHARE_SESSION_EPOCH}
)
RENEW: Final = 4
"""The acknowledge type after which a member still has a record."""

_Partition = tuple[str, int]
"""Topic id and index."""


def _by_member(traffic: ClientTraffic, *keys: ApiKey) -> Mapping[MemberId, list[ObservedExchange]]:
    found: defaultdict[MemberId, list[ObservedExchange]] = defaultdict(list)
    for exchange in traffic.of_api(*keys):
        request = exchange.request
        if request is not None and request["group_id"] and request["member_id"]:
            found[MemberId(request["group_id"], request["member_id"])].append(exchange)
    return found


def _steps(exchanges: Sequence[ObservedExchange]) -> Iterator[tuple[bool, ObservedExchange]]:
    """Requests (true) and responses (false) in the order of the journal."""
    steps = [(each.sent.sequence, True, each) for each in exchanges]
    steps += [(each.answer.sequence, False, each) for each in exchanges if each.answer]
    for _, is_request, exchange in sorted(steps, key=lambda step: step[0]):
        yield is_request, exchange


def _request(exchange: ObservedExchange) -> Body:
    assert exchange.request is not None
    return exchange.request


# Joining again ------------------------------------------------------------------------------------


def _observe_rejoins(traffic: ClientTraffic) -> Iterator[Situation]:
    for member, heartbeats in _by_member(traffic, ApiKey.SHARE_GROUP_HEARTBEAT).items():
        fence: ObservedExchange | None = None
        for heartbeat in heartbeats:
            epoch = _request(heartbeat)["member_epoch"]
            if fence is not None and was_sent_after(fence, heartbeat):
                if epoch >= JOIN_EPOCH:
                    evidence = (fence.sequences[-1], heartbeat.sent.sequence)
                    yield Situation(evidence, _fault_of_rejoin(member, fence, heartbeat))
                fence = None
            if heartbeat.response is not None and epoch > JOIN_EPOCH:
                is_fenced = heartbeat.response["error_code"] in FENCES
                fence = heartbeat if is_fenced else fence


def _fault_of_rejoin(member: MemberId, fence: ObservedExchange, heartbeat: ObservedExchange) -> str:
    assert fence.response is not None
    epoch = _request(heartbeat)["member_epoch"]
    if epoch == JOIN_EPOCH:
        return ""
    since = duration(heartbeat.sent_ms - fence.last_ms)
    error = ErrorCode.describe(fence.response["error_code"])
    return f"sent a heartbeat as {member} in epoch {epoch}, {since} after {error}"


# Sessions -----------------------------------------------------------------------------------------


def _observe_sessions(traffic: ClientTraffic) -> Iterator[Situation]:
    for member, requests in _by_member(
        traffic, ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE
    ).items():
        refused: ObservedExchange | None = None
        for exchange in requests:
            epoch = _request(exchange)["share_session_epoch"]
            if refused is not None and was_sent_after(refused, exchange):
                fault = _fault_of_session(member, refused, exchange) if epoch > 0 else ""
                yield Situation((refused.sequences[-1], exchange.sent.sequence), fault)
                refused = None
            if exchange.response is not None and epoch > OPENING_EPOCH:
                is_refused = exchange.response["error_code"] in SESSION_ERRORS
                refused = exchange if is_refused else refused


def _fault_of_session(
    member: MemberId, refused: ObservedExchange, exchange: ObservedExchange
) -> str:
    assert refused.response is not None
    return (
        f"sent {exchange.title} as {member} in epoch {_request(exchange)['share_session_epoch']} "
        f"of its session, {duration(exchange.sent_ms - refused.last_ms)} after "
        f"{ErrorCode.describe(refused.response['error_code'])}"
    )


# Acknowledgements ---------------------------------------------------------------------------------


class _Lock(NamedTuple):
    """Consecutive records that a member has."""

    first: int
    last: int
    since: ObservedExchange
    """The exchange whose response says so."""
    lock_ms: int


class _Acknowledged(NamedTuple):
    """Records of one acknowledgement, and the locks that the member has on some of them."""

    exchange: ObservedExchange
    member: MemberId
    partition: str
    locks: tuple[_Lock, ...]
    others: tuple[tuple[int, int], ...]
    """First and last offset of records that the member does not have."""


class _Records:
    """What one member has acquired."""

    def __init__(self, member: MemberId, names: Mapping[str, str]) -> None:
        self._member = member
        self._names = names
        self._is_known = False
        self._locks: defaultdict[_Partition, list[_Lock]] = defaultdict(list)
        self._sent: dict[tuple[ObservedExchange, _Partition], list[tuple[_Lock, bool]]] = {}
        """The locks of acknowledgements on their way, and whether these renew them."""

    def note_request(self, exchange: ObservedExchange) -> Iterator[_Acknowledged]:
        if _request(exchange)["share_session_epoch"] == OPENING_EPOCH:
            self._locks.clear()
            self._sent.clear()
            self._is_known = True
        if not self._is_known:
            return
        for topic in _request(exchange)["topics"]:
            for partition in topic["partitions"]:
                key = topic["topic_id"], partition["partition_index"]
                locks: list[_Lock] = []
                others: list[tuple[int, int]] = []
                for batch in partition["acknowledgement_batches"]:
                    found = self._take(exchange, key, batch)
                    locks += found
                    others += _uncovered(batch["first_offset"], batch["last_offset"], found)
                if locks or others:
                    name = f"{self._names.get(key[0], key[0])}-{key[1]}"
                    yield _Acknowledged(exchange, self._member, name, tuple(locks), tuple(others))

    def _take(self, exchange: ObservedExchange, key: _Partition, batch: Body) -> list[_Lock]:
        """Take the records of a batch away from the member until the response; return them."""
        first, last = batch["first_offset"], batch["last_offset"]
        renews = all(kind == RENEW for kind in batch["acknowledge_types"])
        taken: list[_Lock] = []
        kept: list[_Lock] = []
        for lock in self._locks[key]:
            low, high = max(lock.first, first), min(lock.last, last)
            if low > high:
                kept.append(lock)
                continue
            taken.append(lock._replace(first=low, last=high))
            if lock.first < low:
                kept.append(lock._replace(last=low - 1))
            if lock.last > high:
                kept.append(lock._replace(first=high + 1))
        self._locks[key] = kept
        self._sent.setdefault((exchange, key), []).extend((lock, renews) for lock in taken)
        return sorted(taken)

    def note_response(self, exchange: ObservedExchange) -> None:
        if exchange.response is None:
            self._is_known = False
            return
        error, response = exchange.response["error_code"], exchange.response
        lock_ms = response.get("acquisition_lock_timeout_ms", 0)
        is_fetch = exchange.key is ApiKey.SHARE_FETCH
        for topic in response["responses"]:
            for partition in topic["partitions"]:
                key = topic["topic_id"], partition["partition_index"]
                code = partition["acknowledge_error_code" if is_fetch else "error_code"]
                self._settle(exchange, key, code, lock_ms)
                for acquired in partition.get("acquired_records", ()):
                    first, last = acquired["first_offset"], acquired["last_offset"]
                    self._locks[key].append(_Lock(first, last, exchange, lock_ms))
        for each, key in [each for each in self._sent if each[0] is exchange]:
            self._settle(each, key, error, lock_ms)

    def _settle(self, exchange: ObservedExchange, key: _Partition, code: int, lock_ms: int) -> None:
        """Give records back to the member if an acknowledgement renews them, or has failed."""
        for lock, renews in self._sent.pop((exchange, key), ()):
            if code == ErrorCode.NONE and renews:
                limit_ms = lock_ms or lock.lock_ms
                self._locks[key].append(lock._replace(since=exchange, lock_ms=limit_ms))
            elif code not in (ErrorCode.NONE, ErrorCode.INVALID_RECORD_STATE):
                self._locks[key].append(lock)


def _uncovered(first: int, last: int, locks: Sequence[_Lock]) -> Iterator[tuple[int, int]]:
    for lock in locks:
        if lock.first > first:
            yield first, lock.first - 1
        first = max(first, lock.last + 1)
    if first <= last:
        yield first, last


def _acknowledged(traffic: ClientTraffic) -> Iterator[_Acknowledged]:
    names = topic_names(traffic)
    apis = ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE
    for member, exchanges in _by_member(traffic, *apis).items():
        # A session belongs to a connection.
        sessions: defaultdict[str | None, _Records] = defaultdict(partial(_Records, member, names))
        for is_request, exchange in _steps(exchanges):
            records = sessions[exchange.sent.connection]
            if is_request:
                yield from records.note_request(exchange)
            else:
                records.note_response(exchange)


def _observe_acquired(traffic: ClientTraffic) -> Iterator[Situation]:
    for each in _acknowledged(traffic):
        fault = ""
        if each.others:
            first, last = each.others[0]
            offsets = f"offset {first}" if first == last else f"offsets {first} to {last}"
            fault = (
                f"acknowledged {offsets} of {each.partition} as {each.member}, which it does not "
                "have"
            )
        evidence = {lock.since.sequences[-1] for lock in each.locks}
        yield Situation((*sorted(evidence), each.exchange.sent.sequence), fault)


def _observe_locks(traffic: ClientTraffic) -> Iterator[Situation]:
    for each in _acknowledged(traffic):
        sent = each.exchange.sent
        for since in {lock.since.sequences[-1]: lock for lock in each.locks}.values():
            started = since.since
            if not since.lock_ms or not traffic.is_steady(started.sequences[-1], sent.sequence):
                continue
            late_ms = each.exchange.sent_ms - started.last_ms
            fault = ""
            if late_ms > since.lock_ms + IN_FLIGHT_MS:
                fault = (
                    f"acknowledged records of {each.partition} as {each.member} {duration(late_ms)}"
                    f" after it got them, and its locks last {duration(since.lock_ms)}"
                )
            yield Situation((started.sequences[-1], sent.sequence), fault)


RULES: Final = (
    BehaviorRule(
        "share-rejoins-after-fence",
        "After FENCED_MEMBER_EPOCH or UNKNOWN_MEMBER_ID a member of a share group joins with epoch "
        "0, or leaves.",
        "KIP-932",
        Severity.ERROR,
        "a member of a share group (KIP-932) that was fenced",
        _observe_rejoins,
        "Forget the member epoch and the acquired records, and send a heartbeat with epoch 0 and "
        "the same member id.",
    ),
    BehaviorRule(
        "reopens-share-session",
        "After SHARE_SESSION_NOT_FOUND or INVALID_SHARE_SESSION_EPOCH a member opens a new share "
        "session.",
        "KIP-932",
        Severity.ERROR,
        "a member of a share group (KIP-932) whose session was refused",
        _observe_sessions,
        "Send the next ShareFetch with session epoch 0 and all partitions, and drop the records "
        "that were acquired: the broker has released them.",
    ),
    BehaviorRule(
        "acknowledges-acquired",
        "A member acknowledges only records that it has acquired in its share session, each once.",
        "KIP-932",
        Severity.ERROR,
        "a member of a share group (KIP-932) that acknowledges records",
        _observe_acquired,
        "Keep the acquired ranges of each session, take a record out of them when it is "
        "acknowledged, and clear them when the session or the lock ends.",
    ),
    BehaviorRule(
        "acknowledges-in-time",
        "A member acknowledges or renews records before their locks expire.",
        "KIP-932 and KIP-1222",
        Severity.WARNING,
        "a member of a share group (KIP-932) that acknowledges records",
        _observe_locks,
        "Compare the age of a record with acquisition_lock_timeout_ms of the response before it is "
        "delivered, and renew the lock while the application works on it.",
    ),
)
