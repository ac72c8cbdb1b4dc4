"""Requests of the controller to an I/O worker: views of logs and groups, snapshots, work to do now.

Owns the answers to these requests, the translation of actions into events of groups and
transactions and calls of logs, and the order of a return to a snapshot: close everything, restore
the files, load everything from them. It must never know their purpose. Invariants: a worker answers
for the partitions and groups that it owns, and for no others, and an action changes only these; a
return that failed can be repeated, because the saved files stay as they are. Kafka's tools ask the
brokers themselves, and have no actions and no snapshots.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from minibroker.broker.groups.events import (
    AssignmentPlanned,
    GroupAction,
    MemberExpired,
    MemberFenced,
    RebalanceRequested,
)
from minibroker.broker.groups.membership import encode_assignment
from minibroker.broker.groups.offsets import OffsetTable
from minibroker.broker.log.errors import LogError
from minibroker.broker.process.messages import (
    ActionReply,
    ActionRequest,
    ApiPart,
    ApiReply,
    BatchAppended,
    CommittedOffsetsRequest,
    CompactRequest,
    DeleteGroups,
    GroupsRequest,
    LogsRequest,
    LogView,
    PartitionLogsRequest,
    PauseRequests,
    ReadRecords,
    RecordsAppend,
    RecordsRead,
    RestoreLogs,
    ResumeRequests,
    SaveLogs,
    SharePartitionsRequest,
)
from minibroker_protocol.errors import ErrorCode

if TYPE_CHECKING:
    from minibroker.broker.apis.fetch_watches import FetchWatches
    from minibroker.broker.groups.service import GroupService
    from minibroker.broker.log.replica_manager import (
        LogManager,
        Partition,
        ReplicaManager,
        SavedLogs,
    )
    from minibroker.broker.metadata.image import Image
    from minibroker.broker.process.log_cleaner import LogCleaner
    from minibroker.broker.shares.service import ShareService
    from minibroker.broker.transactions.service import TransactionService

SNAPSHOT_REQUESTS: Final = (PauseRequests, ResumeRequests, SaveLogs, RestoreLogs)


class ResetShares(Protocol):
    """Forgets the states of share partitions."""

    def __call__(self, *, keep_logs: bool) -> None: ...


class WorkerSnapshots:
    """Saves and restores the state of one worker."""

    def __init__(
        self,
        logs: LogManager,
        replicas: ReplicaManager,
        groups: GroupService,
        transactions: TransactionService,
        reset_shares: ResetShares,
        *,
        without_cleaning: Callable[[], AbstractAsyncContextManager[object]],
        load: Callable[[], None],
    ) -> None:
        """In the context of ``without_cleaning`` no log is cleaned; ``load`` opens all logs, and
        loads groups and transactions from them.
        """
        self._logs = logs
        self._replicas = replicas
        self._groups = groups
        self._transactions = transactions
        self._reset_shares = reset_shares
        self._without_cleaning = without_cleaning
        self._load = load

    async def handle(self, request: object) -> Any:
        """Handle a request of the controller."""
        if isinstance(request, PauseRequests):
            return await self._transactions.hold_markers()
        if isinstance(request, ResumeRequests):
            return self._transactions.release_markers()
        if isinstance(request, SaveLogs):
            return self._save(request)
        if isinstance(request, RestoreLogs):
            return await self._restore(request)
        raise TypeError(f"a worker cannot handle {type(request).__name__}")

    def _save(self, request: SaveLogs) -> SavedLogs | str:
        try:
            return self._logs.save(Path(request.directory), request.snapshot)
        except LogError as error:
            return error.text
        except OSError as error:
            return f"{error}"

    async def _restore(self, request: RestoreLogs) -> str:
        async with self._without_cleaning():
            self._groups.reset(keep_logs=True)
            self._transactions.reset(keep_logs=True)
            self._reset_shares(keep_logs=True)
            try:
                self._logs.restore(Path(request.directory), request.snapshot)
            except OSError as error:
                return f"{error}"
            finally:
                self._replicas.forget_all()
                self._load()
            self._logs.note_saved(request.snapshot)
        return ""


STEP_LOGS_MAX: Final = 20
"""Logs in one step of a worker's loop when many are asked for: each may have to be opened."""


