"""Feature levels survive a restart of the controller."""

from __future__ import annotations

from pathlib import Path
from random import Random

from minibroker.broker.metadata.controller import ClusterController
from minibroker.broker.metadata.feature_updates import FeatureUpdate, UpgradeType
from minibroker.broker.metadata.features import TRANSACTION_VERSION, level
from minibroker.broker.metadata.store.sqlite import SqliteStore
from minibroker.broker.settings import Settings

LOWER = FeatureUpdate(TRANSACTION_VERSION.name, 1, UpgradeType.SAFE_DOWNGRADE)


async def start(store: SqliteStore) -> ClusterController:
    endpoints = {"PLAINTEXT": ("127.0.0.1", 9092)}
    return await ClusterController.start(
        store, Settings.from_sources(), endpoints=endpoints, random=Random(1), wall_ms=0
    )


async def test_level_is_stored(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "metadata.db"))
    cluster = await start(store)
    assert await cluster.update_features([LOWER], validate_only=True) == (None, [])
    assert level(cluster.image.features, TRANSACTION_VERSION) == 2
    rejection, updates = await cluster.update_features([LOWER])
    assert rejection is None
    assert len(updates) == 1
    assert await cluster.update_features([LOWER]) == (None, [])
    await store.close()
    store = SqliteStore(str(tmp_path / "metadata.db"))
    again = await start(store)
    assert level(again.image.features, TRANSACTION_VERSION) == 1
    assert again.image.features.epoch == 1
    await store.close()
