"""Rules for changes of finalized feature levels (KIP-584).

Owns the errors of a change. It must never store anything or know a message. Invariant: a request
changes all of its features or none. Kafka's ``FeatureControlManager``.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple

from minibroker.broker.metadata.features import FEATURES, Feature, FinalizedLevels, level
from minibroker.broker.metadata.topics import ChangeRejected
from minibroker_protocol.errors import ErrorCode


class UpgradeType(enum.IntEnum):
    """What a request permits, with Kafka's numbers."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class FeatureUpdate(NamedTuple):
    """A requested level; ``upgrade_type`` is the requested number, which may be invalid."""

    feature: str
    level: int
    upgrade_type: int


def plan_features(
    finalized: FinalizedLevels,
    updates: Sequence[FeatureUpdate],
    node_id: int,
    features: Sequence[Feature] = FEATURES,
) -> FinalizedLevels | ChangeRejected:
    """Return the levels after the updates, or the error of the first invalid one.

    The epoch grows if a level changes.
    """
    levels = dict(finalized.levels)
    by_name = {feature.name: feature for feature in features}
    for update in updates:
        feature = by_name.get(update.feature)
        problem = _problem(finalized, feature, update, node_id)
        if problem:
            text = "The update failed for all features since the following feature had an error: "
            text += f"Invalid update version {update.level} for feature {update.feature}. {problem}"
            return ChangeRejected(ErrorCode.INVALID_UPDATE_VERSION, text)
        assert feature is not None
        if update.level != level(finalized, feature):
            levels[feature.name] = update.level
    if levels == dict(finalized.levels):
        return finalized
    return FinalizedLevels(levels, finalized.epoch + 1)


def _problem(
    finalized: FinalizedLevels, feature: Feature | None, update: FeatureUpdate, node_id: int
) -> str:
    if update.upgrade_type not in list(UpgradeType):
        return "The controller does not support the given upgrade type."
    if update.level < 0:
        return "A feature version cannot be less than 0."
    if feature is None:
        return f"Local controller {node_id} does not support this feature."
    if not feature.lowest <= update.level <= feature.highest:
        supported = f"{feature.lowest}-{feature.highest}"
        return f"Local controller {node_id} only supports versions {supported}"
    is_upgrade = update.upgrade_type == UpgradeType.UPGRADE
    current = level(finalized, feature)
    if update.level < current and is_upgrade:
        return (
            "Can't downgrade the version of this feature without setting the upgrade type to "
            "either safe or unsafe downgrade."
        )
    if update.level > current and not is_upgrade:
        return "Can't downgrade to a newer version."
    return ""