class RequestedWorker(Protocol):
    """What the requests need of a worker."""

    groups: GroupService
    transactions: TransactionService
    shares: ShareService
    fetch_watches: FetchWatches
    cleaner: LogCleaner

    @property
    def image(self) -> Image: ...

    def wall_ms(self) -> int: ...

    def owns(self, topic: str, partition: int) -> bool: ...

    def partition(self, topic: str, index: int) -> Partition | None: ...

    def appended(self, topic: str, partition: int, size_bytes: int, records: int) -> None:
        """Count records that were appended, and wake the fetches that wait for them."""

    def execute(self, request: ApiPart) -> ApiReply | Awaitable[ApiReply]: ...

    async def sleep_real(self, seconds: float) -> None: ...

    def snapshots(self) -> WorkerSnapshots:
        """The worker's part of snapshots of the broker."""


OnLog: TypeAlias = Callable[[str, str, str, str], object]
"""Is called with what changed of a log, its name, and the offset before and after."""


async def act(worker: RequestedWorker, action: ActionRequest, on_log: OnLog) -> ActionReply:
    """Carry out an action; the reply says how much it has changed, or why nothing."""
    if action.group is not None and action.topic is not None:
        return await _act_on_shares(worker, action.group, action)
    if action.group is not None:
        taken = worker.groups.act(action.group, _group_event(action))
        return ActionReply(*taken)
    if action.transactional_id is not None:
        error = await worker.transactions.expire(action.transactional_id)
        if error is ErrorCode.NOT_COORDINATOR:  # Before the first transactional id.
            error = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        text = f"{action.transactional_id!r} has no transaction that could be aborted"
        is_done = error is ErrorCode.NONE
        return ActionReply(error, "" if is_done else text, int(is_done))
    try:
        return ActionReply(affected=_act_on_logs(worker, action, on_log))
    except LogError as error:
        return ActionReply(error.code, error.text)


def _group_event(action: ActionRequest) -> GroupAction:
    if action.action == "rebalance":
        return RebalanceRequested()
    if action.action == "assign":
        given = action.assignment or {}
        return AssignmentPlanned(
            {member: encode_assignment(topics) for member, topics in given.items()}
        )
    kind = MemberExpired if action.action == "expire_member" else MemberFenced
    return kind(action.member or "")


def _act_on_logs(worker: RequestedWorker, action: ActionRequest, on_log: OnLog) -> int:
    """Roll segments, or drop expired ones; return their number."""
    affected = 0
    for index, partition in _owned(worker, action):
        log, name = partition.log, f"{action.topic}-{index}"
        if action.action == "roll":
            before = log.segments.active.base_offset
            log.roll(now_ms=worker.wall_ms())
            after = log.segments.active.base_offset
            if before != after:
                affected += 1
                on_log("active_segment", name, str(before), str(after))
            continue
        before = log.log_start_offset
        dropped = log.apply_retention(now_ms=worker.wall_ms())
        if dropped:
            on_log("log_start", name, str(before), str(log.log_start_offset))
            worker.fetch_watches.changed(action.topic or "", index)
        affected += dropped
    return affected


async def _act_on_shares(
    worker: RequestedWorker, group_id: str, action: ActionRequest
) -> ActionReply:
    """Let locks expire, or set delivery counts; return the number of records."""
    affected, shares, offsets = 0, worker.shares, (action.first_offset, action.last_offset)
    for index, _ in list(_owned(worker, action)):
        key, member = (group_id, action.topic or "", index), action.member
        if action.action == "expire_acquisition":
            error, count = await shares.expire_acquisition(key, member, offsets)
        else:
            error, count = await shares.set_delivery_count(
                key, action.delivery_count, member, offsets
            )
        if error is not ErrorCode.NONE:
            return ActionReply(error, f"{action.topic}-{index} could not be stored", affected)
        affected += count
    return ActionReply(affected=affected)


def _owned(worker: RequestedWorker, action: ActionRequest) -> Iterator[tuple[int, Partition]]:
    name = action.topic or ""
    topic = worker.image.topics.get(name)
    for index in range(len(topic.partitions) if topic else 0):
        if action.partition in (None, index) and worker.owns(name, index):
            partition = worker.partition(name, index)
            if partition is not None:
                yield index, partition


