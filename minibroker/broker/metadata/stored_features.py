"""Finalized feature levels in the store.

Owns the node and its format, which is Kafka's of ZooKeeper mode with the number of changes added.
Invariant: levels that are unknown or not supported are ignored. Kafka's ``FeatureZNode``.
"""

from __future__ import annotations

import json

from minibroker.broker.metadata.features import FEATURES, FinalizedLevels
from minibroker.broker.metadata.store.tree import Create, NoNodeError, Operation, Set, Store

FEATURE_PATH = "/feature"

_ENABLED = 1


async def load(store: Store) -> FinalizedLevels:
    """The stored levels; none if there is no node or it cannot be read."""
    try:
        return decode_features((await store.get(FEATURE_PATH)).data)
    except NoNodeError:
        return FinalizedLevels()


async def steps(store: Store, features: FinalizedLevels) -> list[Operation]:
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
