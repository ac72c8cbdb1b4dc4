"""The controller's part of snapshots of the broker: metadata is saved and restored.

Owns which nodes of the store a return leaves alone, and the image that follows from the others. It
must never know records. Invariant: the image equals the store after a return as after a start, and
neither a controller epoch nor a producer id is used twice. Kafka has no equivalent.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

from minibroker.broker.metadata import bootstrap, layout
from minibroker.broker.metadata.features import FinalizedLevels
from minibroker.broker.metadata.image import Change, MetadataRestored, Update, apply
from minibroker.broker.metadata.user_controller import UserController
from minibroker.broker.settings import Settings

KEPT_PATHS: Final = (layout.CONTROLLER_EPOCH, layout.PRODUCER_IDS)
"""Nodes whose numbers only grow."""


class SnapshotController(UserController):
    """The part of the controller that saves and restores all metadata."""

    _settings: Settings

    @asynccontextmanager
    async def saved(self, file: str) -> AsyncIterator[None]:
        """Save the metadata in a file; it does not change inside of the context.

        Raises `StoreError`.
        """
        async with self._lock:
            await self._store.save(file)
            yield

    async def restore(self, file: str) -> list[Update]:
        """Return to the metadata in a file; return the updates to publish. Raises `StoreError`."""
        async with self._lock:
            await self._store.restore(file, KEPT_PATHS)
            image = replace(
                self._image,
                topics={},
                topic_names={},
                configs={},
                acls={},
                features=FinalizedLevels(),
            )
            image = await bootstrap.with_topics(image, self._store, self._random)
            for change in await bootstrap.load_configs(self._store, self._settings):
                image = apply(image, change)
            restored = MetadataRestored(image.topics, image.configs, image.acls, image.features)
            return self._advance([restored])

    def _advance(self, changes: Sequence[Change]) -> list[Update]:
        raise NotImplementedError