def append_records(worker: RequestedWorker, request: RecordsAppend) -> BatchAppended:
    """Append a batch as the leader would append a producer's."""
    try:
        partition = worker.partition(request.topic, request.partition)
        if partition is None:
            return BatchAppended(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the partition is not here")
        appended = partition.append_as_leader(request.batch, now_ms=worker.wall_ms())
    except LogError as error:
        return BatchAppended(error.code, error.text)
    count = appended.last_offset - appended.base_offset + 1
    worker.appended(request.topic, request.partition, len(request.batch), count)
    return BatchAppended(base_offset=appended.base_offset)


def read_records(worker: RequestedWorker, request: RecordsRead) -> dict[int, ReadRecords]:
    """Read partitions in the order of the request, until the bytes are used up.

    An offset before the start of a log is that start. A partition that can't be read is omitted.
    """
    found: dict[int, ReadRecords] = {}
    left = request.max_bytes
    for index, wanted in request.offsets.items():
        with suppress(LogError, OSError):
            partition = worker.partition(request.topic, index)
            if partition is not None:
                is_first = left == request.max_bytes
                read = _read(partition, wanted, max(left, 0), request.committed, is_first=is_first)
                found[index] = read
                left -= len(read.batches)
    return found


def _read(
    partition: Partition, wanted: int, max_bytes: int, committed: bool, *, is_first: bool
) -> ReadRecords:
    end = partition.last_stable_offset if committed else partition.high_watermark
    offset = max(wanted, partition.log.log_start_offset)
    if offset >= end or not (is_first or max_bytes):
        return ReadRecords(offset, b"", end)
    if committed:
        records, transactions = partition.read_committed(offset, max_bytes, min_one=is_first)
    else:
        records, transactions = partition.read(offset, max_bytes, min_one=is_first), []
    aborted = tuple(
        (each.producer_id, each.first_offset, each.last_offset) for each in transactions
    )
    return ReadRecords(offset, b"" if records is None else records.load(), end, aborted)


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
        if isinstance(request, ApiPart):
            return worker.execute(request)
        if isinstance(request, LogsRequest | PartitionLogsRequest | RecordsAppend | RecordsRead):
            return self._handle_logs(request)
        if isinstance(request, CommittedOffsetsRequest):
            return self._committed_offsets(request.offsets_max)
        if isinstance(request, GroupsRequest | SharePartitionsRequest):
            return self._groups(request)
        if isinstance(request, ActionRequest):
            return act(worker, request, self._on_log)
        if isinstance(request, DeleteGroups):
            return worker.groups.drop_groups(request.prefix)
        if isinstance(request, SNAPSHOT_REQUESTS):
            return worker.snapshots().handle(request)
        raise TypeError(f"a worker cannot handle {type(request).__name__}")

    def _handle_logs(
        self, request: LogsRequest | PartitionLogsRequest | RecordsAppend | RecordsRead
    ) -> object:
        if isinstance(request, RecordsAppend):
            return append_records(self._worker, request)
        if isinstance(request, RecordsRead):
            return read_records(self._worker, request)
        if isinstance(request, PartitionLogsRequest):
            return self._partition_logs(request.partitions)
        return self._log_views(request.topic)

    def _groups(self, request: GroupsRequest | SharePartitionsRequest) -> Any:
        groups, group_id = self._worker.groups, request.group_id
        if isinstance(request, SharePartitionsRequest):
            return tuple(self._worker.shares.views(group_id))
        if group_id is None:
            return groups.list_groups()
        return (
            groups.describe(group_id, full=True)
            or groups.describe_consumer_group(group_id)
            or groups.describe_share_group(group_id)
            or groups.describe_streams_group(group_id)
        )

    def _log_views(self, topic: str) -> dict[int, LogView]:
        known = self._worker.image.topics.get(topic)
        views: dict[int, LogView] = {}
        for index in range(len(known.partitions) if known else 0):
            view = self._log_view(topic, index)
            if view is not None:
                views[index] = view
        return views

    async def _partition_logs(
        self, partitions: Iterable[tuple[str, int]]
    ) -> dict[tuple[str, int], LogView]:
        views: dict[tuple[str, int], LogView] = {}
        for number, (topic, index) in enumerate(partitions):
            view = self._log_view(topic, index)
            if view is not None:
                views[topic, index] = view
            if number % STEP_LOGS_MAX == 0:
                await self._worker.sleep_real(0)
        return views

    def _log_view(self, topic: str, index: int) -> LogView | None:
        """The view of a log; None if it is not here, or can't be opened."""
        worker = self._worker
        known = worker.image.topics.get(topic)
        if known is None or index >= len(known.partitions) or not worker.owns(topic, index):
            return None
        with suppress(LogError):
            partition = worker.partition(topic, index)
            if partition is not None:
                log = partition.log
                return LogView(
                    log.log_start_offset, partition.high_watermark, log.log_end_offset, log.size
                )
        return None

    def _committed_offsets(self, offsets_max: int) -> dict[str, dict[tuple[str, int], int]]:
        groups, found = self._worker.groups, {}
        for group in groups.list_groups():
            offsets_max -= group.offsets
            if offsets_max < 0:
                break
            offsets = groups.committed(group.group_id)
            if isinstance(offsets, OffsetTable):
                found[group.group_id] = {
                    (topic, index): committed.offset for topic, index, committed in offsets
                }
        return found
