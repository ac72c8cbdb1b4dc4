"""The assignor of share groups gives every partition to a member, and members about the same."""

from __future__ import annotations

from random import Random

import pytest

from minibroker.broker.groups.share_assignor import ShareSubscription, assign_shares
from tests.broker.groups.consumer_play import topic_id

T, U = topic_id("t"), topic_id("u")


def test_partitions_are_divided_among_members() -> None:
    members = {name: ShareSubscription((T,), {}) for name in ("a", "b")}
    target = assign_shares(members, {T: range(4)}, is_homogeneous=True)
    assert sorted(len(each[T]) for each in target.values()) == [2, 2]
    assert sorted(each for topics in target.values() for each in topics[T]) == [0, 1, 2, 3]


def test_members_share_partitions_if_there_are_more_of_them() -> None:
    members = {f"m{at}": ShareSubscription((T,), {}) for at in range(5)}
    target = assign_shares(members, {T: range(2)}, is_homogeneous=True)
    assert all(target[name][T] for name in members)
    assert {each for topics in target.values() for each in topics[T]} == {0, 1}


def test_members_keep_what_they_have() -> None:
    first = assign_shares({"a": ShareSubscription((T,), {})}, {T: range(3)}, is_homogeneous=True)
    members = {"a": ShareSubscription((T,), first["a"]), "b": ShareSubscription((T,), {})}
    second = assign_shares(members, {T: range(3)}, is_homogeneous=True)
    assert set(second["a"][T]) < set(first["a"][T])
    assert set(second["a"][T]) | set(second["b"][T]) == {0, 1, 2}


def test_only_assignable_partitions_of_subscribed_topics_are_assigned() -> None:
    members = {"a": ShareSubscription((T,), {U: (0,)}), "b": ShareSubscription((T, U), {})}
    target = assign_shares(members, {T: (1,), U: (0, 1)}, is_homogeneous=False)
    assert target["a"] == {T: (1,)}
    assert set(target["b"][U]) == {0, 1}
    assert assign_shares({}, {T: (1,)}, is_homogeneous=True) == {}


@pytest.mark.parametrize("seed", range(40))
def test_every_partition_has_a_subscriber(seed: int) -> None:
    random = Random(seed)
    topics = {topic_id(f"t{at}"): range(random.randint(1, 12)) for at in range(4)}
    is_homogeneous = random.random() < 0.5
    everyone = tuple(random.sample(list(topics), random.randint(1, 4)))
    members: dict[str, ShareSubscription] = {}
    for at in range(random.randint(1, 30)):
        some = tuple(random.sample(list(topics), random.randint(0, 4)))
        members[f"m{at}"] = ShareSubscription(everyone if is_homogeneous else some, {})
    for _ in range(3):
        target = assign_shares(members, topics, is_homogeneous=is_homogeneous)
        for topic in {each for member in members.values() for each in member.topics}:
            held = [set(target.get(name, {}).get(topic, ())) for name in members]
            assert set().union(*held) == set(topics[topic])
        for name, each in target.items():
            assert each.keys() <= set(members[name].topics)
        members = {
            name: member._replace(assigned=target.get(name, {})) for name, member in members.items()
        }
        members.pop(random.choice(sorted(members)))
        if not members:
            return
