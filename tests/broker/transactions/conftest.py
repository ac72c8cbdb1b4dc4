"""A data directory with ``__transaction_state``, and a coordinator whose markers a test answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from minibroker.broker.groups.hooks import NO_HOLD_POINTS, HoldPoints
from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.errors import LogError
from minibroker.broker.log.log import Log
from minibroker.broker.log.producers import TransactionMarker
from minibroker.broker.log.replica_manager import Partition
from minibroker.broker.metadata.image import TRANSACTION_STATE_TOPIC
from minibroker.broker.transactions.service import (
    MarkersReply,
    TransactionEnvironment,
    TransactionLimits,
    TransactionService,
)
from minibroker.runtime.rpc import PeerLost
from minibroker_protocol.errors import ErrorCode

START_MS = 1_700_000_000_000
LOG = LogConfig(segment_bytes=1 << 20)


class StateDisk:
    """Partitions of ``__transaction_state``. ``kill`` simulates SIGKILL."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.logs: dict[int, Log] = {}
        self.broken: set[int] = set()

    def open(self, index: int) -> Partition:
        if index in self.broken:
            raise LogError(ErrorCode.KAFKA_STORAGE_ERROR, "no space")
        log = Log.open(self.directory, TRANSACTION_STATE_TOPIC, index, LOG, now_ms=START_MS)
        self.logs[index] = log
        return Partition(log, bytes(16), broker_id=1, leader_id=1, leader_epoch=4)

    def kill(self) -> None:
        for log in self.logs.values():
            log.abandon()
        self.logs.clear()

    def fail(self, index: int, code: ErrorCode) -> None:
        """Let writes to a partition fail."""

        def reject(*_args: object, **_options: object) -> None:
            raise LogError(code, "failed on purpose")

        self.logs[index].append_prepared = reject  # type: ignore[method-assign, assignment]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[StateDisk]:
    made = StateDisk(tmp_path)
    yield made
    made.kill()


class Cluster:
    """What the coordinator uses of its worker."""

    def __init__(self, disk: StateDisk) -> None:
        self.disk = disk
        self.time_ms = START_MS
        self.version = 2
        self.next_id: int | None = 1000
        self.owned = frozenset(range(50))
        self.sent: list[tuple[int, tuple[TransactionMarker, ...]]] = []
        self.errors: dict[tuple[str, int], ErrorCode] = {}
        self.lost = 0
        """Number of requests with markers that are lost from now on."""
        self.answers = trio.Event()
        self.answers.set()
        self.hold_points: HoldPoints = NO_HOLD_POINTS

    def service(self) -> TransactionService:
        return TransactionService(
            TransactionLimits(abort_interval_s=10.0, expiry_interval_s=100.0),
            partitions=50,
            environment=TransactionEnvironment(
                worker=0,
                coordinates=lambda index: index in self.owned,
                open_partition=self.disk.open,
                transaction_version=lambda: self.version,
                new_producer_id=self._new_producer_id,
                owner_of=lambda _topic, partition: partition % 2,
                write_markers=self._write_markers,
                wall_ms=lambda: self.time_ms,
                sleep_real=trio.sleep,
                hold_points=self.hold_points,
            ),
        )

    async def _new_producer_id(self) -> int | None:
        await trio.lowlevel.checkpoint()
        if self.next_id is not None:
            self.next_id += 1
        return self.next_id

    async def _write_markers(
        self, owner: int, markers: tuple[TransactionMarker, ...]
    ) -> MarkersReply:
        self.sent.append((owner, markers))
        await self.answers.wait()
        if self.lost:
            self.lost -= 1
            raise PeerLost("the worker died")
        return {
            marker.producer_id: {
                each: self.errors.get(each, ErrorCode.NONE) for each in marker.partitions
            }
            for marker in markers
        }


@pytest.fixture
def cluster(disk: StateDisk) -> Cluster:
    return Cluster(disk)
