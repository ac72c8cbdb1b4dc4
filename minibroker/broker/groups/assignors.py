"""The server-side assignors of consumer groups: uniform and range.

Owns the computation of a target assignment from subscriptions, partition counts and the previous
target. It must never know a group's state or the time. Invariant: each partition of a subscribed
topic has one owner, who is subscribed to it, and the result is the one that Kafka computes, also
where that depends on the order in which Java's hash maps are read. Kafka's ``UniformAssignor`` and
``RangeAssignor``. The leader of a former classic group may have assigned what does not exist, or
one partition twice; Kafka then fails or keeps it so, here such partitions are left out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple, TypeVar

from minibroker.broker.metadata.image import java_string_hash
from minibroker_protocol.types import Uuid

UNIFORM: Final = "uniform"
RANGE: Final = "range"
ASSIGNORS: Final = (UNIFORM, RANGE)

BALANCE_PASSES_MAX: Final = 16
"""Passes over all topics in which partitions are moved between members."""

NO_OWNER: Final = -1

Partitions = Mapping[Uuid, Collection[int]]
"""Partitions by topic id. Their order is that of the record in which Kafka stores them."""

Assignment = dict[Uuid, tuple[int, ...]]


class MemberSubscription(NamedTuple):
    """What an assignor knows of a member; ``topics`` are the existing ones, by id."""

    topics: frozenset[Uuid]
    assigned: Partitions
    """The member's part of the previous target."""
    instance_id: str | None = None


Members = Mapping[str, MemberSubscription]
PartitionCounts = Mapping[Uuid, int]


def assign(
    assignor: str, members: Members, counts: PartitionCounts, *, is_homogeneous: bool
) -> dict[str, Assignment]:
    """Compute the target of each member. ``is_homogeneous``: all subscribe to the same topics."""
    if not members:
        return {}
    if assignor == RANGE:
        return _assign_ranges(members, counts)
    if is_homogeneous:
        return _HomogeneousAssignment(members, counts).build()
    return _HeterogeneousAssignment(members, counts).build()


# Range --------------------------------------------------------------------------------------------


def _assign_ranges(members: Members, counts: PartitionCounts) -> dict[str, Assignment]:
    """Give each subscriber of a topic a range of its partitions, the first ones one more."""
    subscribers: dict[Uuid, int] = {}
    for member in members.values():
        for topic in member.topics:
            subscribers[topic] = subscribers.get(topic, 0) + 1
    ranges = {
        topic: _ranges(counts[topic], members_count) for topic, members_count in subscribers.items()
    }
    target: dict[str, Assignment] = {}
    for member_id in sorted(members, key=lambda each: _range_order(each, members[each])):
        assigned = target[member_id] = {}
        for topic in java_order(members[member_id].topics):
            partitions = next(ranges[topic])
            if partitions:
                assigned[topic] = tuple(partitions)
    return target


def _ranges(partitions: int, members: int) -> Iterator[range]:
    quota, extra = divmod(partitions, members)
    start = 0
    for index in range(members):
        end = start + quota + (index < extra)
        yield range(start, end)
        start = end


def _range_order(member_id: str, member: MemberSubscription) -> tuple[bool, bytes]:
    """Static members first, by instance id, so that a new member id moves no partition."""
    instance = member.instance_id
    return instance is None, java_text(member_id if instance is None else instance)


# Uniform ------------------------------------------------------------------------------------------


