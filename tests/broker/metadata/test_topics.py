"""Rules for topics: names, counts, replicas, configs, each refusal with Kafka's error code."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.metadata.image import (
    Broker,
    BrokerChanged,
    ChangeRejected,
    Image,
    TopicCreated,
    apply,
)
from minibroker.broker.metadata.topics import (
    PARTITION_BYTES,
    PARTITIONS_MAX,
    QUOTA_EXCEEDED,
    RESERVED_BYTES,
    MutationLimits,
    NewPartitions,
    NewTopic,
    allow_all,
    colliding,
    name_problem,
    offsets_topic,
    plan_additions,
    plan_creation,
    plan_creations,
    plan_deletion,
    plan_new_partitions,
    reject_topics,
)
from minibroker.broker.settings import Settings
from minibroker_protocol.errors import ErrorCode

SETTINGS = Settings.from_sources(pairs=["num.partitions=4"])
ID = bytes(range(16))


def cluster(*broker_ids: int) -> Image:
    image = Image()
    for broker_id in broker_ids or (1,):
        image = apply(image, BrokerChanged(Broker(broker_id, None, {})))
    return image


def with_topic(image: Image, name: str, partitions: int = 2) -> Image:
    plan = plan_creation(image, SETTINGS, NewTopic(name, partitions), ID)
    assert isinstance(plan, TopicCreated)
    return apply(image, plan)


def planned(new: NewTopic, image: Image | None = None) -> TopicCreated:
    plan = plan_creation(image or cluster(), SETTINGS, new, ID)
    assert isinstance(plan, TopicCreated), plan
    return plan


def refused(new: NewTopic, image: Image | None = None) -> ChangeRejected:
    plan = plan_creation(image or cluster(), SETTINGS, new, ID)
    assert isinstance(plan, ChangeRejected), plan
    return plan


def test_defaults_come_from_the_settings() -> None:
    topic = planned(NewTopic("a")).topic
    assert topic.topic_id == ID
    assert [p.index for p in topic.partitions] == [0, 1, 2, 3]
    assert {(p.leader, p.leader_epoch, p.replicas, p.isr) for p in topic.partitions} == {
        (1, 0, (1,), (1,))
    }


def test_replicas_are_assigned_round_robin() -> None:
    topic = planned(NewTopic("a", 4, 2), cluster(1, 2, 3)).topic
    assert [p.replicas for p in topic.partitions] == [(1, 2), (2, 3), (3, 1), (1, 2)]


def test_topic_config_value_is_kept_verbatim() -> None:
    assert planned(NewTopic("a", config=[("retention.ms", "05")])).config == {"retention.ms": "05"}


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a" * 250, "a b", "a/b", "ä", "a\n", "a\0", "topic:name"]
)
def test_invalid_topic_name_is_rejected(name: str) -> None:
    refusal = refused(NewTopic(name))
    assert refusal.code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert refusal.text.startswith(f"Topic name '{name}' is invalid: ")


@given(st.text(alphabet="abcXYZ019._-", min_size=3, max_size=249))
def test_names_of_legal_characters_are_names(name: str) -> None:
    assert name_problem(name) is None or name == "..."[: len(name)]


@pytest.mark.parametrize(
    ("new", "code", "words"),
    [
        (NewTopic("a", 0), ErrorCode.INVALID_PARTITIONS, "larger than 0"),
        (NewTopic("a", -2), ErrorCode.INVALID_PARTITIONS, "larger than 0"),
        (NewTopic("a", PARTITIONS_MAX + 1), ErrorCode.INVALID_PARTITIONS, "more than the 10000"),
        (NewTopic("a", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR, "larger than 0"),
        (NewTopic("a", 1, 2), ErrorCode.INVALID_REPLICATION_FACTOR, "only 1 broker"),
        (NewTopic("__cluster_metadata"), ErrorCode.INVALID_REQUEST, "Kafka's own"),
        (NewTopic("a", config=[("x", "1")]), ErrorCode.INVALID_CONFIG, "Unknown topic config name"),
        (NewTopic("a", config=[("retention.ms", None)]), ErrorCode.INVALID_CONFIG, "Null value"),
        (NewTopic("a", config=[("retention.ms", "x")]), ErrorCode.INVALID_CONFIG, "whole number"),
    ],
)
def test_invalid_topic_creation_is_rejected_with_error_code(
    new: NewTopic, code: ErrorCode, words: str
) -> None:
    refusal = refused(new)
    assert refusal.code == code
    assert words in refusal.text


def test_topic_exists_once_and_collides_with_its_like_in_metrics() -> None:
    image = with_topic(cluster(), "a.b_c")
    assert refused(NewTopic("a.b_c"), image).code == ErrorCode.TOPIC_ALREADY_EXISTS
    refusal = refused(NewTopic("a_b.c"), image)
    assert refusal == ChangeRejected(
        ErrorCode.INVALID_TOPIC_EXCEPTION, "Topic 'a_b.c' collides with existing topic: a.b_c"
    )
    assert colliding("abc", ["a.b.c"]) is None
    assert colliding("a.b", ["a.b"]) is None


@pytest.mark.parametrize("ignores_case", [True, False])
def test_topics_that_differ_in_case_collide_where_directories_would_be_the_same(
    ignores_case: bool,
) -> None:
    limits = MutationLimits(allow_all, ignores_case=ignores_case)
    news = [NewTopic("Orders.eu"), NewTopic("orders.EU"), NewTopic("ORDERS_eu"), NewTopic("other")]
    outcomes, _ = plan_creations(cluster(), SETTINGS, news, limits, lambda: ID)
    rejected = [outcome.name for outcome in outcomes if outcome.rejection is not None]
    assert rejected == (["orders.EU", "ORDERS_eu"] if ignores_case else [])


def test_manual_replica_assignment_is_used() -> None:
    topic = planned(NewTopic("a", assignments=[(1, [2, 1]), (0, [1, 2])]), cluster(1, 2)).topic
    assert [(p.index, p.replicas, p.leader) for p in topic.partitions] == [
        (0, (1, 2), 1),
        (1, (2, 1), 2),
    ]


@pytest.mark.parametrize(
    ("new", "code"),
    [
        (NewTopic("a", 1, -1, [(0, [1])]), ErrorCode.INVALID_REQUEST),
        (NewTopic("a", -1, 1, [(0, [1])]), ErrorCode.INVALID_REQUEST),
        (NewTopic("a", assignments=[(1, [1])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("a", assignments=[(0, [1]), (0, [1])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("a", assignments=[(0, [])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("a", assignments=[(0, [9])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("a", assignments=[(0, [1, 1])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (
            NewTopic("a", assignments=[(0, [1]), (1, [1, 2])]),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ),
        (
            NewTopic("a", assignments=[(i, [1]) for i in range(PARTITIONS_MAX + 1)]),
            ErrorCode.INVALID_PARTITIONS,
        ),
    ],
)
def test_invalid_replica_assignment_is_rejected(new: NewTopic, code: ErrorCode) -> None:
    assert refused(new, cluster(1, 2)).code == code


def test_generate_adds_missing_partitions() -> None:
    image = with_topic(cluster(1, 2), "a", 2)
    grown = plan_new_partitions(image, NewPartitions("a", 4))
    assert not isinstance(grown, ChangeRejected)
    assert [(p.index, p.replicas) for p in grown] == [(2, (1,)), (3, (2,))]
    by_hand = plan_new_partitions(image, NewPartitions("a", 4, [[2], [2]]))
    assert not isinstance(by_hand, ChangeRejected)
    assert [(p.index, p.replicas) for p in by_hand] == [(2, (2,)), (3, (2,))]


@pytest.mark.parametrize(
    ("growth", "code"),
    [
        (NewPartitions("b", 3), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (NewPartitions("a", 2), ErrorCode.INVALID_PARTITIONS),
        (NewPartitions("a", 1), ErrorCode.INVALID_PARTITIONS),
        (NewPartitions("a", -1), ErrorCode.INVALID_PARTITIONS),
        (NewPartitions("a", PARTITIONS_MAX + 1), ErrorCode.INVALID_PARTITIONS),
        (NewPartitions("a", 4, [[1]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewPartitions("a", 3, [[9]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewPartitions("a", 3, [[1, 2]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewPartitions("__consumer_offsets", 60), ErrorCode.INVALID_REQUEST),
    ],
)
def test_invalid_partition_growth_is_rejected(growth: NewPartitions, code: ErrorCode) -> None:
    image = with_topic(apply(cluster(1, 2), offsets_topic(SETTINGS, 1, ID)), "a", 2)
    refusal = plan_new_partitions(image, growth)
    assert isinstance(refusal, ChangeRejected)
    assert refusal.code == code


def test_only_topics_of_users_are_deleted() -> None:
    image = with_topic(apply(cluster(), offsets_topic(SETTINGS, 1, ID)), "a")
    assert plan_deletion(image, "a") == image.topics["a"]
    missing = plan_deletion(image, "b")
    assert isinstance(missing, ChangeRejected)
    assert missing.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    internal = plan_deletion(image, "__consumer_offsets")
    assert isinstance(internal, ChangeRejected)
    assert internal.code == ErrorCode.INVALID_REQUEST


def test_offsets_topic_follows_its_settings() -> None:
    settings = Settings.from_sources(
        pairs=["offsets.topic.num.partitions=7", "offsets.topic.segment.bytes=1000"]
    )
    topic, config = offsets_topic(settings, 3, ID)
    assert topic.internal
    assert [p.replicas for p in topic.partitions] == [(3,)] * 7
    assert config["segment.bytes"] == "1000"
    assert config["cleanup.policy"] == "compact"


NAMES = st.sampled_from(["a", "b", "a.b", "a_b", "", "x y"])
WISHES = st.builds(
    NewTopic,
    NAMES,
    st.integers(-2, 5),
    st.integers(-2, 3),
    st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(1, 3), max_size=3)), max_size=3),
    st.lists(
        st.tuples(
            st.sampled_from(["retention.ms", "segment.bytes", "no.such.setting"]),
            st.sampled_from(["-1", "2000000", "many", None]),
        ),
        max_size=2,
    ),
)


@given(st.lists(WISHES, max_size=8))
def test_every_plan_can_be_carried_out(wishes: list[NewTopic]) -> None:
    image = cluster(1, 2)
    for serial, wish in enumerate(wishes):
        plan = plan_creation(image, SETTINGS, wish, bytes([serial]) * 16)
        if isinstance(plan, ChangeRejected):
            continue
        assert wish.name not in image.topics
        image = apply(image, plan)
        partitions = image.topics[wish.name].partitions
        assert [p.index for p in partitions] == list(range(len(partitions)))
        for partition in partitions:
            assert set(partition.replicas) <= set(image.brokers)
            assert len(set(partition.replicas)) == len(partition.replicas) > 0
            assert partition.leader in partition.isr


def test_mutation_quota_is_charged_once_per_topic() -> None:
    asked: list[int] = []

    def take(partitions: int) -> bool:
        asked.append(partitions)
        return len(asked) == 1

    allowance = MutationLimits(take)
    assert [allowance.check("a", "plan", 3) for _ in range(3)] == ["plan"] * 3
    assert [allowance.check("b", "plan", 4) for _ in range(2)] == [QUOTA_EXCEEDED] * 2
    assert asked == [3, 4]
    assert MutationLimits(take, counts=False).check("c", "plan", 5) == "plan"
    assert asked == [3, 4]
    assert allow_all(10**9)


def test_partitions_exceeding_free_disk_space_are_rejected() -> None:
    free = RESERVED_BYTES + 3 * PARTITION_BYTES
    allowance = MutationLimits(allow_all, free_bytes=lambda: free)
    assert allowance.check("a", "plan", 3) == "plan"
    refused = allowance.check("b", "plan", 4)
    assert isinstance(refused, ChangeRejected)
    assert refused.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert f"{free} are free" in refused.text


def test_unknown_free_disk_space_accepts_partitions() -> None:
    assert MutationLimits(allow_all, free_bytes=lambda: -1).check("a", "plan", 10**6) == "plan"


def test_topics_of_one_request_need_room_together() -> None:
    free = RESERVED_BYTES + 3 * PARTITION_BYTES
    allowance = MutationLimits(allow_all, free_bytes=lambda: free)
    assert allowance.check("a", "plan", 2) == "plan"
    assert isinstance(allowance.check("b", "plan", 2), ChangeRejected)
    assert allowance.check("a", "plan", 2) == "plan"  # tried again
    assert allowance.check("c", "plan", 1) == "plan"


def test_rejected_topics_are_reported_in_request_order() -> None:
    refusal = ChangeRejected(ErrorCode.KAFKA_STORAGE_ERROR, "full")
    topics = reject_topics(["b", "a"], refusal)
    assert [(each.name, each.rejection) for each in topics] == [("b", refusal), ("a", refusal)]


def test_duplicate_topic_is_reported_as_invalid_request() -> None:
    twice = [NewPartitions("a", 1), NewPartitions("a", 2)]
    outcomes, changes = plan_additions(Image(), twice, MutationLimits(allow_all))
    assert changes == []
    assert len(outcomes) == 2
    for outcome in outcomes:
        assert outcome.rejection is not None
        assert outcome.rejection.code is ErrorCode.INVALID_REQUEST
