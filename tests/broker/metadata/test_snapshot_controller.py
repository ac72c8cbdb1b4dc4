"""The controller returns to saved metadata, in its store and in its image."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from minibroker.broker.metadata.configs import Alteration, ConfigOperation, Op
from minibroker.broker.metadata.controller import ClusterController
from minibroker.broker.metadata.image import BROKER, TOPIC, apply_update
from minibroker.broker.metadata.store.sqlite import SqliteStore
from minibroker.broker.metadata.store.tree import StoreError
from minibroker.broker.metadata.topics import NewTopic
from minibroker.broker.settings import Settings

SETTINGS = Settings.from_sources()


async def start(store: SqliteStore) -> ClusterController:
    endpoints = {"PLAINTEXT": ("127.0.0.1", 9092)}
    return await ClusterController.start(
        store, SETTINGS, endpoints=endpoints, random=Random(1), wall_ms=0
    )


def alteration(kind: str, name: str, key: str, value: str) -> Alteration:
    return Alteration(kind, name, (ConfigOperation(key, Op.SET, value),))


async def test_restore_returns_to_topics_and_configs_but_repeats_no_number(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.sqlite")
    cluster = await start(store)
    await cluster.create_topics([NewTopic("kept", 2), NewTopic("deleted", 1)])
    await cluster.alter_configs([alteration(BROKER, "", "log.cleaner.backoff.ms", "7")])
    first = await cluster.allocate_producer_ids()
    saved = cluster.image
    async with cluster.saved(str(tmp_path / "copy")):
        pass
    await cluster.delete_topics(["deleted"])
    await cluster.create_topics([NewTopic("new", 1), NewTopic("deleted", 3)])
    await cluster.alter_configs([alteration(TOPIC, "kept", "segment.bytes", "5000000")])
    changed = cluster.image
    (update,) = await cluster.restore(str(tmp_path / "copy"))
    expected = replace(
        saved,
        number=changed.number + 1,
        broker_configs_number=changed.number + 1,
    )
    assert cluster.image == expected
    assert apply_update(changed, update) == expected
    second = await cluster.allocate_producer_ids()
    assert second.first >= first.first + first.size
    await store.close()
    store = SqliteStore(tmp_path / "store.sqlite")
    again = await start(store)
    assert again.image.topics == saved.topics
    assert again.image.configs == saved.configs
    assert again.image.controller_epoch == saved.controller_epoch + 1
    await store.close()


async def test_damaged_copy_changes_nothing(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.sqlite")
    cluster = await start(store)
    before = cluster.image
    with pytest.raises(StoreError):
        await cluster.restore(str(tmp_path / "missing" / "copy"))
    assert cluster.image == before
    await cluster.create_topics([NewTopic("t", 1)])
    assert "t" in cluster.image.topics
    await store.close()
