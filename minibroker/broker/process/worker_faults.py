"""The fault rules about the inside of an I/O worker.

Owns their delivery to hold points and storage. It must never know a rule. Invariant: a broker
without rules imports nothing for them. Kafka has no equivalent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minibroker.broker.process.hold_points import ProcessHoldPoints

if TYPE_CHECKING:
    from minibroker.broker.log.segment_files import SegmentFiles
    from minibroker.broker.process.environment import Environment
    from minibroker.broker.process.messages import FaultRules
    from minibroker.broker.process.storage_faults import StorageFaults
    from minibroker.broker.process.storage_watch import StorageWatch


class WorkerFaults:
    """The rules of one worker."""

    def __init__(self, env: Environment, files: SegmentFiles, watch: StorageWatch) -> None:
        self._env = env
        self._files = files
        self._watch = watch
        self.hold_points = ProcessHoldPoints(env.name)
        self._storage: StorageFaults | None = None

    async def change_rules(self, rules: FaultRules) -> None:
        """Add and remove rules, or replace all."""
        self.hold_points.change_rules(rules)
        if self._storage is None:
            # Loaded with the first rule: most brokers get none.
            from minibroker.broker.process.storage_faults import StorageFaults

            self._storage = StorageFaults(self._env, self._files)
            self._watch.fails_on_purpose = self._storage.fails_always
        self._storage.change_rules(rules)