class _HomogeneousAssignment:
    """All members subscribe to the same topics: each gets its quota and keeps what fits into it."""

    def __init__(self, members: Members, counts: PartitionCounts) -> None:
        self._members = members
        self._member_ids = java_order(members)
        self._topics = members[self._member_ids[0]].topics
        self._counts = counts
        self._target: dict[str, dict[Uuid, list[int]]] = {}
        self._unfilled: list[tuple[str, int]] = []
        """Members with the number of partitions that they are still to get."""
        self._owners: dict[tuple[Uuid, int], str] = {}
        self._unassigned: list[tuple[Uuid, int]] = []

    def build(self) -> dict[str, Assignment]:
        if not self._topics:
            return {}
        self._find_unassigned()
        self._keep_within_quotas()
        remaining = iter(self._unassigned)
        for member_id, quota in self._unfilled:
            for topic, partition in islice(remaining, quota):
                self._target[member_id].setdefault(topic, []).append(partition)
        return _frozen(self._target)

    def _find_unassigned(self) -> None:
        for member_id in self._member_ids:
            for topic, partitions in self._members[member_id].assigned.items():
                for partition in partitions:
                    self._owners.setdefault((topic, partition), member_id)
        for topic in java_order(self._topics, sized=True):
            for partition in range(self._counts[topic]):
                if (topic, partition) not in self._owners:
                    self._unassigned.append((topic, partition))

    def _keep_within_quotas(self) -> None:
        total = sum(self._counts[topic] for topic in self._topics)
        least, extra = divmod(total, len(self._members))
        for index, member_id in enumerate(self._member_ids):
            gets_extra = extra > 0
            quota = self._keep(member_id, least + gets_extra)
            if quota > 0 and gets_extra and len(self._members) - index > extra:
                quota -= 1
                gets_extra = False
            if quota > 0:
                self._unfilled.append((member_id, quota))
            extra -= gets_extra

    def _keep(self, member_id: str, quota: int) -> int:
        """Keep the member's partitions up to its quota; return what remains of the quota."""
        kept: dict[Uuid, list[int]] = {}
        assigned = self._members[member_id].assigned
        for topic in java_order(assigned):
            if topic not in self._topics:
                continue
            count = self._counts[topic]
            own = [
                each
                for each in assigned[topic]
                if 0 <= each < count and self._owners[topic, each] == member_id
            ]
            partitions = java_order(own, sized=True)
            if quota > 0:
                kept[topic] = partitions[:quota]
            self._unassigned += ((topic, partition) for partition in partitions[quota:])
            quota -= len(partitions[:quota])
        self._target[member_id] = kept
        return quota


class _HeterogeneousAssignment:
    """Members subscribe to different topics: partitions move to the members with fewest of them."""

    def __init__(self, members: Members, counts: PartitionCounts) -> None:
        self._members = members
        self._counts = counts
        self._member_ids = java_order(members)
        self._sizes = [0] * len(members)
        """Number of partitions of each member."""
        self._subscribers: dict[Uuid, list[int]] = {}
        for index, member_id in enumerate(self._member_ids):
            for topic in members[member_id].topics:
                self._subscribers.setdefault(topic, []).append(index)
        self._owners = {topic: [NO_OWNER] * counts[topic] for topic in self._subscribers}

    def build(self) -> dict[str, Assignment]:
        if not self._subscribers:
            return {}
        for index, member_id in enumerate(self._member_ids):
            member = self._members[member_id]
            for topic, partitions in member.assigned.items():
                if topic in member.topics:
                    for partition in partitions:
                        if 0 <= partition < self._counts[topic]:
                            self._move(topic, partition, index)
        self._assign_unassigned()
        self._balance()
        target: dict[str, dict[Uuid, list[int]]] = {each: {} for each in self._member_ids}
        for topic, owners in self._owners.items():
            for partition, owner in enumerate(owners):
                target[self._member_ids[owner]].setdefault(topic, []).append(partition)
        return _frozen(target)

    def _move(self, topic: Uuid, partition: int, owner: int) -> None:
        owners = self._owners[topic]
        if owners[partition] != NO_OWNER:
            self._sizes[owners[partition]] -= 1
        owners[partition] = owner
        self._sizes[owner] += 1

    def _topic_order(self, topic: Uuid) -> tuple[float, int, tuple[int, int]]:
        """Topics with most partitions for each subscriber come first."""
        count = len(self._subscribers[topic])
        high, low = _halves(topic)
        return -self._counts[topic] / count, count, (high, low)

    def _assign_unassigned(self) -> None:
        for topic in sorted(self._owners, key=self._topic_order):
            unassigned = [at for at, owner in enumerate(self._owners[topic]) if owner == NO_OWNER]
            if unassigned:
                balancer = _Balancer(self._sizes, self._subscribers[topic])
                for partition in unassigned:
                    self._move(topic, partition, balancer.next_least_loaded())

    def _balance(self) -> None:
        """Balance one topic after another until none has changed since its last turn."""
        topics = [topic for topic, members in self._subscribers.items() if len(members) > 1]
        topics.sort(key=self._topic_order)
        last_changed = None
        for _ in range(BALANCE_PASSES_MAX):
            for topic in topics:
                if topic == last_changed:
                    return
                if self._balance_topic(topic) or last_changed is None:
                    last_changed = topic

    def _balance_topic(self, topic: Uuid) -> bool:
        """Move partitions from the members with most to those with fewest; whether any moved."""
        balancer = _Balancer(self._sizes, self._subscribers[topic])
        if balancer.imbalance <= 1:
            return False
        movable: dict[int, list[int]] = {}
        for partition, owner in enumerate(self._owners[topic]):
            movable.setdefault(owner, []).append(partition)
        has_moved = False
        while not balancer.is_balanced():
            most_loaded = balancer.next_most_loaded()
            if most_loaded == NO_OWNER:
                break
            if not movable.get(most_loaded):
                balancer.exclude_most_loaded()
                continue
            partition = movable[most_loaded].pop()
            least_loaded = balancer.next_least_loaded()
            if balancer.is_balanced():
                break
            self._move(topic, partition, least_loaded)
            has_moved = True
        return has_moved


