"""The image: what each change alters, and that updates are taken over in order and once."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.metadata.image import (
    BROKER,
    TOPIC,
    TRANSACTION_STATE_TOPIC,
    USER,
    Broker,
    BrokerChanged,
    BrokerGone,
    Change,
    ConfigChanged,
    FinalizedLevels,
    Image,
    ImageGapError,
    MetadataRestored,
    PartitionRegistration,
    PartitionsAdded,
    Reset,
    Topic,
    TopicCreated,
    TopicDeleted,
    Update,
    apply,
    apply_update,
    group_owner,
    image_of,
    java_string_hash,
    offsets_partition,
    partition_owner,
    transaction_owner,
    transaction_partition,
    update_of,
)


def topic(name: str, partitions: int = 1, *, serial: int = 0, internal: bool = False) -> Topic:
    made = tuple(PartitionRegistration(index, 1, 0, (1,), (1,)) for index in range(partitions))
    return Topic(name, name.encode().ljust(15, b"\0") + bytes([serial]), made, internal)


def test_created_topic_is_found_by_name_and_id_with_its_config() -> None:
    made = topic("orders", 3)
    image = apply(Image(), TopicCreated(made, {"retention.ms": "5"}))
    assert image.topics["orders"] == made
    assert image.topic_by_id(made.topic_id) == made
    assert image.topic_overrides("orders") == {"retention.ms": "5"}
    assert image.partition("orders", 2) == made.partitions[2]


def test_lookup_of_unknown_topic_or_partition_is_empty() -> None:
    image = apply(Image(), TopicCreated(topic("orders", 3)))
    assert image.partition("orders", 3) is None
    assert image.partition("orders", -1) is None
    assert image.partition("others", 0) is None
    assert image.topic_by_id(bytes(16)) is None
    assert image.topic_overrides("others") == {}


def test_deleted_topic_leaves_no_files() -> None:
    before = apply(Image(), TopicCreated(topic("a")))
    made = topic("b")
    image = apply(apply(before, TopicCreated(made, {"retention.ms": "5"})), TopicDeleted(*made[:2]))
    assert image == before


def test_added_partitions_continue_replica_assignment() -> None:
    image = apply(Image(), TopicCreated(topic("a", 1)))
    more = PartitionRegistration(1, 1, 0, (1,), (1,))
    assert apply(image, PartitionsAdded("a", (more,))).partition("a", 1) == more


def test_emptied_config_is_forgotten() -> None:
    image = apply(Image(), ConfigChanged(TOPIC, "a", {"retention.ms": "5"}))
    assert image.topic_overrides("a") == {"retention.ms": "5"}
    assert apply(image, ConfigChanged(TOPIC, "a", {})).configs == {}


def test_brokers_are_listed_for_the_listeners_that_they_have() -> None:
    first = Broker(1, None, {"INTERNAL": ("h1", 1), "EXTERNAL": ("e1", 2)})
    second = Broker(2, "rack", {"INTERNAL": ("h2", 1)})
    image = apply(apply(Image(), BrokerChanged(first)), BrokerChanged(second))
    assert list(image.brokers_at("EXTERNAL")) == [(first, "e1", 2)]
    assert [broker.broker_id for broker, _, _ in image.brokers_at("INTERNAL")] == [1, 2]
    assert list(apply(image, BrokerGone(1)).brokers) == [2]


def test_reset_keeps_brokers_and_their_configs_and_the_new_internal_topics() -> None:
    broker = Broker(1, None, {"A": ("h", 1)})
    changes = (
        BrokerChanged(broker),
        ConfigChanged(BROKER, "1", {"x": "y"}),
        TopicCreated(topic("a"), {"retention.ms": "5"}),
        TopicCreated(topic("__consumer_offsets", internal=True), {"cleanup.policy": "compact"}),
    )
    image = Image()
    for change in changes:
        image = apply(image, change)
    fresh = topic("__consumer_offsets", serial=1, internal=True)
    image = apply(image, Reset((fresh,)))
    assert image.brokers == {1: broker}
    assert image.configs == {
        (BROKER, "1"): {"x": "y"},
        (TOPIC, "__consumer_offsets"): {"cleanup.policy": "compact"},
    }
    assert image.topics == {fresh.name: fresh}
    assert image.topic_names == {fresh.topic_id: fresh.name}


def test_updates_are_applied_in_order_and_once() -> None:
    first = Update(4, 1, (TopicCreated(topic("a")),))
    second = Update(4, 2, (TopicCreated(topic("b")),))
    image = apply_update(Image(controller_epoch=4), first)
    assert image.number == 1
    with pytest.raises(ImageGapError, match="update 3 of controller epoch 4"):
        apply_update(image, Update(4, 3, ()))
    image = apply_update(image, second)
    assert apply_update(image, first) is image
    assert apply_update(image, second) is image


def test_update_with_other_controller_epoch_is_rejected() -> None:
    with pytest.raises(ImageGapError):
        apply_update(Image(controller_epoch=4, number=7), Update(5, 8, ()))


NAMES = st.sampled_from(["a", "b", "c"])


@st.composite
def change_lists(draw: st.DrawFn) -> list[Change]:
    """Changes that a controller could make: it deletes and grows only what exists."""
    changes: list[Change] = []
    existing: dict[str, Topic] = {}
    for serial in range(draw(st.integers(0, 12))):
        name = draw(NAMES)
        if name not in existing:
            existing[name] = topic(name, draw(st.integers(1, 3)), serial=serial)
            changes.append(TopicCreated(existing[name], draw(st.sampled_from([{}, {"k": "v"}]))))
        elif draw(st.booleans()):
            changes.append(TopicDeleted(*existing.pop(name)[:2]))
        else:
            changes.append(ConfigChanged(TOPIC, name, draw(st.sampled_from([{}, {"k": "w"}]))))
    return changes


@given(change_lists())
def test_names_ids_and_configs_always_fit_together(changes: list[Change]) -> None:
    image = Image()
    for change in changes:
        before = pickle.dumps(image)
        image, old = apply(image, change), image
        assert pickle.dumps(old) == before, "an image once made never changes"
    assert {name: t.topic_id for t in image.topics.values() for name in [t.name]} == {
        name: topic_id for topic_id, name in image.topic_names.items()
    }
    assert {name for kind, name in image.configs if kind == TOPIC} <= set(image.topics)
    assert pickle.loads(pickle.dumps(image)) == image


def test_last_change_of_broker_configs_is_tracked() -> None:
    def after(number: int, image: Image, *changes: Change) -> Image:
        return apply_update(image, Update(1, number, changes))

    made = TopicCreated(topic("a"), {"retention.ms": "5"})
    image = after(1, Image(controller_epoch=1), made)
    assert image.broker_configs_number == 0
    image = after(2, image, made, ConfigChanged(BROKER, "1", {"x": "1"}))
    image = after(3, image, ConfigChanged(TOPIC, "a", {"retention.ms": "6"}))
    assert (image.number, image.broker_configs_number) == (3, 2)


def test_topic_without_configs_keeps_configs_object() -> None:
    image = apply(Image(), ConfigChanged(USER, "alice", {"producer_byte_rate": "5"}))
    made = apply(image, TopicCreated(topic("t"), {}))
    assert made.configs is image.configs
    assert apply(made, TopicDeleted("t", made.topics["t"].topic_id)).configs is image.configs


def test_equal_configs_share_interned_strings() -> None:
    """As the configs of many users, which every process receives in separate messages."""
    changes = [ConfigChanged(USER, "alice", {"key": f"{10**6}"}) for _ in range(2)]
    images = [apply(Image(), pickle.loads(pickle.dumps(change))) for change in changes]
    (one,), (other,) = (image.configs[USER, "alice"].items() for image in images)
    assert one[0] is other[0]
    assert one[1] is other[1]


def test_restored_metadata_replaces_all_but_brokers() -> None:
    broker = Broker(1, None, {"A": ("h", 1)})
    image = apply(Image(controller_epoch=4), BrokerChanged(broker))
    image = apply(image, TopicCreated(topic("a"), {"retention.ms": "5"}))
    saved = {"b": topic("b")}
    configs = {(BROKER, "1"): {"x": "y"}, (TOPIC, "b"): {"retention.ms": "6"}}
    change = MetadataRestored(saved, configs, {}, FinalizedLevels({"f": 1}, 3))
    update = Update(4, 1, (change,))
    after = apply_update(image, update)
    assert after == Image(
        controller_epoch=4,
        number=1,
        brokers={1: broker},
        broker_configs_number=1,
        topics=saved,
        topic_names={topic("b").topic_id: "b"},
        configs=configs,
        features=FinalizedLevels({"f": 1}, 3),
    )
    fewer = apply_update(image, update_of(update, (TOPIC,)))
    assert fewer == image_of(after, (TOPIC,))


def java_hash(text: str) -> int:
    value = 0
    for character in text:
        value = (31 * value + ord(character)) % 2**32
    return value - 2**32 if value >= 2**31 else value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("polygenelubricants", -(2**31)),
        ("\N{GRINNING FACE}", 1772899),
        ("a" * 300, java_hash("a" * 300)),
    ],
)
def test_hash_is_that_of_java(text: str, expected: int) -> None:
    assert java_string_hash(text) == expected
    assert java_string_hash(text) == expected  # kept or computed again


def test_lowest_hash_does_not_become_a_negative_partition() -> None:
    assert offsets_partition("polygenelubricants", 50) == 0


@given(st.text(), st.integers(1, 64))
def test_every_group_has_an_owner(group: str, workers: int) -> None:
    assert 0 <= group_owner(group, 50, workers) < workers


def test_partitions_of_topic_are_assigned_round_robin() -> None:
    owners = [partition_owner("orders", index, 3) for index in range(6)]
    assert sorted(owners[:3]) == [0, 1, 2]
    assert owners[:3] == owners[3:]


def test_transactional_id_is_coordinated_by_owner_of_its_partition() -> None:
    index = transaction_partition("x", 50)
    assert index == ord("x") % 50
    owner = partition_owner(TRANSACTION_STATE_TOPIC, index, 3)
    assert transaction_owner("x", 50, 3) == owner
