"""Who is in a group: members, static names, ids handed out, who waits, who leads.

It must never know the group's state, time or limits; ``group`` decides, this keeps count.
Invariants: a member id is either pending or a member, never both; every static name points at a
member; there is a leader exactly when there are members; the number of members that wait for
their join is always known without counting. The bookkeeping half of Kafka's ``ClassicGroup``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from minibroker.coordinator.events import JoinedMember, Protocols, Waiter
from minibroker.coordinator.member import Member
from minibroker.coordinator.subscription import subscribed_topics


class Roster:
    """Members in the order they came, which also decides ties."""

    def __init__(self) -> None:
        self.leader: str | None = None
        self.pending: dict[str, float] = {}
        """Ids handed out, with the time at which each lapses."""
        self.pending_sync: set[str] = set()
        """Members of the new generation that have not asked for their assignment."""
        self._members: dict[str, Member] = {}
        self._static: dict[str, str] = {}
        self._supporters: Counter[str] = Counter()
        self._awaiting_join = 0

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._members

    def __getitem__(self, member_id: str) -> Member:
        return self._members[member_id]

    def get(self, member_id: str) -> Member | None:
        return self._members.get(member_id)

    def static_member_id(self, group_instance_id: str) -> str | None:
        return self._static.get(group_instance_id)

    # ------------------------------------------------------------------- coming and going

    def add(self, member: Member) -> None:
        """Takes in a member whose id and static name are free."""
        if member.group_instance_id is not None:
            if member.group_instance_id in self._static:
                raise ValueError(f"static member {member.group_instance_id!r} is there already")
            self._static[member.group_instance_id] = member.member_id
        self.pending.pop(member.member_id, None)
        self._members[member.member_id] = member
        self._supporters.update(_names(member.protocols))
        self._awaiting_join += member.awaits_join
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member_id: str) -> Member | None:
        """Forgets an id, pending or not. The member it belonged to may still hold waiters."""
        self.pending.pop(member_id, None)
        self.pending_sync.discard(member_id)
        member = self._members.pop(member_id, None)
        if member is None:
            return None
        if member.group_instance_id is not None:
            del self._static[member.group_instance_id]
        self._supporters.subtract(_names(member.protocols))
        self._awaiting_join -= member.awaits_join
        if self.leader == member_id:
            self.leader = next(iter(self._members), None)
        return member

    def rename(self, member: Member, member_id: str) -> None:
        """Gives a static member a new id; it keeps its place as leader."""
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
        member: Member,
        protocols: Protocols,
        *,
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
    ) -> None:
        self._supporters.subtract(_names(member.protocols))
        self._supporters.update(_names(protocols))
        member.protocols = protocols
        member.session_timeout_ms = session_timeout_ms
        member.rebalance_timeout_ms = rebalance_timeout_ms

    # ---------------------------------------------------------------------------- waiting

    def park_join(self, member: Member, waiter: Waiter) -> Waiter | None:
        """Lets a waiter wait for the member's join; returns one that waited before."""
        before = self.release_join(member)
        member.join_waiter = waiter
        self._awaiting_join += 1
        return before

    def release_join(self, member: Member) -> Waiter | None:
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
        """Makes sure that the leader has rejoined, by choosing another one if need be; False if
        nobody has.
        """
        if self.leader is not None and self._members[self.leader].awaits_join:
            return True
        joined = next((member for member in self if member.awaits_join), None)
        if joined is None:
            return False
        self.leader = joined.member_id
        return True

    # -------------------------------------------------------------------------- protocols

    def supported_by_all(self, names: Iterable[str]) -> bool:
        """Whether one of the names is known to every member."""
        return any(self._supporters[name] == len(self._members) for name in names)

    def select_protocol(self) -> str:
        """The protocol that all support and most prefer; the earliest vote decides a tie."""
        everybody = len(self._members)
        candidates = {name for name, count in self._supporters.items() if count == everybody}
        votes = Counter(member.vote(candidates) for member in self)
        return votes.most_common(1)[0][0]

    def rebalance_timeout_s(self) -> float:
        """The longest time that any member asks for to rejoin."""
        longest = max((member.rebalance_timeout_ms for member in self), default=0)
        return max(longest, 0) / 1000

    def joined_members(self, protocol_name: str) -> tuple[JoinedMember, ...]:
        return tuple(member.joined(protocol_name) for member in self)

    def subscribed_topics(self, protocol_name: str) -> frozenset[str] | None:
        """Topics that the members consume, or None if one of them can't be understood."""
        topics: set[str] = set()
        for member in self:
            wanted = subscribed_topics(member.metadata(protocol_name))
            if wanted is None:
                return None
            topics |= wanted
        return frozenset(topics)


def _names(protocols: Protocols) -> Iterable[str]:
    """Each name once: a member that says it twice supports it no more than others do."""
    return list(dict.fromkeys(name for name, _ in protocols))
