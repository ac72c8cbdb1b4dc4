"""Kafka's assignors and ours compute the same targets, and the same hashes of topics.

Kafka's classes are called by `Assignors.java` and `TopicHashes.java`, one group a line. The groups
have members with equal or different subscriptions, static members, and previous targets that fit
them more or less.
"""

from __future__ import annotations

import json
from random import Random
from typing import Any, Final, NamedTuple

import pytest

from minibroker.broker.groups.assignors import ASSIGNORS, MemberSubscription, assign
from minibroker.broker.groups.consumer_state import topics_hash
from minibroker.broker.groups.share_assignor import SIMPLE, ShareSubscription, assign_shares
from minibroker.broker.metadata.image import Broker, Image, PartitionRegistration, Topic
from minibroker_protocol.types import uuid_text
from system_tests.harness.jars import java_answers

pytestmark = [pytest.mark.minibroker, pytest.mark.java]

GROUPS: Final = 1_500
TREES_FROM: Final = 200
"""Partitions of a group from which on eight of them may be in one bucket of a hash map."""


class GeneratedGroup(NamedTuple):
    """What an assignor is given."""

    assignor: str
    members: dict[str, MemberSubscription]
    partitions: dict[bytes, int]
    is_homogeneous: bool


def generate(random: Random, assignor: str) -> GeneratedGroup:
    topics = [random.randbytes(16) for _ in range(random.choice((1, 2, 3, 5, 14, 30)))]
    partitions = {topic: random.choice((1, 2, 3, 6, 17, 40, 100)) for topic in topics}
    is_homogeneous = random.random() < 0.5
    everyone = frozenset(random.sample(topics, random.randint(1, len(topics))))
    free = {(topic, at) for topic in topics for at in range(partitions[topic])}
    members = {}
    for number in range(random.choice((1, 2, 3, 5, 10, 20, 50))):
        some = frozenset(random.sample(topics, random.randint(0, len(topics))))
        assigned: dict[bytes, tuple[int, ...]] = {}
        for topic in random.sample(topics, random.choice((0, random.randint(0, len(topics))))):
            count = partitions[topic]
            wanted = random.sample(range(count), random.randint(0, count))
            given = tuple(at for at in wanted if (topic, at) in free)
            free -= {(topic, at) for at in given}
            if given:
                assigned[topic] = given
        members[f"{random.getrandbits(64):x}"] = MemberSubscription(
            everyone if is_homogeneous else some,
            assigned,
            f"i{number}" if random.random() < 0.3 else None,
        )
    return GeneratedGroup(assignor, members, partitions, is_homogeneous)


def has_trees(group: GeneratedGroup) -> bool:
    """Whether Java may keep partitions of the group in trees, whose order is another one."""
    in_one_map = group.assignor == SIMPLE and group.is_homogeneous
    return in_one_map and sum(group.partitions.values()) > TREES_FROM


def as_json(group: GeneratedGroup) -> str:
    return json.dumps(
        {
            "assignor": group.assignor,
            "homogeneous": group.is_homogeneous,
            "partitions": {uuid_text(topic): count for topic, count in group.partitions.items()},
            "members": [
                {
                    "id": member_id,
                    "instance_id": member.instance_id,
                    "topics": [uuid_text(topic) for topic in member.topics],
                    "assigned": [
                        [uuid_text(topic), list(parts)] for topic, parts in member.assigned.items()
                    ],
                }
                for member_id, member in group.members.items()
            ],
        }
    )


def ours(group: GeneratedGroup) -> dict[str, Any]:
    if group.assignor == SIMPLE:
        shares = {
            member_id: ShareSubscription(tuple(member.topics), member.assigned)
            for member_id, member in group.members.items()
        }
        assignable = {topic: range(count) for topic, count in group.partitions.items()}
        target = assign_shares(shares, assignable, is_homogeneous=group.is_homogeneous)
    else:
        target = assign(
            group.assignor, group.members, group.partitions, is_homogeneous=group.is_homogeneous
        )
    return {
        member_id: {uuid_text(topic): list(parts) for topic, parts in topics.items()}
        for member_id, topics in target.items()
    }


def test_assignors_compute_what_kafka_s_do() -> None:
    random = Random(848)
    assignors = (*ASSIGNORS, SIMPLE)
    generated = (generate(random, assignors[number % 3]) for number in range(GROUPS))
    groups = [group for group in generated if not has_trees(group)]
    theirs = java_answers("Assignors", map(as_json, groups))
    assert len(theirs) == len(groups) > GROUPS - 200
    for number, (group, target) in enumerate(zip(groups, theirs, strict=True)):
        assert ours(group) == target, number


HASHES: Final = 200
RACKS: Final = ("", "a", "rack-1", "ü")


def generated_topics(random: Random) -> Image:
    """Up to nine topics on brokers of which some have racks."""
    chosen = [random.choice((None, *RACKS)) for _ in range(random.choice((1, 3)))]
    brokers = {each: Broker(each, rack, {}) for each, rack in enumerate(chosen, start=1)}
    topics = {}
    for _ in range(random.randint(1, 9)):
        name = "".join(random.choices("abz.-_9", k=random.choice((1, 5, 30, 249))))
        replicas = [
            tuple(random.sample(sorted(brokers), random.randint(1, len(brokers))))
            for _ in range(random.choice((1, 3, 50, 300)))
        ]
        partitions = tuple(
            PartitionRegistration(at, each[0], 0, each, each) for at, each in enumerate(replicas)
        )
        topics[name] = Topic(name, random.randbytes(16), partitions)
    return Image(brokers=brokers, topics=topics)


def hashed(image: Image) -> str:
    """The topics as JSON, with the racks of their replicas."""

    def racks_of(partition: PartitionRegistration) -> list[str]:
        racks = [image.brokers[each].rack for each in partition.replicas]
        return [rack for rack in racks if rack is not None]

    return json.dumps(
        [
            {
                "name": topic.name,
                "id": uuid_text(topic.topic_id),
                "racks": [racks_of(each) for each in topic.partitions],
            }
            for topic in image.topics.values()
        ]
    )


def test_hashes_of_topics_are_those_of_kafka() -> None:
    random = Random(1101)
    images = [generated_topics(random) for _ in range(HASHES)]
    theirs = java_answers("TopicHashes", map(hashed, images))
    assert [topics_hash(image, [*image.topics, "gone"]) for image in images] == theirs
