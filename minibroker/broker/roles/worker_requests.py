"""Requests of the controller to an I/O worker: views of logs and groups, and work to be done now.

Owns the answers to these requests. It must never know their purpose. Invariant: a worker
answers for the partitions and groups that it owns, and for no others. Kafka's tools ask the brokers
themselves.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from minibroker.broker.log.errors import LogError
from minibroker.broker.process.messages import (
    ActionRequest,
    CompactRequest,
    DeleteGroups,
    GroupsRequest,
    LogsRequest,
    LogView,
)
from minibroker.broker.process.worker_snapshots import SNAPSHOT_REQUESTS
from minibroker.broker.roles.worker_actions import ActingWorker, OnLog, act

if TYPE_CHECKING:
    from minibroker.broker.log.replica_manager import Partition
    from minibroker.broker.process.log_cleaner import LogCleaner
    from minibroker.broker.process.worker_snapshots import WorkerSnapshots


class RequestedWorker(ActingWorker, Protocol):
    """What the requests need of a worker."""

    cleaner: LogCleaner

    def snapshots(self) -> WorkerSnapshots:
        """The worker's part of snapshots of the broker."""


class ControllerRequests:
    """The requests of the controller to one worker."""

    def __init__(self, worker: RequestedWorker, on_log: OnLog) -> None:
        self._worker = worker
        self._on_log = on_log

    def handle(self, request: Any) -> Any:
        """Return the answer, or an awaitable of it."""
        worker = self._worker
        if isinstance(request, CompactRequest):
            return worker.cleaner.compact(request.topic)
        if isinstance(request, LogsRequest):
            return self._log_views(request.topic)
        if isinstance(request, GroupsRequest):
            if request.group_id is None:
                return worker.groups.list_groups()
            return worker.groups.describe(request.group_id, full=True)
        if isinstance(request, ActionRequest):
            return act(worker, request, self._on_log)
        if isinstance(request, DeleteGroups):
            return worker.groups.drop_groups(request.prefix)
        if isinstance(request, SNAPSHOT_REQUESTS):
            return worker.snapshots().handle(request)
        raise TypeError(f"a worker cannot handle {type(request).__name__}")

    def _log_views(self, topic: str) -> dict[int, LogView]:
        known = self._worker.image.topics.get(topic)
        views: dict[int, LogView] = {}
        for index in range(len(known.partitions) if known else 0):
            if self._worker.owns(topic, index):
                with suppress(LogError):  # Shown as a partition without a log.
                    partition = self._worker.partition(topic, index)
                    if partition is not None:
                        views[index] = _log_view(partition)
        return views


def _log_view(partition: Partition) -> LogView:
    log = partition.log
    return LogView(log.log_start_offset, partition.high_watermark, log.log_end_offset, log.size)
