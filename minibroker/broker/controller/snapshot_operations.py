"""The operations of the control API on snapshots, for the backend.

Owns the delegation to the snapshots, which are imported by the first request about them. It must
never decide anything. Invariant: a broker without snapshots imports nothing for them. Kafka has no
equivalent.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minibroker.broker.apis.base import ControllerScope
    from minibroker.broker.controller.metadata_publisher import MetadataPublisher
    from minibroker.broker.controller.snapshots import Snapshots
    from minibroker.broker.process.environment import Environment
    from minibroker.lab.control.snapshot_shapes import SnapshotCreation, SnapshotList, SnapshotView


class SnapshotOperations:
    """Implements ``control.snapshot_shapes.SnapshotsBackend``."""

    _env: Environment
    _scope: ControllerScope
    _subscribers: MetadataPublisher

    @cached_property
    def _snapshots(self) -> Snapshots:
        from minibroker.broker.controller.snapshots import Snapshots

        return Snapshots(self._env, self._scope, self._subscribers)

    async def snapshots(self) -> SnapshotList:
        """All snapshots."""
        return await self._snapshots.snapshots()

    async def snapshot(self, name: str) -> SnapshotView:
        """One snapshot."""
        return await self._snapshots.snapshot(name)

    async def take_snapshot(self, new: SnapshotCreation) -> SnapshotView:
        """Take a snapshot."""
        return await self._snapshots.take_snapshot(new)

    async def restore_snapshot(self, name: str) -> SnapshotView:
        """Return to a snapshot; returns when every process has done so."""
        return await self._snapshots.restore_snapshot(name)

    async def remove_snapshot(self, name: str) -> None:
        """Remove a snapshot."""
        await self._snapshots.remove_snapshot(name)
