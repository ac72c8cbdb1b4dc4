"""Members of a classic group: their instance ids, pending ids, waiting requests and the leader.

Decodes also the subscriptions and assignments that consumers exchange. The coordinator forwards
them as opaque bytes; they are decoded only to find the topics that are still consumed, for the
expiry and deletion of offsets, and to show assignments to users. No bytes raise an error or reject
a member. Like Kafka's ``ClassicGroup.computeSubscribedTopics``, it reads version 0, because every
later version of ``ConsumerProtocolSubscription`` starts with the same fields.

It must never know the group's state, the time or limits; decisions are made in ``classic_group``.
Invariants: a member never waits for a join and a sync at the same time; a member id is either
pending or a member, never both; every instance id maps to a member; there is a leader if and only
if there are members; the number of members that wait for a join response is kept up to date, not
counted on demand. A client can't send heartbeats while it waits for a response, so its session does
not expire then, except for a new member. Kafka's ``ClassicGroupMember``, and the bookkeeping half
of its ``ClassicGroup``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from minibroker.broker.groups.events import JoinedMember, JoinRequested, Protocols, Waiter
from minibroker.broker.groups.records import MemberMetadata
from minibroker_protocol.compiler import decoder, encode
from minibroker_protocol.errors import DecodeError, ErrorCode
from minibroker_protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
)
from minibroker_protocol.schema import Message

CONSUMER_PROTOCOL_TYPE: Final = "consumer"
SUBSCRIPTION_VERSION_MAX: Final = 3
_VERSION_BYTES: Final = 2


MessageT = TypeVar("MessageT", bound=Message)


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """Topic names of a subscription, or None if the bytes can't be decoded."""
    subscription = _read(ConsumerProtocolSubscription, metadata)
    return None if subscription is None else frozenset(subscription.topics)


def assigned_partitions(assignment: bytes) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Partitions of an assignment by topic; empty if the bytes can't be decoded."""
    decoded = _read(ConsumerProtocolAssignment, assignment)
    if decoded is None:
        return ()
    return tuple(
        (assigned.topic, tuple(assigned.partitions)) for assigned in decoded.assigned_partitions
    )


def decode_subscription(metadata: bytes) -> ConsumerProtocolSubscription | None:
    """A subscription with all of its fields, or None if the bytes can't be decoded."""
    return _read(ConsumerProtocolSubscription, metadata, SUBSCRIPTION_VERSION_MAX)


def decode_assignment(assignment: bytes) -> ConsumerProtocolAssignment | None:
    """An assignment, or None if the bytes can't be decoded."""
    return _read(ConsumerProtocolAssignment, assignment)


def encode_assignment(topics: Mapping[str, Sequence[int]], version: int = 0) -> bytes:
    """An assignment with its version, from partitions by topic. All versions have one format."""
    assigned = [TopicPartition(topic=name, partitions=list(at)) for name, at in topics.items()]
    message = ConsumerProtocolAssignment(assigned_partitions=assigned)
    return version.to_bytes(_VERSION_BYTES, "big") + encode(message, 0)


def _read(cls: type[MessageT], data: bytes, version_max: int = 0) -> MessageT | None:
    version = int.from_bytes(data[:_VERSION_BYTES], "big", signed=True)
    if len(data) < _VERSION_BYTES or version < 0:
        return None
    try:
        return decoder(cls, min(version, version_max))(data, _VERSION_BYTES)[0]
    except DecodeError:
        return None


