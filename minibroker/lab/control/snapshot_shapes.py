"""Records for snapshots in the control API.

Owns their fields and limits. It must never know what a snapshot consists of. Invariant: a name is
also the name of a directory, so it has only letters, digits, ``_`` and ``-``. Kafka has no
equivalent.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, NamedTuple, Protocol

from minibroker.lab.control.schema import Doc, Length

SNAPSHOTS_MAX: Final = 100
"""Snapshots of one broker."""

SNAPSHOT_BYTES_MAX: Final = 4 * 1024**3
"""Bytes of records in all snapshots of one broker."""

SNAPSHOT_NAME: Final = re.compile("[A-Za-z0-9_-]{1,64}")


class SnapshotCreation(NamedTuple):
    """A snapshot to take."""

    name: Annotated[
        str | None,
        Length(1, 64),
        Doc("Its name: letters, digits, `_` and `-`. By default a number."),
    ] = None


class SnapshotView(NamedTuple):
    """A snapshot of all topics, records, groups, transactions, configs, users, quotas and ACLs."""

    name: Annotated[str, Doc("Its name, or a number.")]
    taken_ms: Annotated[int, Doc("When it was taken: epoch milliseconds of the broker's clock.")]
    partitions: Annotated[int, Doc("Partitions with records or settings on disk.")]
    size_bytes: Annotated[int, Doc("Bytes of their records.")]


class SnapshotList(NamedTuple):
    """All snapshots, the oldest first."""

    snapshots: tuple[SnapshotView, ...]


class SnapshotsBackend(Protocol):
    """A running broker that returns to earlier states."""

    async def snapshots(self) -> SnapshotList:
        """Return all snapshots."""

    async def snapshot(self, name: str) -> SnapshotView:
        """Return a snapshot; raise ``NotFound`` if there is none."""

    async def take_snapshot(self, new: SnapshotCreation) -> SnapshotView:
        """Take a snapshot; raise ``Conflict`` if its name is used or a limit is reached."""

    async def restore_snapshot(self, name: str) -> SnapshotView:
        """Return to a snapshot; every process has done so when this returns."""

    async def remove_snapshot(self, name: str) -> None:
        """Remove a snapshot; raise ``NotFound`` if there is none."""
