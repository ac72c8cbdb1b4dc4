"""A controller whose store other programs write to, and the image of a subscriber."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Generic, TypeVar

from minibroker.broker.metadata.controller import ClusterController
from minibroker.broker.metadata.image import Image, Update, apply_update
from minibroker.broker.metadata.store.sqlite import SqliteStore
from minibroker.broker.settings import Settings

StoreT = TypeVar("StoreT", bound=SqliteStore)


class FollowedStore(Generic[StoreT]):
    """Base class of controllers that apply changes of one kind."""

    def __init__(self, store: StoreT, cluster: ClusterController) -> None:
        self.store = store
        self.cluster = cluster
        self.image: Image = cluster.image

    async def publish(self, updates: Sequence[Update]) -> None:
        for update in updates:
            self.image = apply_update(self.image, update)


async def start_cluster(store: SqliteStore, *pairs: str) -> ClusterController:
    return await ClusterController.start(
        store,
        Settings.from_sources(pairs=pairs),
        endpoints={"PLAINTEXT": ("h", 1)},
        random=Random(1),
        wall_ms=0,
    )
