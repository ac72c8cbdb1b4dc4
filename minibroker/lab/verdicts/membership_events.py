"""Events of group members, out of requests and responses, in the order of the journal.

Owns the protocols of groups: which message joins, assigns, keeps, loses and leaves a membership,
for classic groups and those of KIP-848. It must never judge. Invariant: an assignment that cannot
be read is unknown, and nothing is concluded from it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

from minibroker.lab.verdicts.exchanges import Body, ObservedExchange, topic_of
from minibroker.lab.verdicts.traffic import ClientTraffic
from minibroker_protocol.compiler import decode
from minibroker_protocol.errors import DecodeError, ErrorCode, UnsupportedVersion
from minibroker_protocol.messages.consumer_protocol import ConsumerProtocolAssignment
from minibroker_protocol.registry import ApiKey

LOST_MEMBERSHIP: Final = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.FENCED_MEMBER_EPOCH,
    }
)
"""Errors that say to a member that its partitions may belong to others."""

LEAVES_AT_EPOCH: Final = frozenset({-1, -2})
"""Member epochs of a last heartbeat with an epoch; a static member may return after -2."""

Partitions = frozenset[str]


class MemberId(NamedTuple):
    """A member of a group."""

    group: str
    member: str

    def __str__(self) -> str:
        return f"member {self.member} of group {self.group}"


class MembershipStep(Enum):
    """What happens to a membership."""

    JOINED = "joined"
    ASSIGNED = "assigned"
    REPORTED = "reported"
    """The member says what it owns (KIP-848)."""
    KEPT_ALIVE = "kept alive"
    COMMITTED = "committed"
    LOST = "lost"
    LEFT = "left"


class MembershipEvent(NamedTuple):
    """One step of a membership."""

    member: MemberId
    step: MembershipStep
    exchange: ObservedExchange
    sequence: int
    """Of the request or the response that is the event."""
    ms: float
    generation: int = -1
    """Generation or member epoch."""
    partitions: Partitions | None = None
    """Assigned or committed partitions; None if they are unknown."""
    interval_ms: int = 0
    """Session timeout of a classic member, or the interval of its heartbeats (KIP-848)."""
    poll_ms: int = 0
    """Time in which the application of a member polls again; 0 if the event does not say it."""
    is_static: bool = False
    protocol: str = ""
    """The assignor of the generation, of a classic member that joined."""
    error: int = 0

    @property
    def is_request(self) -> bool:
        """Whether the member itself did the step, with a request."""
        return self.sequence == self.exchange.sent.sequence

    @property
    def connection(self) -> str | None:
        """The connection of the request."""
        return self.exchange.sent.connection


_CLASSIC: Final = (
    ApiKey.JOIN_GROUP,
    ApiKey.SYNC_GROUP,
    ApiKey.HEARTBEAT,
    ApiKey.LEAVE_GROUP,
    ApiKey.OFFSET_COMMIT,
)

MEMBER_HEARTBEATS: Final = (ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.STREAMS_GROUP_HEARTBEAT)
"""Heartbeats of members that have an epoch and partitions of their own."""


def membership_events(traffic: ClientTraffic) -> list[MembershipEvent]:
    """Return the events of all members, in the order of sequence numbers."""
    names = topic_names(traffic)
    events = [
        event
        for exchange in traffic.of_api(*_CLASSIC, *MEMBER_HEARTBEATS)
        if exchange.request is not None
        for event in _events(exchange, exchange.request, names)
    ]
    return sorted(events, key=lambda event: event.sequence)


def events_by_member(traffic: ClientTraffic) -> list[list[MembershipEvent]]:
    """Return the events of each member, in the order of sequence numbers."""
    members: defaultdict[MemberId, list[MembershipEvent]] = defaultdict(list)
    for event in membership_events(traffic):
        members[event.member].append(event)
    return list(members.values())


def topic_names(traffic: ClientTraffic) -> Mapping[str, str]:
    """Return the names of topic ids that the client got with Metadata."""
    names: dict[str, str] = {}
    for exchange in traffic.of_api(ApiKey.METADATA):
        for topic in (exchange.response or {}).get("topics") or ():
            if topic.get("topic_id") and topic.get("name"):
                names[topic["topic_id"]] = topic["name"]
    return names


def _events(
    exchange: ObservedExchange, request: Body, names: Mapping[str, str]
) -> Iterator[MembershipEvent]:
    if exchange.key in MEMBER_HEARTBEATS:
        yield from _heartbeat_events(exchange, request, names)
    elif exchange.key is ApiKey.LEAVE_GROUP:
        leaving = request.get("members") or [{"member_id": request.get("member_id", "")}]
        for each in leaving:
            yield _sent(
                exchange, MemberId(request["group_id"], each["member_id"]), MembershipStep.LEFT
            )
    elif exchange.key is ApiKey.JOIN_GROUP:
        yield from _join_events(exchange, request)
    else:
        yield from _member_events(exchange, request, names)


def _sent(
    exchange: ObservedExchange, member: MemberId, step: MembershipStep, **rest: Any
) -> MembershipEvent:
    return MembershipEvent(member, step, exchange, exchange.sent.sequence, exchange.sent_ms, **rest)


def _returned(
    exchange: ObservedExchange, member: MemberId, step: MembershipStep, **rest: Any
) -> MembershipEvent:
    assert exchange.answer is not None
    return MembershipEvent(
        member, step, exchange, exchange.answer.sequence, exchange.last_ms, **rest
    )


def _lost(exchange: ObservedExchange, member: MemberId, code: int) -> Iterator[MembershipEvent]:
    if code in LOST_MEMBERSHIP:
        yield _returned(exchange, member, MembershipStep.LOST, error=code)


def _join_events(exchange: ObservedExchange, request: Body) -> Iterator[MembershipEvent]:
    group = request["group_id"]
    if request["member_id"]:
        yield _sent(exchange, MemberId(group, request["member_id"]), MembershipStep.KEPT_ALIVE)
    response = exchange.response
    if response is None:
        return
    if response["error_code"] == ErrorCode.NONE:
        yield _returned(
            exchange,
            MemberId(group, response["member_id"]),
            MembershipStep.JOINED,
            generation=response["generation_id"],
            interval_ms=request["session_timeout_ms"],
            poll_ms=request.get("rebalance_timeout_ms", 0),
            is_static=request.get("group_instance_id") is not None,
            protocol=response["protocol_name"] or "",
        )
    elif request["member_id"]:
        yield from _lost(exchange, MemberId(group, request["member_id"]), response["error_code"])


def _member_events(
    exchange: ObservedExchange, request: Body, names: Mapping[str, str]
) -> Iterator[MembershipEvent]:
    """SyncGroup, Heartbeat and OffsetCommit."""
    member = MemberId(request["group_id"], request["member_id"])
    if not member.member:
        return
    response = exchange.response
    if exchange.key is ApiKey.OFFSET_COMMIT:
        partitions = _committed(request, names)
        generation = request["generation_id_or_member_epoch"]
        if generation < 0:
            return
        yield _sent(
            exchange, member, MembershipStep.COMMITTED, generation=generation, partitions=partitions
        )
        for topic in (response or {}).get("topics") or ():
            for partition in topic["partitions"][:1]:
                yield from _lost(exchange, member, partition["error_code"])
        return
    yield _sent(exchange, member, MembershipStep.KEPT_ALIVE, generation=request["generation_id"])
    if response is None:
        return
    if exchange.key is ApiKey.SYNC_GROUP and response["error_code"] == ErrorCode.NONE:
        yield _returned(
            exchange,
            member,
            MembershipStep.ASSIGNED,
            generation=request["generation_id"],
            partitions=_assigned(response["assignment"]),
        )
    else:
        yield from _lost(exchange, member, response["error_code"])


def _heartbeat_events(
    exchange: ObservedExchange, request: Body, names: Mapping[str, str]
) -> Iterator[MembershipEvent]:
    response = exchange.response
    member = MemberId(request["group_id"], request["member_id"])
    is_static = request.get("instance_id") is not None
    if request["member_epoch"] in LEAVES_AT_EPOCH:
        yield _sent(exchange, member, MembershipStep.LEFT)
        return
    if member.member:
        yield _sent(exchange, member, MembershipStep.KEPT_ALIVE)
        if (owned := request.get("topic_partitions")) is not None:
            yield _sent(exchange, member, MembershipStep.REPORTED, partitions=_by_id(owned, names))
    if response is None:
        return
    if response["error_code"] != ErrorCode.NONE:
        yield from _lost(exchange, member, response["error_code"])
        return
    member = MemberId(member.group, response["member_id"] or member.member)
    yield _returned(
        exchange,
        member,
        MembershipStep.JOINED,
        generation=response["member_epoch"],
        interval_ms=response["heartbeat_interval_ms"],
        poll_ms=max(request["rebalance_timeout_ms"], 0),
        is_static=is_static,
    )
    assignment = response.get("assignment")
    if assignment is not None or response.get("active_tasks") is not None:
        yield _returned(
            exchange,
            member,
            MembershipStep.ASSIGNED,
            generation=response["member_epoch"],
            partitions=None  # Which partitions a task has follows from the topology.
            if assignment is None
            else _by_id(assignment["topic_partitions"], names),
        )


def _by_id(topics: Sequence[Body], names: Mapping[str, str]) -> Partitions | None:
    if any(topic["topic_id"] not in names for topic in topics):
        return None
    return frozenset(
        f"{names[topic['topic_id']]}-{partition}"
        for topic in topics
        for partition in topic["partitions"]
    )


def _committed(request: Body, names: Mapping[str, str]) -> Partitions | None:
    found = set()
    for topic in request["topics"]:
        name = topic_of(topic)
        if "topic_id" in topic and not topic.get("name"):
            if name not in names:
                return None
            name = names[name]
        found |= {f"{name}-{each['partition_index']}" for each in topic["partitions"]}
    return frozenset(found)


_VERSION_BYTES: Final = 2


def _assigned(assignment: bytes) -> Partitions | None:
    """The partitions of a consumer's assignment; None if it is of another protocol."""
    if not assignment:
        return frozenset()
    version = int.from_bytes(assignment[:_VERSION_BYTES], "big", signed=True)
    known = ConsumerProtocolAssignment.__versions__
    try:
        found = decode(
            ConsumerProtocolAssignment, min(version, known.high), assignment, _VERSION_BYTES
        )
    except (DecodeError, UnsupportedVersion):
        return None
    return frozenset(
        f"{topic.topic}-{partition}"
        for topic in found.assigned_partitions
        for partition in topic.partitions
    )
