"""Defects that are planted into the broker, to prove that the simulation would find them.

Owns one small wrong change of the broker for each promise. It must never be used outside of tests.
Invariant: a defect is in the broker only within ``planted``, and depends on calls alone, so that a
run with it can be repeated.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, Final, NamedTuple

from minibroker.broker.groups.classic_group import ClassicGroup
from minibroker.broker.groups.consumer_change import MemberChange
from minibroker.broker.groups.consumer_state import ConsumerGroupData
from minibroker.broker.groups.events import Tasks
from minibroker.broker.groups.group_manager import GroupManager
from minibroker.broker.groups.offsets import OffsetTable
from minibroker.broker.groups.streams_change import StreamsContext
from minibroker.broker.groups.streams_description import KeptDescription
from minibroker.broker.groups.streams_member import TaskReconciliation
from minibroker.broker.log.batch_filter import CleanedTransactions
from minibroker.broker.log.log import Appended, Log
from minibroker.broker.log.producers import NO_OFFSET, ProducerTable, UnstableTransactions
from minibroker.broker.shares.service import ShareService
from minibroker.broker.shares.share_partition import (
    SharePartition,
    Transition,
    _transition,
)
from minibroker.broker.shares.state import RecordState
from minibroker.broker.shares.state_store import StateOperation, StateReply, WriteState
from minibroker.broker.transactions.service import TransactionService
from minibroker.broker.transactions.state_machine import TransactionManager
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.records import Record, build_batch, iter_records, parse_batch_header

BATCHES: Final = 10
"""One of so many batches of producers is lost, doubled or reordered."""


class Defect(NamedTuple):
    """A function of the broker, and a wrong one that takes its place."""

    owner: Any
    name: str
    function: Any


_clean = CleanedTransactions.__init__
_load = TransactionManager.load
_load_service = TransactionService.load
_write = Log._write
_check = ProducerTable.check
_restore = GroupManager._restore
_generation_error = ClassicGroup._generation_error
_sync_result = ClassicGroup._sync_result
_plan_target = MemberChange.plan_target
_keep = KeptDescription.keep
_take = SharePartition._take
_acknowledge = SharePartition.acknowledge
_request = ShareService.request


def _clean_without_aborted(self: CleanedTransactions, _: Any = ()) -> None:
    _clean(self, ())


def _load_without_prepared(self: TransactionManager, partitions: Any) -> list[str]:
    loaded = _load(self, partitions)
    for transactional_id in loaded:
        if self.transactions[transactional_id].is_prepared:
            del self.transactions[transactional_id]
    return [each for each in loaded if each in self.transactions]


def _load_without_markers(self: TransactionService, partitions: Any) -> int:
    return len(self._manager.load(partitions))


def _check_without_duplicates(self: ProducerTable, *arguments: Any) -> None:
    _check(self, *arguments)


def _update_without_open(self: UnstableTransactions) -> None:
    self.first_unstable_offset = NO_OFFSET


def _restore_without_offsets(self: GroupManager, group_id: str, stored: Any, time: Any) -> Any:
    stored.offsets = OffsetTable()
    return _restore(self, group_id, stored, time)


def _ignore_generation(group: ClassicGroup, event: Any) -> ErrorCode:
    error = _generation_error(group, event)
    return ErrorCode.NONE if error is ErrorCode.ILLEGAL_GENERATION else error


def _sync_result_of_first(self: ClassicGroup, _: Any) -> Any:
    return _sync_result(self, next(iter(self.membership)))


def _current_target(self: MemberChange) -> Any:
    return self.data.assignment_epoch, self.data.target_of(self.after)


def _target_of_all(self: MemberChange) -> Any:
    epoch, target = _plan_target(self)
    self.data.is_free = lambda *_: True  # type: ignore[method-assign]
    everything = {
        topic.topic_id: range(len(topic.partitions))
        for name, topic in self.image.topics.items()
        if name in self.data.topics
    }
    return epoch, everything if target else target


def _is_free_for_all(*_: Any) -> bool:
    return True


def _compute_former_targets(self: StreamsContext, members: Any, epoch: int, _: Any) -> Any:
    targets = {each: self.data.targets.get(each, Tasks()) for each in members}
    return targets, [self.data.target_epoch_record(epoch, self.wall_ms)], "has no new target"


def _give_tasks_of_others(self: TaskReconciliation, _: Any, missing: Any) -> Any:
    return missing


def _keep_nothing(self: KeptDescription, epoch: int, described: Any) -> None:
    _keep(self, epoch, type(described)())


def _take_without_lock(
    self: SharePartition, first: int, last: int, member: str, deadline: float
) -> Any:
    acquired = _take(self, first, last, member, deadline)
    for run in self._between(first, last):
        run.state = RecordState.AVAILABLE
    return acquired


def _acknowledge_all(self: SharePartition, *arguments: Any) -> Transition:
    _acknowledge(self, *arguments)
    for run in self._runs:
        run.target = RecordState.ACKNOWLEDGED
    return _transition(self._runs)


async def _request_reads(self: ShareService, operation: StateOperation) -> StateReply:
    is_write = isinstance(operation, WriteState)
    return StateReply(ErrorCode.NONE) if is_write else await _request(self, operation)


def _wait_for_members(self: ClassicGroup) -> None:
    self._join_deadline = None


def _is_chosen(number: count[int], prepared: Any, marker: Any) -> bool:
    """Whether a batch is a producer's, and its turn has come."""
    return marker is None and prepared.header.producer_id >= 0 and not next(number) % BATCHES


