"""The operation of the control API that compacts a topic at once.

Owns the part of the backend that it needs. It must never know logs or processes. Invariant: the
response is sent when the compaction is complete. Kafka has no equivalent: its cleaner decides.
"""

from __future__ import annotations

from typing import Protocol

from minibroker.lab.control.action_shapes import ActionsBackend
from minibroker.lab.control.client_metrics_shapes import ClientMetricsBackend
from minibroker.lab.control.fault_shapes import FaultsBackend
from minibroker.lab.control.journal_shapes import JournaledBackend
from minibroker.lab.control.namespace_shapes import NamespacesBackend
from minibroker.lab.control.snapshot_shapes import SnapshotsBackend


class CompactionBackend(
    ActionsBackend,
    ClientMetricsBackend,
    FaultsBackend,
    JournaledBackend,
    NamespacesBackend,
    SnapshotsBackend,
    Protocol,
):
    """A running broker that can compact topics."""

    async def compact_topic(self, name: str) -> None:
        """Compact all partitions of a topic as far as possible; raise ``NotFound`` or Conflict."""
