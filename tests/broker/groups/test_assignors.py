"""Assignors give each partition one owner, keep what they can, and balance the rest."""

from __future__ import annotations

from random import Random

import pytest

from minibroker.broker.groups.assignors import (
    ASSIGNORS,
    RANGE,
    UNIFORM,
    Assignment,
    MemberSubscription,
    assign,
    java_order,
)

T, U = b"t" * 16, b"u" * 16


def member(
    *topics: bytes, instance_id: str | None = None, **assigned: tuple[int, ...]
) -> MemberSubscription:
    former = {name.encode() * 16: parts for name, parts in assigned.items()}
    return MemberSubscription(frozenset(topics), former, instance_id)


def sizes(target: dict[str, Assignment]) -> dict[str, int]:
    return {name: sum(map(len, topics.values())) for name, topics in target.items()}


def test_range_gives_consecutive_partitions_of_each_topic() -> None:
    members = {"b": member(T, U), "a": member(T, U)}
    target = assign(RANGE, members, {T: 3, U: 2}, is_homogeneous=True)
    assert target == {"a": {T: (0, 1), U: (0,)}, "b": {T: (2,), U: (1,)}}


def test_range_orders_static_members_by_instance_id_before_others() -> None:
    members = {"a": member(T), "c": member(T, instance_id="2"), "d": member(T, instance_id="1")}
    target = assign(RANGE, members, {T: 3}, is_homogeneous=True)
    assert target == {"d": {T: (0,)}, "c": {T: (1,)}, "a": {T: (2,)}}


def test_uniform_moves_only_what_exceeds_the_quota() -> None:
    members = {"a": member(T, t=(0, 1, 2, 3)), "b": member(T)}
    target = assign(UNIFORM, members, {T: 4}, is_homogeneous=True)
    assert target == {"a": {T: (0, 1)}, "b": {T: (2, 3)}}


def test_uniform_balances_members_with_different_subscriptions() -> None:
    members = {"a": member(T, U, t=(0, 1), u=(0, 1)), "b": member(U)}
    target = assign(UNIFORM, members, {T: 2, U: 2}, is_homogeneous=False)
    assert target == {"a": {T: (0, 1)}, "b": {U: (0, 1)}}


def test_members_without_topics_get_nothing() -> None:
    for assignor in ASSIGNORS:
        assert assign(assignor, {}, {}, is_homogeneous=True) == {}
        target = assign(assignor, {"a": member()}, {}, is_homogeneous=True)
        assert target.get("a", {}) == {}


def test_order_is_that_of_java_s_hash_maps() -> None:
    assert java_order(["b", "a", "Aa", "BB"]) == ["Aa", "BB", "a", "b"]
    assert java_order([17, 1, 16]) == [16, 17, 1]
    assert java_order(list(range(12))) == list(range(12))
    assert java_order([33, 1, *range(2, 12)], sized=True)[:2] == [33, 1]


@pytest.mark.parametrize("seed", range(60))
def test_each_partition_has_one_subscriber_as_owner(seed: int) -> None:
    random = Random(seed)
    topics = [random.randbytes(16) for _ in range(random.randint(1, 5))]
    counts = {topic: random.randint(1, 12) for topic in topics}
    is_homogeneous = random.random() < 0.5
    everyone = frozenset(random.sample(topics, random.randint(1, len(topics))))
    members: dict[str, MemberSubscription] = {}
    for at in range(random.randint(1, 9)):
        some = frozenset(random.sample(topics, random.randint(0, len(topics))))
        members[f"m{at}"] = MemberSubscription(everyone if is_homogeneous else some, {})
    subscribed = {topic for each in members.values() for topic in each.topics}
    everything = {(topic, at) for topic in subscribed for at in range(counts[topic])}
    for assignor in ASSIGNORS:
        before: dict[str, Assignment] = {}
        target: dict[str, Assignment] = {}
        for _ in range(2):
            following = {
                name: each._replace(assigned=target.get(name, {})) for name, each in members.items()
            }
            before, target = (
                target,
                assign(assignor, following, counts, is_homogeneous=is_homogeneous),
            )
        assert before == target  # It is stable.
        owned = [
            (topic, partition)
            for name, parts in target.items()
            for topic, partitions in parts.items()
            for partition in partitions
            if topic in members[name].topics
        ]
        assert sorted(owned) == sorted(everything)
        if is_homogeneous and assignor == UNIFORM:
            counted = sizes(target).values()
            assert max(counted) - min(counted) <= 1


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("is_homogeneous", [True, False])
@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_previous_target_may_be_one_that_cannot_be(
    assignor: str, is_homogeneous: bool, seed: int
) -> None:
    """It may come from the leader of a classic group, which assigned whatever it wanted."""
    random = Random(seed)
    counts = {T: random.randint(1, 4), U: random.randint(1, 4)}
    members = {
        f"m{at}": MemberSubscription(
            frozenset([T, U] if is_homogeneous or at == 0 else random.sample([T, U], 1)),
            {topic: random.sample(range(-3, 9), random.randint(0, 6)) for topic in (T, U)},
        )
        for at in range(random.randint(1, 5))
    }
    target = assign(assignor, members, counts, is_homogeneous=is_homogeneous)
    owned = [
        (topic, each)
        for topics in target.values()
        for topic, partitions in topics.items()
        for each in partitions
    ]
    assert sorted(owned) == [(topic, each) for topic in (T, U) for each in range(counts[topic])]