def _losing(number: count[int]) -> Any:
    def write(self: Log, prepared: Any, now_ms: int, epoch: int, marker: Any = None) -> Any:
        if not _is_chosen(number, prepared, marker):
            return _write(self, prepared, now_ms, epoch, marker)
        first = self.segments.active.next_offset
        last = first + prepared.header.last_offset_delta
        return Appended(first, last, -1, self.log_start_offset, duplicate=False)

    return write


def _doubling(number: count[int]) -> Any:
    def write(self: Log, prepared: Any, now_ms: int, epoch: int, marker: Any = None) -> Any:
        appended = _write(self, prepared, now_ms, epoch, marker)
        if _is_chosen(number, prepared, marker):
            _write(self, prepared, now_ms, epoch, marker)
        return appended

    return write


def _reordering(number: count[int]) -> Any:
    def write(self: Log, prepared: Any, now_ms: int, epoch: int, marker: Any = None) -> Any:
        if _is_chosen(number, prepared, marker):
            header = prepared.header
            found = [
                Record(0, each.timestamp, each.key, each.value)
                for each in iter_records(bytes(prepared.records))
            ]
            records = build_batch(
                found[::-1],
                producer_id=header.producer_id,
                producer_epoch=header.producer_epoch,
                base_sequence=header.base_sequence,
                transactional=header.is_transactional,
            )
            prepared = prepared._replace(records=records, header=parse_batch_header(records))
        return _write(self, prepared, now_ms, epoch, marker)

    return write


DEFECTS: Final = {
    "the cleaner takes aborted records for committed": lambda: Defect(
        CleanedTransactions, "__init__", _clean_without_aborted
    ),
    "the coordinator forgets prepared transactions": lambda: Defect(
        TransactionManager, "load", _load_without_prepared
    ),
    "the coordinator does not send markers after a restart": lambda: Defect(
        TransactionService, "load", _load_without_markers
    ),
    "a batch is lost": lambda: Defect(Log, "_write", _losing(count(1))),
    "a batch is doubled": lambda: Defect(Log, "_write", _doubling(count(1))),
    "records of a batch are reordered": lambda: Defect(Log, "_write", _reordering(count(1))),
    "a duplicate sequence is not recognized": lambda: Defect(
        ProducerTable, "check", _check_without_duplicates
    ),
    "the last stable offset ignores open transactions": lambda: Defect(
        UnstableTransactions, "_update", _update_without_open
    ),
    "the coordinator forgets committed offsets": lambda: Defect(
        GroupManager, "_restore", _restore_without_offsets
    ),
    "a commit of an older generation is accepted": lambda: Defect(
        ClassicGroup, "_generation_error", _ignore_generation
    ),
    "all members get one assignment": lambda: Defect(
        ClassicGroup, "_sync_result", _sync_result_of_first
    ),
    "the target of a consumer group is never computed": lambda: Defect(
        MemberChange, "plan_target", _current_target
    ),
    "a partition has every member of a consumer group": lambda: Defect(
        MemberChange, "plan_target", _target_of_all
    ),
    "a partition is given while another member has it": lambda: Defect(
        ConsumerGroupData, "is_free", _is_free_for_all
    ),
    "the target of a streams group is never computed": lambda: Defect(
        StreamsContext, "compute_targets", _compute_former_targets
    ),
    "a task is given while another member has it": lambda: Defect(
        TaskReconciliation, "_free", _give_tasks_of_others
    ),
    "the description of a topology is lost": lambda: Defect(KeptDescription, "keep", _keep_nothing),
    "records are acquired without a lock": lambda: Defect(
        SharePartition, "_take", _take_without_lock
    ),
    "an acknowledgement accepts the records of all members": lambda: Defect(
        SharePartition, "acknowledge", _acknowledge_all
    ),
    "acknowledgements are not stored": lambda: Defect(ShareService, "request", _request_reads),
    "a rebalance waits for lost members without end": lambda: Defect(
        ClassicGroup, "_join_timed_out", _wait_for_members
    ),
}
"""Factories of defects by name; each run needs a new one."""
SHARE_DEFECTS: Final = frozenset(
    {
        "records are acquired without a lock",
        "an acknowledgement accepts the records of all members",
        "acknowledgements are not stored",
    }
)
"""Those that only runs with a share group can find."""
STREAMS_DEFECTS: Final = frozenset(
    {
        "the target of a streams group is never computed",
        "a task is given while another member has it",
        "the description of a topology is lost",
    }
)
"""Those that only runs with a streams group can find."""


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Within this, the broker has a defect."""
    defect = DEFECTS[name]()
    before = defect.owner.__dict__[defect.name]
    setattr(defect.owner, defect.name, defect.function)
    try:
        yield
    finally:
        setattr(defect.owner, defect.name, before)