@dataclass(slots=True, kw_only=True)
class ClassicMember:
    """A member. ``expires_at`` is the end of its session without another heartbeat."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    join_waiter: Waiter | None = None
    sync_waiter: Waiter | None = None
    is_new: bool = False
    expires_at: float | None = None

    @property
    def is_static(self) -> bool:
        return self.group_instance_id is not None

    @property
    def awaits_join(self) -> bool:
        return self.join_waiter is not None

    @property
    def may_expire(self) -> bool:
        """Whether the member may be removed when its session times out."""
        return self.is_new or (self.join_waiter is None and self.sync_waiter is None)

    def metadata(self, protocol_name: str) -> bytes:
        """The member's metadata for the protocol; ``KeyError`` if it does not support it."""
        for name, metadata in self.protocols:
            if name == protocol_name:
                return metadata
        raise KeyError(protocol_name)

    def vote(self, candidates: Collection[str]) -> str:
        """The member's most preferred candidate. It must support at least one of them."""
        return next(name for name, _ in self.protocols if name in candidates)

    def joined(self, protocol_name: str) -> JoinedMember:
        return JoinedMember(self.member_id, self.group_instance_id, self.metadata(protocol_name))

    def stored(self, protocol_name: str, assignment: bytes) -> MemberMetadata:
        """The member as it is stored in the log, which has only the selected protocol."""
        return MemberMetadata(
            member_id=self.member_id,
            group_instance_id=self.group_instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout=self.rebalance_timeout_ms,
            session_timeout=self.session_timeout_ms,
            subscription=self.metadata(protocol_name),
            assignment=assignment,
        )


def new_member(event: JoinRequested, member_id: str) -> ClassicMember:
    """Create a member from its first join, which waits."""
    return ClassicMember(
        member_id=member_id,
        group_instance_id=event.group_instance_id,
        client_id=event.client_id,
        client_host=event.client_host,
        session_timeout_ms=event.session_timeout_ms,
        rebalance_timeout_ms=event.rebalance_timeout_ms,
        protocols=event.protocols,
        join_waiter=event.waiter,
        is_new=True,
    )


def restore_member(stored: MemberMetadata, protocol_name: str) -> ClassicMember:
    """Create a member from its record."""
    return ClassicMember(
        member_id=stored.member_id,
        group_instance_id=stored.group_instance_id,
        client_id=stored.client_id,
        client_host=stored.client_host,
        session_timeout_ms=stored.session_timeout,
        rebalance_timeout_ms=stored.rebalance_timeout,
        protocols=((protocol_name, stored.subscription),),
        assignment=stored.assignment,
    )


