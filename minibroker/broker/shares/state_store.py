"""The states of share partitions that one I/O worker keeps, and the logs that store them.

Owns ``__share_group_state``: an operation is written to the partition of its key before it is in
force. It must never know records of topics, members or a clock. Between two snapshots of a state
only updates are written. After a full segment, a snapshot of every state of the partition is
written, and all records before it are deleted, so a log stays small. Invariants: replaying the logs
gives the current states; a leader with an older epoch, or a state epoch from before the group's
offsets were changed, is fenced. Kafka's ``ShareCoordinatorShard`` and ``ShareCoordinatorService``.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

from minibroker.broker.groups.group import STATE_LOG_SEGMENT_BYTES
from minibroker.broker.groups.state_log import StateLog, StateLogs
from minibroker.broker.log.errors import LogError
from minibroker.broker.log.replica_manager import Partition
from minibroker.broker.metadata.image import SHARE_STATE_TOPIC, Image
from minibroker.broker.shares.state import (
    UNCOUNTED,
    UNKNOWN_OFFSET,
    ShareEntry,
    ShareKey,
    ShareState,
    StateBatch,
    StateUpdate,
    decode_share_entry,
    merged,
)
from minibroker_protocol.errors import ErrorCode

_logger = logging.getLogger(__name__)


class InitializeState(NamedTuple):
    """Create a state, or move it to another offset."""

    key: ShareKey
    state_epoch: int
    start_offset: int


class ReadState(NamedTuple):
    """Read a state as the leader of the partition in an epoch."""

    key: ShareKey
    leader_epoch: int


class WriteState(NamedTuple):
    """Change a state."""

    key: ShareKey
    state_epoch: int
    leader_epoch: int
    start_offset: int
    complete_count: int
    batches: tuple[StateBatch, ...]


class SummarizeState(NamedTuple):
    """Read the offsets of a state."""

    key: ShareKey


class DeleteState(NamedTuple):
    """Delete a state."""

    key: ShareKey


StateOperation: TypeAlias = InitializeState | ReadState | WriteState | SummarizeState | DeleteState


class StateReply(NamedTuple):
    """A state, or an error; None if there is none and that is no error."""

    error: ErrorCode = ErrorCode.NONE
    text: str | None = None
    state: ShareState | None = None


class ShareStateStore(StateLogs[StateLog]):
    """States by share partition.

    ``open_partition`` returns a partition of ``__share_group_state``. It is called once per
    partition, on first use. ``updates_max`` is the number of updates between two snapshots.
    """

    def __init__(
        self, *, partitions: int, updates_max: int, open_partition: Callable[[int], Partition]
    ) -> None:
        super().__init__(SHARE_STATE_TOPIC, partitions, lambda at: StateLog(open_partition(at)))
        self.states: dict[ShareKey, ShareState] = {}
        self._updates: Counter[ShareKey] = Counter()
        """Updates since the last snapshot."""
        self._updates_max = updates_max
        self._snapshot_ends: dict[int, int] = {}
        """Where the last snapshots of all states end, by partition."""

    def load(self, partitions: Iterable[int]) -> int:
        """Load the states of the partitions; return their number.

        A partition whose log cannot be opened remains in ``unloaded``.
        """
        loaded: dict[ShareKey, ShareState] = {}
        for _, log in self.open_logs(partitions):
            for batch in log.batches():
                if not batch.header.is_control:
                    for entry in log.entries(batch, decode_share_entry):
                        self._replay(loaded, entry)
        self.states |= loaded
        return len(loaded)

    def _replay(self, states: dict[ShareKey, ShareState], entry: ShareEntry) -> None:
        key, value = entry
        if value is None:
            states.pop(key, None)
            self._updates.pop(key, None)
        elif isinstance(value, ShareState):
            states[key] = value
            self._updates[key] = 0
        elif key in states:
            states[key] = value.apply(states[key])
            self._updates[key] += 1

    def remove_all(self, *, clear: bool) -> None:
        """Remove all states and release the logs, which are cleared or kept."""
        self.states.clear()
        self._updates.clear()
        self._snapshot_ends.clear()
        self.release_logs(clear=clear)

    # ------------------------------------------------------------------------- operations

    def handle(self, operation: StateOperation, image: Image, now_ms: int) -> StateReply:
        """Carry out an operation. Its change is written when this returns."""
        key = operation.key
        problem = self._problem(operation, image)
        if problem is not None:
            return problem
        state = self.states.get(key)
        entry: ShareEntry | None = None
        if isinstance(operation, InitializeState):
            epoch = 0 if state is None else state.snapshot_epoch + 1
            start = operation.start_offset
            complete = UNCOUNTED if start == UNKNOWN_OFFSET else 0
            initial = ShareState(epoch, operation.state_epoch, 0, start, complete, now_ms, now_ms)
            entry = ShareEntry(key, initial)
        elif isinstance(operation, DeleteState):
            entry = None if state is None else ShareEntry(key, None)
        elif isinstance(operation, ReadState):
            assert state is not None
            if state.leader_epoch != operation.leader_epoch:
                entry = self._entry(
                    key,
                    state,
                    WriteState(
                        key,
                        state.state_epoch,
                        operation.leader_epoch,
                        state.start_offset,
                        state.complete_count,
                        (),
                    ),
                    now_ms,
                )
        elif isinstance(operation, WriteState):
            assert state is not None
            entry = self._entry(key, state, operation, now_ms)
        if entry is not None:
            error = self._write(entry, now_ms)
            if error is not ErrorCode.NONE:
                return StateReply(error)
        return StateReply(state=self.states.get(key))

    def _entry(
        self, key: ShareKey, state: ShareState, write: WriteState, now_ms: int
    ) -> ShareEntry:
        """A snapshot or an update with a change."""
        start = max(write.start_offset, state.start_offset)
        complete = write.complete_count
        if write.start_offset == state.start_offset:
            complete = max(complete, state.complete_count)
        elif write.start_offset < state.start_offset:
            complete = state.complete_count
        update = StateUpdate(
            state.snapshot_epoch,
            write.leader_epoch,
            start,
            complete,
            merged((), write.batches, start),
        )
        if self._updates[key] < self._updates_max:
            return ShareEntry(key, update)
        return ShareEntry(key, self._snapshot(update.apply(state), now_ms))

    def _snapshot(self, state: ShareState, now_ms: int) -> ShareState:
        epoch = state.snapshot_epoch + 1
        return state._replace(snapshot_epoch=epoch, create_ms=now_ms, write_ms=now_ms)

    def _write(self, entry: ShareEntry, now_ms: int) -> ErrorCode:
        try:
            log = self.log_of(entry.key.text)
            partition = self.partition_of(entry.key.text)
            if self._is_segment_full(log, partition):
                self._start_segment(log, partition, now_ms)
            log.append([entry.encode()], now_ms=now_ms)
        except LogError as error:
            _logger.warning("share partition %s could not be written: %s", entry.key.text, error)
            return _coordinator_error(error.code)
        self._replay(self.states, entry)
        return ErrorCode.NONE

    def _is_segment_full(self, log: StateLog, partition: int) -> bool:
        """Whether a segment was filled since the last snapshots; ``segment.bytes`` may be small."""
        active = log.log.segments.active
        since = self._snapshot_ends.get(partition, log.log.log_start_offset)
        return active.size >= STATE_LOG_SEGMENT_BYTES or active.base_offset > since

    def _start_segment(self, log: StateLog, partition: int, now_ms: int) -> None:
        """Start a segment with a snapshot of every state; delete what is before it."""
        entries = [
            ShareEntry(key, self._snapshot(state, now_ms))
            for key, state in self.states.items()
            if self.partition_of(key.text) == partition
        ]
        start = log.log.log_end_offset
        for entry in entries:
            log.append([entry.encode()], now_ms=now_ms)
            self._replay(self.states, entry)
        self._snapshot_ends[partition] = log.log.log_end_offset
        log.delete_before(start)

    # --------------------------------------------------------------------------- validation

    def _problem(self, operation: StateOperation, image: Image) -> StateReply | None:
        """Why an operation cannot be carried out, in Kafka's order; None if it can."""
        key = operation.key
        if not self.is_loaded(key.text):
            return StateReply(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        if key.partition < 0:
            text = "The partition id cannot be a negative number."
            return StateReply(ErrorCode.INVALID_REQUEST, text)
        fence = self._fence(operation, self.states.get(key))
        if fence is not None:
            return fence
        name = image.topic_names.get(key.topic_id)
        if name is None or image.partition(name, key.partition) is None:
            return StateReply(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return None

    def _fence(self, operation: StateOperation, state: ShareState | None) -> StateReply | None:
        if isinstance(operation, ReadState | WriteState) and operation.leader_epoch < 0:
            text = "The leader epoch cannot be a negative number."
            return StateReply(ErrorCode.INVALID_REQUEST, text)
        if isinstance(operation, InitializeState | WriteState) and operation.state_epoch < 0:
            text = "The state epoch cannot be a negative number."
            return StateReply(ErrorCode.INVALID_REQUEST, text)
        if isinstance(operation, ReadState | WriteState):
            if state is None:
                what = "Read" if isinstance(operation, ReadState) else "Write"
                text = f"{what} operation on uninitialized share partition not allowed."
                return StateReply(ErrorCode.INVALID_REQUEST, text)
            if state.leader_epoch > operation.leader_epoch:
                return StateReply(ErrorCode.FENCED_LEADER_EPOCH)
        if (
            isinstance(operation, InitializeState | WriteState)
            and state is not None
            and state.state_epoch > operation.state_epoch
        ):
            return StateReply(ErrorCode.FENCED_STATE_EPOCH)
        return None


def _coordinator_error(code: ErrorCode) -> ErrorCode:
    """The error of a state that could not be written."""
    if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR):
        return ErrorCode.NOT_COORDINATOR
    return code
