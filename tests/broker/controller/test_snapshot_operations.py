"""The backend delegates operations on snapshots."""

from __future__ import annotations

from typing import Any

from minibroker.broker.controller.snapshot_operations import SnapshotOperations
from minibroker.lab.control.snapshot_shapes import SnapshotCreation


class Recorded:
    """Records the operations that are called."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        async def call(*arguments: Any) -> str:
            self.calls.append((name, *arguments))
            return name

        return call


async def test_all_operations_reach_the_snapshots() -> None:
    operations, recorded = SnapshotOperations(), Recorded()
    operations.__dict__["_snapshots"] = recorded
    new = SnapshotCreation("s")
    results: list[Any] = [
        await operations.take_snapshot(new),
        await operations.snapshots(),
        await operations.snapshot("s"),
        await operations.restore_snapshot("s"),
    ]
    await operations.remove_snapshot("s")
    assert results == ["take_snapshot", "snapshots", "snapshot", "restore_snapshot"]
    assert recorded.calls == [
        ("take_snapshot", new),
        ("snapshots",),
        ("snapshot", "s"),
        ("restore_snapshot", "s"),
        ("remove_snapshot", "s"),
    ]
