"""Membership of a group: members, instance ids, pending ids, waiting joins and the leader.

It must never know the group's state, the time or limits; decisions are made in ``classic_group``.
Invariants: a member id is either pending or a member, never both; every instance id maps to a
member; there is a leader if and only if there are members; the number of members that wait for a
join response is kept up to date, not counted on demand. The bookkeeping half of Kafka's
``ClassicGroup``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from minibroker.broker.groups.events import JoinedMember, Protocols, Waiter
from minibroker.broker.groups.member import ClassicMember
from minibroker.broker.groups.subscription import subscribed_topics


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

    def update(
        self,
        member: ClassicMember,
        protocols: Protocols,
        *,
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
    ) -> None:
        self._protocol_support.subtract(_names(member.protocols))
        self._protocol_support.update(_names(protocols))
        member.protocols = protocols
        member.session_timeout_ms = session_timeout_ms
        member.rebalance_timeout_ms = rebalance_timeout_ms

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
