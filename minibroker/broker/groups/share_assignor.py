"""The assignor of share groups, which may give a partition to several members.

Owns the computation of a target assignment from subscriptions, the assignable partitions and the
previous target. It must never know a group's state or the time. Invariant: each assignable
partition of a subscribed topic has a member that is subscribed to it, members have about as many
partitions as others, and the result is the one that Kafka computes, also where that depends on the
order in which Java's hash maps are read, unless eight partitions are in one bucket of a map, which
Java then keeps as a tree. Kafka's ``SimpleAssignor``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import ceil
from typing import Final, Generic, NamedTuple, TypeVar

from minibroker.broker.groups.assignors import (
    NO_OWNER,
    Assignment,
    Partitions,
    bucket_of,
    java_order,
)
from minibroker_protocol.types import Uuid

SIMPLE: Final = "simple"

KeyT = TypeVar("KeyT", int, tuple[Uuid, int])


class ShareSubscription(NamedTuple):
    """What the assignor knows of a member; ``topics`` are the existing ones, by id."""

    topics: Collection[Uuid]
    assigned: Partitions
    """The member's part of the previous target."""


def assign_shares(
    members: Mapping[str, ShareSubscription],
    assignable: Mapping[Uuid, Collection[int]],
    *,
    is_homogeneous: bool,
) -> dict[str, Assignment]:
    """Compute the target of each member. ``is_homogeneous``: all subscribe to the same topics."""
    member_ids = java_order(members)
    if not member_ids:
        return {}
    if is_homogeneous:
        return _assign_same(member_ids, members, assignable)
    return _assign_by_topic(member_ids, members, assignable)


def _assign_same(
    member_ids: Sequence[str],
    members: Mapping[str, ShareSubscription],
    assignable: Mapping[Uuid, Collection[int]],
) -> dict[str, Assignment]:
    """All partitions of all topics are one pool."""
    topics = java_order(members[member_ids[0]].topics, sized=True)
    pool = [(topic, each) for topic in topics for each in sorted(assignable.get(topic, ()))]
    kept = [
        [
            (topic, each)
            for topic in java_order(members[member_id].assigned)
            if topic in topics
            for each in java_order(members[member_id].assigned[topic], sized=True)
        ]
        for member_id in member_ids
    ]
    shares = _Pool[tuple[Uuid, int]](pool, kept, range(len(member_ids))).assign()
    return {
        member_id: _by_topic(found) for member_id, found in zip(member_ids, shares, strict=True)
    }


def _assign_by_topic(
    member_ids: Sequence[str],
    members: Mapping[str, ShareSubscription],
    assignable: Mapping[Uuid, Collection[int]],
) -> dict[str, Assignment]:
    """The partitions of each topic are a pool for its subscribers.

    As in Kafka, members keep what they have of topics without subscribers.
    """
    subscribed = dict.fromkeys(each for id_ in member_ids for each in members[id_].topics)
    target: dict[str, Assignment] = {
        member_id: {
            topic: tuple(sorted(partitions))
            for topic, partitions in members[member_id].assigned.items()
            if topic not in subscribed
        }
        for member_id in member_ids
    }
    if not subscribed:
        return {}
    for topic in subscribed:
        pool = sorted(assignable.get(topic, ()))
        kept = [
            java_order(members[member_id].assigned.get(topic, ()), sized=True)
            for member_id in member_ids
        ]
        subscribers = [
            index for index, id_ in enumerate(member_ids) if topic in members[id_].topics
        ]
        shares = _Pool[int](pool, kept, subscribers).assign()
        for member_id, found in zip(member_ids, shares, strict=True):
            if found:
                target[member_id][topic] = tuple(sorted(found))
    return target


def _by_topic(partitions: Iterable[tuple[Uuid, int]]) -> Assignment:
    found: dict[Uuid, list[int]] = {}
    for topic, each in partitions:
        found.setdefault(topic, []).append(each)
    return {topic: tuple(sorted(each)) for topic, each in found.items()}


