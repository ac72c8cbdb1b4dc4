"""Feature levels: what they mean, their changes, and their node in the store."""

from __future__ import annotations

import pytest

from minibroker.broker.metadata.features import (
    TRANSACTION_VERSION,
    FeatureUpdate,
    UpgradeType,
    decode_features,
    encode_features,
    feature_steps,
    level,
    load_features,
    plan_features,
    shown_features,
    supported_features,
    with_defaults,
)
from minibroker.broker.metadata.image import (
    ChangeRejected,
    FeaturesChanged,
    FinalizedLevels,
    Image,
    apply,
)
from minibroker.broker.metadata.store.sqlite import MEMORY, SqliteStore
from minibroker.broker.personas.persona import load
from minibroker_protocol.errors import ErrorCode


def test_level_is_the_default_until_it_is_set() -> None:
    image = Image()
    assert level(image.features, TRANSACTION_VERSION) == 2
    changed = apply(image, FeaturesChanged(FinalizedLevels({"transaction.version": 1}, 1)))
    assert level(changed.features, TRANSACTION_VERSION) == 1
    assert level(image.features, TRANSACTION_VERSION) == 2


def test_levels_of_a_persona_are_its_own_and_never_above() -> None:
    for name, level_of_new, level_of_stored in (
        ("kafka-2.8", 0, 0),
        ("kafka-3.9", 0, 0),
        ("kafka-4.0", 2, 1),
    ):
        persona = load(name)
        new = with_defaults(FinalizedLevels(), persona)
        assert level(new, TRANSACTION_VERSION) == level_of_new
        stored = with_defaults(FinalizedLevels({"transaction.version": 1}, 3), persona)
        assert level(stored, TRANSACTION_VERSION) == level_of_stored
        assert stored.epoch == 3


def test_shown_features_of_a_persona_are_descriptive_or_have_an_effect_here() -> None:
    levels = FinalizedLevels()
    ours = shown_features(None, levels)
    assert ours is not None
    finalized = {
        "group.version": 1,
        "share.version": 2,
        "streams.version": 1,
        "transaction.version": 2,
    }
    assert ours.finalized == finalized
    assert shown_features(load("kafka-2.4"), levels) is None
    persona = load("kafka-4.0")
    shown = shown_features(persona, with_defaults(levels, persona))
    assert shown is not None
    assert shown.finalized == {
        "group.version": 1,
        "metadata.version": 25,
        "transaction.version": 2,
    }
    assert set(shown.supported) == {
        "group.version",
        "kraft.version",
        "metadata.version",
        "transaction.version",
    }


def test_no_level_of_a_persona_can_be_raised_above_it() -> None:
    update = FeatureUpdate("transaction.version", 2, UpgradeType.UPGRADE)
    persona = load("kafka-3.9")
    features = supported_features(persona)
    levels = with_defaults(FinalizedLevels(), persona)
    assert isinstance(plan_features(levels, [update], 1, features), ChangeRejected)


NAME = TRANSACTION_VERSION.name
UP, SAFE, UNSAFE = UpgradeType


def update(wanted: int, kind: int = UP, name: str = NAME) -> FeatureUpdate:
    return FeatureUpdate(name, wanted, kind)


@pytest.mark.parametrize("kind", [SAFE, UNSAFE])
def test_permitted_downgrade_and_upgrade_change_the_level(kind: UpgradeType) -> None:
    lower = plan_features(FinalizedLevels(), [update(1, kind)], 1)
    assert lower == FinalizedLevels({NAME: 1}, 1)
    assert isinstance(lower, FinalizedLevels)
    higher = plan_features(lower, [update(2)], 1)
    assert isinstance(higher, FinalizedLevels)
    assert (level(higher, TRANSACTION_VERSION), higher.epoch) == (2, 2)


@pytest.mark.parametrize("kind", list(UpgradeType))
def test_present_level_changes_nothing(kind: UpgradeType) -> None:
    before = FinalizedLevels({NAME: 1}, 5)
    assert plan_features(before, [update(1, kind)], 1) is before
    assert plan_features(before, [], 1) is before


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (update(3), "only supports versions 0-2"),
        (update(-1), "cannot be less than 0"),
        (update(0), "Can't downgrade the version"),
        (update(2, SAFE), "Can't downgrade to a newer version"),
        (update(1, 0), "does not support the given upgrade type"),
        (update(1, 4), "does not support the given upgrade type"),
        (update(1, UP, "other"), "Local controller 7 does not support this feature"),
    ],
)
def test_invalid_update_rejects_all_updates(wrong: FeatureUpdate, words: str) -> None:
    before = FinalizedLevels({NAME: 1}, 5)
    rejection = plan_features(before, [update(1), wrong], 7)
    assert isinstance(rejection, ChangeRejected)
    assert rejection.code == ErrorCode.INVALID_UPDATE_VERSION
    assert words in rejection.text


LEVELS = FinalizedLevels({"transaction.version": 1}, 3)


async def test_levels_are_read_as_stored() -> None:
    store = SqliteStore(MEMORY)
    assert await load_features(store) == FinalizedLevels()
    for levels in (LEVELS, LEVELS._replace(epoch=4)):
        await store.multi(await feature_steps(store, levels))
        assert await load_features(store) == levels
    await store.close()


def test_node_is_kafkas() -> None:
    assert encode_features(LEVELS) == (
        b'{"version":2,"status":1,"features":{"transaction.version":1},"epoch":3}'
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"features":5}',
        b'{"features":{"transaction.version":9}}',
        b'{"features":{"transaction.version":{"max_version_level":1}}}',
        b'{"features":{"other":1}}',
    ],
)
def test_invalid_node_has_no_levels(data: bytes) -> None:
    assert decode_features(data).levels == {}
