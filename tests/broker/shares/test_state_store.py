"""States of share partitions are stored, fenced, and read again from a small log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from minibroker.broker.groups.group import STATE_LOG_SEGMENT_BYTES
from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.log import Log
from minibroker.broker.log.replica_manager import Partition
from minibroker.broker.metadata.image import (
    SHARE_STATE_TOPIC,
    Image,
    PartitionRegistration,
    Topic,
    TopicCreated,
    apply,
)
from minibroker.broker.shares.state import ShareKey, StateBatch
from minibroker.broker.shares.state_store import (
    DeleteState,
    InitializeState,
    ReadState,
    ShareStateStore,
    StateOperation,
    StateReply,
    SummarizeState,
    WriteState,
)
from minibroker_protocol.errors import ErrorCode

TOPIC_ID = bytes(15) + b"\1"
KEY = ShareKey("g", TOPIC_ID, 0)
OTHER = ShareKey("h", TOPIC_ID, 0)
SMALL_SEGMENT_BYTES = 10_000
NOW_MS = 1_700_000_000_000


def an_image() -> Image:
    partitions = (PartitionRegistration(0, 1, 0, (1,), (1,)),)
    return apply(Image(), TopicCreated(Topic("t", TOPIC_ID, partitions), {}))


class Store:
    """A store with one partition, which can be loaded again."""

    def __init__(self, folder: Path, updates_max: int = 3, config: LogConfig | None = None) -> None:
        self._folder = folder
        self._updates_max = updates_max
        self._config = LogConfig() if config is None else config
        self.log: Log | None = None
        self.store = self._make()

    def _make(self) -> ShareStateStore:
        return ShareStateStore(
            partitions=1, updates_max=self._updates_max, open_partition=self._open
        )

    def _open(self, index: int) -> Partition:
        self.log = Log.open(self._folder, SHARE_STATE_TOPIC, index, self._config, now_ms=0)
        return Partition(self.log, bytes(16), broker_id=1, leader_id=1, leader_epoch=0)

    def handle(self, operation: StateOperation) -> StateReply:
        return self.store.handle(operation, an_image(), NOW_MS)

    def write(
        self, first: int, last: int, *, key: ShareKey = KEY, start: int = 0, complete: int = 0
    ) -> StateReply:
        batch = StateBatch(first, last, 2, 1)
        return self.handle(WriteState(key, 1, 0, start, complete, (batch,)))

    def load_again(self) -> None:
        """Load what was written, as after a kill."""
        states = dict(self.store.states)
        assert self.log is not None
        self.log.abandon()
        self.store = self._make()
        self.store.load([0])
        assert self.store.states == states


@pytest.fixture
def store(tmp_path: Path) -> Callable[..., Store]:
    return lambda updates_max=3: Store(tmp_path, updates_max)


def test_state_is_the_same_after_each_write_and_load(store: Callable[..., Store]) -> None:
    at = store()
    assert at.handle(InitializeState(KEY, 1, 0)).error is ErrorCode.NONE
    for first in range(0, 40, 2):
        assert at.write(first, first, start=first // 2).error is ErrorCode.NONE
        at.load_again()
    state = at.store.states[KEY]
    assert state.start_offset == 19
    assert state.snapshot_epoch == 5
    assert state.batches[0] == StateBatch(20, 20, 2, 1)


def test_state_that_is_deleted_stays_deleted(store: Callable[..., Store]) -> None:
    at = store()
    at.handle(InitializeState(KEY, 1, 0))
    at.write(0, 1)
    assert at.handle(DeleteState(KEY)).error is ErrorCode.NONE
    assert at.handle(DeleteState(KEY)).error is ErrorCode.NONE
    at.load_again()
    assert at.store.states == {}
    assert at.handle(SummarizeState(KEY)) == StateReply()


def test_log_stays_small(store: Callable[..., Store]) -> None:
    at = store(500)
    at.handle(InitializeState(OTHER, 1, 7))
    at.handle(InitializeState(KEY, 1, 0))
    for first in range(12_000):
        at.write(first, first, start=first)
    assert at.log is not None
    at.log.apply_retention(now_ms=NOW_MS)
    assert at.log.size < 2 * STATE_LOG_SEGMENT_BYTES
    assert at.log.log_start_offset > 0
    at.load_again()
    assert at.store.states[OTHER].start_offset == 7
    assert at.store.states[KEY].start_offset == 11_999


def test_log_with_small_segments_stays_small(tmp_path: Path) -> None:
    at = Store(tmp_path, 500, LogConfig(segment_bytes=SMALL_SEGMENT_BYTES))
    at.handle(InitializeState(OTHER, 1, 7))
    at.handle(InitializeState(KEY, 1, 0))
    for first in range(600):
        at.write(first, first, start=first)
        if first % 200 == 100:
            at.load_again()
    assert at.log is not None
    at.log.apply_retention(now_ms=NOW_MS)
    assert at.log.size < 3 * SMALL_SEGMENT_BYTES
    at.load_again()
    assert at.store.states[OTHER].start_offset == 7
    assert at.store.states[KEY].start_offset == 599


def test_new_leader_fences_the_former_one(store: Callable[..., Store]) -> None:
    at = store()
    at.handle(InitializeState(KEY, 1, 0))
    assert at.handle(ReadState(KEY, 5)).error is ErrorCode.NONE
    at.load_again()
    assert at.handle(ReadState(KEY, 4)).error is ErrorCode.FENCED_LEADER_EPOCH
    assert at.write(0, 0).error is ErrorCode.FENCED_LEADER_EPOCH


def test_state_that_begins_anew_fences_its_former_users(store: Callable[..., Store]) -> None:
    at = store()
    at.handle(InitializeState(KEY, 1, 0))
    at.write(0, 3)
    assert at.handle(InitializeState(KEY, 4, 100)).error is ErrorCode.NONE
    assert at.write(4, 4).error is ErrorCode.FENCED_STATE_EPOCH
    assert at.handle(InitializeState(KEY, 3, 0)).error is ErrorCode.FENCED_STATE_EPOCH
    state = at.store.states[KEY]
    assert (state.start_offset, state.batches, state.complete_count) == (100, (), 0)


@pytest.mark.parametrize(
    ("operation", "error", "text"),
    [
        (ReadState(KEY, 0), ErrorCode.INVALID_REQUEST, "Read operation on uninitialized"),
        (WriteState(KEY, 0, 0, 0, 0, ()), ErrorCode.INVALID_REQUEST, "Write operation on"),
        (ReadState(KEY, -1), ErrorCode.INVALID_REQUEST, "leader epoch"),
        (WriteState(KEY, 0, -1, 0, 0, ()), ErrorCode.INVALID_REQUEST, "leader epoch"),
        (WriteState(KEY, -1, 0, 0, 0, ()), ErrorCode.INVALID_REQUEST, "state epoch"),
        (InitializeState(KEY, -1, 0), ErrorCode.INVALID_REQUEST, "state epoch"),
        (InitializeState(KEY._replace(partition=-1), 0, 0), ErrorCode.INVALID_REQUEST, "negative"),
        (InitializeState(KEY._replace(partition=1), 0, 0),
         ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None),
        (DeleteState(KEY._replace(topic_id=bytes(16))), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None),
    ],
)  # fmt: skip
def test_invalid_operation_is_rejected(
    store: Callable[..., Store], operation: StateOperation, error: ErrorCode, text: str | None
) -> None:
    reply = store().handle(operation)
    assert reply.error is error
    assert (text or "") in (reply.text or "")