class Membership:
    """Members in the order in which they joined. This order also breaks ties."""

    def __init__(self) -> None:
        self.leader: str | None = None
        self.pending: dict[str, float] = {}
        """Ids that were assigned but have not joined yet, with their expiry times."""
        self.pending_sync: set[str] = set()
        """Members of the new generation that have not sent their sync request yet."""
        self._members: dict[str, ClassicMember] = {}
        self._static: dict[str, str] = {}
        self._protocol_support: Counter[str] = Counter()
        self._awaiting_join = 0

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[ClassicMember]:
        return iter(self._members.values())

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._members

    def __getitem__(self, member_id: str) -> ClassicMember:
        return self._members[member_id]

    def get(self, member_id: str) -> ClassicMember | None:
        return self._members.get(member_id)

    def static_member_id(self, group_instance_id: str) -> str | None:
        return self._static.get(group_instance_id)

    def check(self, member_id: str, group_instance_id: str | None) -> ErrorCode:
        """Check that the member exists and is the current owner of its instance id."""
        if group_instance_id is not None:
            current = self._static.get(group_instance_id)
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self._members else ErrorCode.UNKNOWN_MEMBER_ID

    def assignments(self) -> dict[str, bytes]:
        return {member.member_id: member.assignment for member in self}

    def deadlines(self) -> Iterator[tuple[float, str, str]]:
        """When sessions and pending ids expire, each with its kind and the member id."""
        for member in self:
            if member.expires_at is not None:
                yield member.expires_at, "session", member.member_id
        for member_id, expires_at in self.pending.items():
            yield expires_at, "pending", member_id

    # -------------------------------------------------------------------- adding and removing

    def add(self, member: ClassicMember) -> None:
        """Add a member. Its id and instance id must not be in use."""
        if member.group_instance_id is not None:
            if member.group_instance_id in self._static:
                raise ValueError(f"static member {member.group_instance_id!r} is already a member")
            self._static[member.group_instance_id] = member.member_id
        self.pending.pop(member.member_id, None)
        self._members[member.member_id] = member
        self._protocol_support.update(_names(member.protocols))
        self._awaiting_join += member.awaits_join
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member_id: str) -> ClassicMember | None:
        """Remove an id, pending or not. The returned member may still have waiting requests."""
        self.pending.pop(member_id, None)
        self.pending_sync.discard(member_id)
        member = self._members.pop(member_id, None)
        if member is None:
            return None
        if member.group_instance_id is not None:
            del self._static[member.group_instance_id]
        self._protocol_support.subtract(_names(member.protocols))
        self._awaiting_join -= member.awaits_join
        if self.leader == member_id:
            self.leader = next(iter(self._members), None)
        return member

    def rename(self, member: ClassicMember, member_id: str) -> None:
        """Give a static member a new id. It remains the leader if it was."""
        old = member.member_id
        del self._members[old]
        self._members[member_id] = member
        member.member_id = member_id
        if member.group_instance_id is not None:
            self._static[member.group_instance_id] = member_id
        if old in self.pending_sync:
            self.pending_sync.remove(old)
            self.pending_sync.add(member_id)
        if self.leader == old:
            self.leader = member_id

    def update(self, member: ClassicMember, source: JoinRequested | ClassicMember) -> None:
        """Take the protocols and timeouts of a request, or of the member as it was."""
        self._protocol_support.subtract(_names(member.protocols))
        self._protocol_support.update(_names(source.protocols))
        member.protocols = source.protocols
        member.session_timeout_ms = source.session_timeout_ms
        member.rebalance_timeout_ms = source.rebalance_timeout_ms

    # ---------------------------------------------------------------------------- waiting

    def park_join(self, member: ClassicMember, waiter: Waiter) -> Waiter | None:
        """Park a request until the member's join completes; return the one it replaces."""
        before = self.release_join(member)
        member.join_waiter = waiter
        self._awaiting_join += 1
        return before

    def release_join(self, member: ClassicMember) -> Waiter | None:
        waiter, member.join_waiter = member.join_waiter, None
        self._awaiting_join -= waiter is not None
        return waiter

    @property
    def awaiting_join(self) -> int:
        return self._awaiting_join

    @property
    def all_joined(self) -> bool:
        return self._awaiting_join == len(self._members) and not self.pending

    def elect_joined_leader(self) -> bool:
        """Elect another leader if the leader has not rejoined; False if no member has."""
        if self.leader is not None and self._members[self.leader].awaits_join:
            return True
        joined = next((member for member in self if member.awaits_join), None)
        if joined is None:
            return False
        self.leader = joined.member_id
        return True

    # -------------------------------------------------------------------------- protocols

    def supported_by_all(self, names: Iterable[str]) -> bool:
        """Whether all members support one of the protocols."""
        return any(self._protocol_support[name] == len(self._members) for name in names)

    def select_protocol(self) -> str:
        """The protocol with the most votes among those that all members support. The earliest
        vote breaks a tie.
        """
        member_count = len(self._members)
        candidates = {
            name for name, count in self._protocol_support.items() if count == member_count
        }
        votes = Counter(member.vote(candidates) for member in self)
        return votes.most_common(1)[0][0]

    def rebalance_timeout_s(self) -> float:
        """The longest rebalance timeout of all members."""
        longest = max((member.rebalance_timeout_ms for member in self), default=0)
        return max(longest, 0) / 1000

    def joined_members(self, protocol_name: str) -> tuple[JoinedMember, ...]:
        return tuple(member.joined(protocol_name) for member in self)

    def subscribed_topics(self, protocol_name: str) -> frozenset[str] | None:
        """Topics of all members' subscriptions, or None if one of them can't be decoded."""
        topics: set[str] = set()
        for member in self:
            member_topics = subscribed_topics(member.metadata(protocol_name))
            if member_topics is None:
                return None
            topics |= member_topics
        return frozenset(topics)


def _names(protocols: Protocols) -> Iterable[str]:
    """Protocol names without duplicates, so that each counts once per member."""
    return list(dict.fromkeys(name for name, _ in protocols))
