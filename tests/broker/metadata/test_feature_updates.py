"""Changes of feature levels: all or none, and downgrades only if they are permitted."""

from __future__ import annotations

import pytest

from minibroker.broker.metadata.feature_updates import FeatureUpdate, UpgradeType, plan_features
from minibroker.broker.metadata.features import TRANSACTION_VERSION, FinalizedLevels, level
from minibroker.broker.metadata.topics import ChangeRejected
from minibroker_protocol.errors import ErrorCode

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
