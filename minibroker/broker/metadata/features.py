"""Features of the cluster: their levels, changes of them, and their node in the store (KIP-584).

Owns the features that have an effect here, the errors of a change, and the node, which is Kafka's
of ZooKeeper mode with the number of changes added. Invariants: every process reads a level from its
image through `level`, so all requests after a change see the same one; a request changes all of its
features or none; stored levels that are unknown or not supported are ignored. Kafka's ``Feature``,
``TransactionVersion``, ``FeatureControlManager`` and ``FeatureZNode``.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Sequence
from typing import Final, NamedTuple

from minibroker.broker.metadata.image import (
    ChangeRejected,
    FeaturesChanged,
    FinalizedLevels,
    Image,
    Plan,
)
from minibroker.broker.metadata.store.tree import Create, NoNodeError, Operation, Set, Store
from minibroker.broker.personas.persona import Features, Persona, VersionRange
from minibroker_protocol.errors import ErrorCode


class Feature(NamedTuple):
    """A feature and its supported levels; ``default`` is finalized if nothing else is set."""

    name: str
    lowest: int
    highest: int
    default: int


TRANSACTION_VERSION: Final = Feature("transaction.version", lowest=0, highest=2, default=2)
"""0: without flexible state records, 1: with them, 2: an epoch for each transaction (KIP-890)."""

GROUP_VERSION: Final = Feature("group.version", lowest=0, highest=1, default=1)
"""0: classic groups, 1: also consumer groups (KIP-848)."""

SHARE_VERSION: Final = Feature("share.version", lowest=0, highest=2, default=2)
"""0: no share groups, 1: share groups (KIP-932), 2: with dead-letter queues (KIP-1191)."""

STREAMS_VERSION: Final = Feature("streams.version", lowest=0, highest=1, default=1)
"""0: no streams groups, 1: streams groups (KIP-1071)."""

FEATURES: Final = (GROUP_VERSION, SHARE_VERSION, STREAMS_VERSION, TRANSACTION_VERSION)

DESCRIPTIVE: Final = frozenset({"metadata.version", "kraft.version"})
"""Features of a persona that clients are shown although they have no effect here; others that are
not in `FEATURES` are of protocols that are not served.
"""


def level(finalized: FinalizedLevels, feature: Feature) -> int:
    """The finalized level of a feature, from an image's ``features``."""
    return finalized.levels.get(feature.name, feature.default)


def supported_features(persona: Persona | None) -> tuple[Feature, ...]:
    """Features that have an effect, in the levels that a persona has, too.

    Without a feature a persona works at its lowest level.
    """
    return tuple(
        feature if persona is None else _narrowed(feature, persona) for feature in FEATURES
    )


def _narrowed(feature: Feature, persona: Persona) -> Feature:
    theirs = persona.features
    if theirs is None or feature.name not in theirs.supported:
        return feature._replace(highest=feature.lowest, default=feature.lowest)
    highest = max(min(theirs.supported[feature.name].high, feature.highest), feature.lowest)
    default = min(theirs.finalized.get(feature.name, feature.lowest), highest)
    return feature._replace(highest=highest, default=default)


def with_defaults(finalized: FinalizedLevels, persona: Persona | None) -> FinalizedLevels:
    """Return stored levels as a persona has them: its own where none is set, and none above it."""
    if persona is None:
        return finalized
    levels = {
        feature.name: min(level(finalized, feature), feature.highest)
        for feature in supported_features(persona)
    }
    return finalized._replace(levels=levels)


def shown_features(persona: Persona | None, finalized: FinalizedLevels) -> Features | None:
    """Return the features for ApiVersions; None if it has none."""
    theirs = None if persona is None else persona.features
    if persona is not None and theirs is None:
        return None
    supported: dict[str, VersionRange] = {}
    levels: dict[str, int] = {}
    if theirs is not None:
        supported = {
            name: theirs.supported[name] for name in theirs.supported if name in DESCRIPTIVE
        }
        levels = {name: theirs.finalized[name] for name in theirs.finalized if name in DESCRIPTIVE}
    for feature in supported_features(persona):
        if theirs is None or feature.name in theirs.supported:
            supported[feature.name] = VersionRange(feature.lowest, feature.highest)
            levels[feature.name] = level(finalized, feature)
    return Features(supported, levels, max(finalized.epoch, theirs.epoch if theirs else 0))


# ------------------------------------------------------------------------------------ changes


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


def plan_feature_updates(
    image: Image, updates: Sequence[FeatureUpdate], persona: Persona | None
) -> Plan[ChangeRejected | None]:
    """Plan a change of all levels or none; the answer is the rejection."""
    features = supported_features(persona)
    levels = plan_features(image.features, updates, image.controller_id, features)
    if isinstance(levels, ChangeRejected):
        return Plan(levels)
    return Plan(None, [FeaturesChanged(levels)] if levels != image.features else [])


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


# -------------------------------------------------------------------------------- in the store


FEATURE_PATH: Final = "/feature"

_ENABLED: Final = 1


async def load_features(store: Store) -> FinalizedLevels:
    """The stored levels; none if there is no node or it cannot be read."""
    try:
        return decode_features((await store.get(FEATURE_PATH)).data)
    except NoNodeError:
        return FinalizedLevels()


async def feature_steps(store: Store, features: FinalizedLevels) -> list[Operation]:
    """Return the operations that store the levels."""
    data = encode_features(features)
    if await store.exists(FEATURE_PATH):
        return [Set(FEATURE_PATH, data)]
    return [Create(FEATURE_PATH, data)]


def encode_features(features: FinalizedLevels) -> bytes:
    """Encode the node."""
    fields = {
        "version": 2,
        "status": _ENABLED,
        "features": dict(features.levels),
        "epoch": features.epoch,
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_features(data: bytes) -> FinalizedLevels:
    """Decode the node."""
    try:
        fields = json.loads(data)
        found, epoch = dict(fields["features"]), int(fields.get("epoch", 0))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return FinalizedLevels()
    levels = {
        feature.name: found[feature.name]
        for feature in FEATURES
        if isinstance(found.get(feature.name), int)
        and feature.lowest <= found[feature.name] <= feature.highest
    }
    return FinalizedLevels(levels, max(epoch, 0))