class _Balancer:
    """The subscribers of a topic with fewest and with most partitions, each in turn.

    They are sorted by their numbers of partitions. Two ranges grow towards each other: those with
    fewest partitions, raised to an equal number, and those with most, lowered to an equal number.
    """

    def __init__(self, sizes: Sequence[int], members: Iterable[int]) -> None:
        self._sizes = sizes
        self._members = sorted(members, key=lambda member: (sizes[member], member))
        least, most = sizes[self._members[0]], sizes[self._members[-1]]
        self.imbalance = most - least
        self._least_end = 0
        self._least_size = least - 1
        self._next_least = 0
        self._most_start = self._most_end = len(self._members)
        self._most_size = most + 1
        self._next_most = len(self._members) - 1

    def is_balanced(self) -> bool:
        return self._most_size - self._least_size <= 1

    def next_least_loaded(self) -> int:
        members = self._members
        if self._next_least >= self._least_end:
            self._least_size += 1
            while (
                self._least_end < len(members)
                and self._sizes[members[self._least_end]] == self._least_size
            ):
                self._least_end += 1
            self._next_least = 0
        self._next_least += 1
        return members[self._next_least - 1]

    def next_most_loaded(self) -> int:
        """The member that gives the next partition, or ``NO_OWNER``."""
        members = self._members
        if self._next_most < self._most_start:
            if self._most_end <= self._most_start and self._most_start > 0:
                self._most_size = self._sizes[members[self._most_start - 1]]
            else:
                self._most_size -= 1
            while (
                self._most_start > 0
                and self._sizes[members[self._most_start - 1]] == self._most_size
            ):
                self._most_start -= 1
            self._next_most = self._most_end - 1
        if self._next_most < 0:
            return NO_OWNER
        self._next_most -= 1
        return members[self._next_most + 1]

    def exclude_most_loaded(self) -> None:
        """Leave out the member that was returned last: it has no partition of this topic."""
        members, at, last = self._members, self._next_most + 1, self._most_end - 1
        members[at], members[last] = members[last], members[at]
        self._most_end -= 1


def _frozen(target: Mapping[str, Mapping[Uuid, Collection[int]]]) -> dict[str, Assignment]:
    return {
        member_id: {topic: tuple(sorted(parts)) for topic, parts in topics.items() if parts}
        for member_id, topics in target.items()
    }


# The order of Java's hash maps --------------------------------------------------------------------

KeyT = TypeVar("KeyT", str, bytes, int)

_INT: Final = 0xFFFFFFFF
_LONG: Final = 0xFFFFFFFFFFFFFFFF


def java_order(keys: Collection[KeyT], *, sized: bool = False) -> list[KeyT]:
    """Sort keys as a ``HashMap`` returns them, to which they were added in this order.

    With ``sized`` it is a ``HashSet`` that was made from a collection of them. Keys are texts, ids
    of 16 bytes, or numbers.
    """
    capacity = 16
    wanted = max(int(len(keys) / 0.75) + 1, 16) if sized else 0
    while capacity < wanted or (not sized and len(keys) > capacity * 3 // 4):
        capacity *= 2
    return sorted(keys, key=lambda key: bucket_of(key) & (capacity - 1))


def bucket_of(key: object) -> int:
    """The bits of a key's hash that decide where a ``HashMap`` keeps it.

    Keys are those of `java_order`, or a topic id with a partition.
    """
    if isinstance(key, int):
        code = key
    elif isinstance(key, tuple):
        code = (31 * _uuid_hash(key[0]) + key[1]) & _INT
    elif isinstance(key, bytes):
        code = _uuid_hash(key)
    else:
        code = java_string_hash(str(key)) & _INT
    return code ^ (code >> 16)


def _uuid_hash(topic_id: Uuid) -> int:
    high, low = _halves(topic_id)
    mixed = (high ^ low) & _LONG
    return (mixed >> 32) ^ (mixed & _INT)


def _halves(topic_id: Uuid) -> tuple[int, int]:
    return (
        int.from_bytes(topic_id[:8], "big", signed=True),
        int.from_bytes(topic_id[8:], "big", signed=True),
    )


def java_text(text: str) -> bytes:
    """The code units that Java hashes and compares."""
    return text.encode("utf-16-be", "surrogatepass")