class _JavaSet(Generic[KeyT]):
    """A ``HashSet``, or the keys of a ``HashMap``, in the order of its buckets."""

    def __init__(self, expected: int | None = None, *, prepends: bool = False) -> None:
        """``expected``: the number of elements that Kafka's ``AssignorHelpers`` makes it for.

        ``prepends``: whether keys are added by ``computeIfAbsent``, before others of their bucket.
        """
        self._keys: dict[KeyT, None] = {}
        self._prepends = prepends
        self._capacity = 16
        if expected is not None:
            wanted = int((expected + 1) / 0.75 + 1)
            self._capacity = 1 << max(wanted - 1, 0).bit_length()

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __iter__(self) -> Iterator[KeyT]:
        mask = self._capacity - 1
        keys = reversed(self._keys) if self._prepends else iter(self._keys)
        return iter(sorted(keys, key=lambda key: bucket_of(key) & mask))

    def add(self, key: KeyT) -> None:
        self._keys.setdefault(key, None)
        while len(self._keys) > self._capacity * 3 // 4:
            self._capacity *= 2

    def remove(self, key: KeyT) -> None:
        self._keys.pop(key, None)


class _Pool(Generic[KeyT]):
    """Partitions, and the members that they are given to."""

    def __init__(
        self, pool: Sequence[KeyT], kept: Sequence[Iterable[KeyT]], subscribers: Sequence[int]
    ) -> None:
        """``kept`` is what each member has had; ``subscribers`` are indices of members."""
        count = len(pool)
        self._sharing = -(-len(subscribers) // count) if count else 0
        """The number of members that a partition is given to."""
        self._quotas = [0] * len(kept)
        average = self._sharing * count / len(subscribers) if subscribers else 0
        for place, member in enumerate(subscribers):
            self._quotas[member] = ceil(average * (place + 1)) - ceil(average * place)
        self._pool: Sequence[KeyT] = pool
        self._subscribers = subscribers
        self._order: _JavaSet[KeyT] = _JavaSet(count, prepends=True)
        self._owners: dict[KeyT, _JavaSet[int]] = {}
        self._shares: list[_JavaSet[KeyT]] = [_JavaSet() for _ in kept]
        for member, partitions in enumerate(kept):
            for each in partitions:
                self._give(each, member)

    def assign(self) -> list[list[KeyT]]:
        """The partitions of each member."""
        for member, share in enumerate(self._shares):
            for each in share:
                if len(share) <= self._quotas[member]:
                    break
                self._take(each, member)
        for each in self._order:
            for member in self._owners[each]:
                if len(self._owners[each]) <= self._sharing:
                    break
                self._take(each, member)
        for each in self._pool:
            self._order.add(each)
            self._owners.setdefault(each, _JavaSet())
        self._give_remaining()
        return [list(share) for share in self._shares]

    def _give_remaining(self) -> None:
        """Give partitions to members below their quotas, in turn."""
        unfilled: _JavaSet[int] = _JavaSet(len(self._shares))
        for member in self._subscribers:
            if len(self._shares[member]) < self._quotas[member]:
                unfilled.add(member)
        turn, is_given = iter(unfilled), False
        for each in self._order:
            owners = self._owners[each]
            while len(owners) < self._sharing and len(unfilled):
                member = next(turn, NO_OWNER)
                if member == NO_OWNER:
                    if not is_given:
                        break
                    turn, is_given = iter(unfilled), False
                    continue
                if member in owners:
                    continue
                self._give(each, member)
                is_given = True
                if len(self._shares[member]) >= self._quotas[member]:
                    unfilled.remove(member)

    def _give(self, partition: KeyT, member: int) -> None:
        self._order.add(partition)
        self._owners.setdefault(partition, _JavaSet()).add(member)
        self._shares[member].add(partition)

    def _take(self, partition: KeyT, member: int) -> None:
        self._owners[partition].remove(member)
        self._shares[member].remove(partition)
