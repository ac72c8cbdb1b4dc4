from __future__ import annotations

from minibroker.broker.metadata.feature_updates import FeatureUpdate, UpgradeType, plan_features
from minibroker.broker.metadata.features import (
    TRANSACTION_VERSION,
    FinalizedLevels,
    level,
    shown_features,
    supported_features,
    with_defaults,
)
from minibroker.broker.metadata.image import FeaturesChanged, Image, apply
from minibroker.broker.metadata.topics import ChangeRejected
from minibroker.lab.personas.persona import load


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
    assert ours.finalized == {"transaction.version": 2}
    assert shown_features(load("kafka-2.4"), levels) is None
    persona = load("kafka-4.0")
    shown = shown_features(persona, with_defaults(levels, persona))
    assert shown is not None
    assert shown.finalized == {"metadata.version": 25, "transaction.version": 2}
    assert set(shown.supported) == {"kraft.version", "metadata.version", "transaction.version"}


def test_no_level_of_a_persona_can_be_raised_above_it() -> None:
    update = FeatureUpdate("transaction.version", 2, UpgradeType.UPGRADE)
    persona = load("kafka-3.9")
    features = supported_features(persona)
    levels = with_defaults(FinalizedLevels(), persona)
    assert isinstance(plan_features(levels, [update], 1, features), ChangeRejected)
