"""The I/O worker role: owns partitions and groups, and runs ``execute`` for them.

Owns the state that the hash assigns to it (``metadata.image``): logs, groups, and a block of
producer ids. It must never know a client's socket. Parts of requests arrive on one link per
processor and are executed one after the other, so no state needs a lock; only what has to wait
becomes a task. Invariant: what it has answered is in its logs, so a restarted worker continues from
there. Kafka's ``KafkaRequestHandler``, ``ReplicaManager`` and ``GroupCoordinator``.
"""

from __future__ import annotations

import inspect
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import trio

from minibroker.broker.apis.base import Owner, Waiter
from minibroker.broker.apis.fetch_watches import FetchWatches
from minibroker.broker.apis.registry import APIS
from minibroker.broker.groups.group import GroupLimits
from minibroker.broker.groups.service import GroupService
from minibroker.broker.log.errors import LogError
from minibroker.broker.log.log import Log
from minibroker.broker.log.producers import TransactionMarker
from minibroker.broker.log.replica_manager import LogManager, Partition, ReplicaManager
from minibroker.broker.log.segment import SegmentFiles, sync_files
from minibroker.broker.log.validation import Origin
from minibroker.broker.metadata.features import TRANSACTION_VERSION, level
from minibroker.broker.metadata.image import (
    BROKER,
    GROUP,
    OFFSETS_TOPIC,
    SHARE_STATE_TOPIC,
    TOPIC,
    TRANSACTION_STATE_TOPIC,
    ChangeRejected,
    Image,
    partition_owner,
)
from minibroker.broker.metrics.conditions import ConditionKind
from minibroker.broker.metrics.definitions import (
    GROUP_MEMBERS,
    GROUP_REBALANCES,
    GROUPS,
    LOG_DIR_SIZE,
    SHARE_ACKNOWLEDGED,
    SHARE_DEAD_LETTERS,
    SHARE_EXPIRED,
    SHARE_IN_FLIGHT,
)
from minibroker.broker.metrics.log import EventLog
from minibroker.broker.metrics.metrics import CommitFigures, LogFigures, Series
from minibroker.broker.process.environment import Environment, note_state
from minibroker.broker.process.log_cleaner import LogCleaner
from minibroker.broker.process.messages import (
    ActivityAppend,
    ApiPart,
    ApiReply,
    ProducerIdsRequest,
    QueueCreation,
    RecordsAppend,
    TailRequest,
)
from minibroker.broker.process.metadata_client import MetadataClient
from minibroker.broker.process.storage_watch import StorageWatch, pauses_s
from minibroker.broker.process.worker_links import ConnectedRoles, WorkerLinks
from minibroker.broker.roles.worker_requests import (
    ControllerRequests,
    WorkerSnapshots,
    append_records,
)
from minibroker.broker.settings.definitions import (
    LOG_RETENTION_CHECK_INTERVAL_MS,
    MAX_INCREMENTAL_FETCH_SESSION_CACHE_SLOTS,
    NODE_ID,
    OFFSETS_TOPIC_NUM_PARTITIONS,
    PRODUCER_ID_EXPIRATION_CHECK_INTERVAL_MS,
    SHARE_COORDINATOR_SNAPSHOT_UPDATE_RECORDS_PER_SNAPSHOT,
    SHARE_COORDINATOR_STATE_TOPIC_NUM_PARTITIONS,
    TRANSACTION_STATE_LOG_NUM_PARTITIONS,
)
from minibroker.broker.settings.dynamic import DynamicSettings
from minibroker.broker.shares.dead_letters import CREATED_CONFIG
from minibroker.broker.shares.letter_writer import QueueEnvironment, WriteOutcome
from minibroker.broker.shares.service import ShareEnvironment, ShareService
from minibroker.broker.shares.share_partition import AcknowledgeType
from minibroker.broker.shares.state_store import ShareStateStore, StateOperation, StateReply
from minibroker.broker.transactions.service import (
    MarkersReply,
    TransactionEnvironment,
    TransactionLimits,
    TransactionService,
)
from minibroker.runtime.arena import RecordsRef
from minibroker.runtime.rpc import PeerLost
from minibroker.runtime.system import descriptors_max
from minibroker.runtime.worktime import Account, WorkThread
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.registry import ApiKey

Key = TypeVar("Key", bound=Hashable)


class Purgatory(Generic[Key]):
    """Requests that wait until a log has grown, by the keys that they wait for.

    A waiter is woken when the first of its keys is, is registered at most once for each, and is
    always removed at its end. Kafka's ``DelayedOperationPurgatory``.
    """

    def __init__(self) -> None:
        self._waiting: dict[Key, dict[Waiter, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        """Number of waiters."""
        return self._count

    def wake(self, key: Key) -> None:
        """Wake all waiters of ``key``."""
        waiting = self._waiting.get(key)
        if waiting:
            for waiter in waiting:
                waiter.set()

    def wake_all(self) -> None:
        """Wake all waiters, so that they check again."""
        for waiting in self._waiting.values():
            for waiter in waiting:
                waiter.set()

    def add(self, keys: Collection[Key], waiter: Waiter) -> None:
        """Wake a waiter when one of ``keys`` is woken, until it is removed."""
        for key in keys:
            self._waiting.setdefault(key, {})[waiter] = None
        self._count += 1

    def remove(self, keys: Collection[Key], waiter: Waiter) -> None:
        """Remove a waiter that was added with these keys."""
        self._count -= 1
        for key in keys:
            waiting = self._waiting[key]
            del waiting[waiter]
            if not waiting:
                del self._waiting[key]

    async def wait(self, keys: Collection[Key], deadline: float) -> None:
        """Wait until one of ``keys`` is woken or the deadline (seconds) has passed."""
        event = trio.Event()
        self.add(keys, event)
        try:
            with trio.move_on_at(deadline):
                await event.wait()
        finally:
            self.remove(keys, event)


T = TypeVar("T")

SEGMENT_FILES_SHARE: Final = 2
"""One in so many descriptors of a worker may be an active segment; the others are for channels and
for files that are open briefly.
"""


async def io_worker(env: Environment) -> None:
    """Run until ``env.stopping``, then close the logs."""
    await _Worker(env).run()


class _Worker:
    """Implements ``apis.base.WorkerScope``."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._log = EventLog(env.name)
        self.index = env.index
        self.settings = env.settings
        self.random = env.random
        self.storage = StorageWatch(env, self._log, self._storage_changed)
        self.segment_files = SegmentFiles(max(1, descriptors_max() // SEGMENT_FILES_SHARE))
        self._logs = LogManager(
            env.data_dir,
            env.settings,
            self.owns,
            self.segment_files,
            on_failure=self.storage.failed,
            on_truncation=self.storage.health.truncated,
        )
        self._purgatory: Purgatory[tuple[str, int] | int] = Purgatory()
        self.fetch_watches = FetchWatches(
            env.settings[MAX_INCREMENTAL_FETCH_SESSION_CACHE_SLOTS], self._purgatory.wake
        )
        self._replicas = ReplicaManager(
            self._logs, env.settings[NODE_ID], self.fetch_watches.changed
        )
        self._producer_ids = range(0)
        self._work_thread = WorkThread(env.work_time)
        self._links = WorkerLinks(env)
        self.metadata_client = MetadataClient(
            env,
            on_image=self._on_image,
            on_request=ControllerRequests(self, partial(note_state, env)).handle,
            configs=(TOPIC, BROKER, GROUP),
        )
        self.groups = GroupService(
            GroupLimits.from_settings(env.settings),
            partitions=env.settings[OFFSETS_TOPIC_NUM_PARTITIONS],
            open_partition=partial(self._internal_partition, OFFSETS_TOPIC),
            now=env.clock.now,
            wall_ms=env.clock.wall_ms,
            random=env.random,
            hold_points=env.hold_points,
            image=lambda: self.image,
        )
        self.transactions = TransactionService(
            TransactionLimits.from_settings(env.settings),
            partitions=env.settings[TRANSACTION_STATE_LOG_NUM_PARTITIONS],
            environment=self._transaction_environment(),
        )
        self.states = ShareStateStore(
            partitions=env.settings[SHARE_COORDINATOR_STATE_TOPIC_NUM_PARTITIONS],
            updates_max=env.settings[SHARE_COORDINATOR_SNAPSHOT_UPDATE_RECORDS_PER_SNAPSHOT],
            open_partition=partial(self._internal_partition, SHARE_STATE_TOPIC),
        )
        self.shares = ShareService(self._share_environment())
        self._connected = ConnectedRoles(env, self._handle_request, self.shares.end_sessions)
        self._flusher = LogFlusher(env, self._logs)
        self.cleaner = LogCleaner(env, self._logs, self._flusher.flush, self)
        self._watch_metrics()
        self.services: list[Callable[[], Awaitable[None]]] = []
        """Tasks of observers that run as long as this role."""
        env.observe(self)

    def _share_environment(self) -> ShareEnvironment:
        env = self._env
        return ShareEnvironment(
            settings=env.settings,
            image=lambda: self.image,
            now=env.clock.now,
            wall_ms=env.clock.wall_ms,
            partition=self.partition,
            request_state=self._request_state,
            watch=self._purgatory.add,
            unwatch=self._purgatory.remove,
            sleep_real=env.clock.sleep_real,
            queues=self._queue_environment(),
        )

    def _queue_environment(self) -> QueueEnvironment:
        env, newest = self._env, DynamicSettings(self.settings)
        return QueueEnvironment(
            settings=lambda: newest.of(self.image.configs),
            image=lambda: self.image,
            now=env.clock.now,
            wall_ms=env.clock.wall_ms,
            random=env.random.random,
            partition=self.partition,
            append=self._append_letters,
            create_queue=self._create_queue,
            on_state=partial(note_state, env),
        )

    async def _append_letters(self, topic: str, index: int, batch: bytes) -> WriteOutcome:
        request, owner = RecordsAppend(topic, index, batch), self.partition_owner(topic, index)
        if owner == self.index:
            return WriteOutcome(*append_records(self, request)[:2])
        try:
            return WriteOutcome(*(await self._links.request(owner, request))[:2])
        except PeerLost as lost:
            return WriteOutcome(ErrorCode.NETWORK_EXCEPTION, str(lost))

    async def _create_queue(self, topic: str) -> WriteOutcome:
        try:
            rejection: ChangeRejected | None = await self.metadata_client.request(
                QueueCreation(topic, CREATED_CONFIG)
            )
        except PeerLost as lost:
            return WriteOutcome(ErrorCode.NETWORK_EXCEPTION, str(lost))
        return WriteOutcome() if rejection is None else WriteOutcome(*rejection)

    def _watch_metrics(self) -> None:
        metrics = self._env.metrics
        metrics.watch_purgatory("fetch", lambda: len(self._purgatory))
        metrics.watch_logs(self._figures)
        metrics.watch_commits(self._commit_figures)
        metrics.watch_gauges(self._disk_gauges)
        metrics.watch_gauges(self._group_gauges)
        metrics.watch_gauges(self._share_gauges)
        metrics.watch_busy(self._env.busy_ns)

    def _transaction_environment(self) -> TransactionEnvironment:
        env = self._env
        return TransactionEnvironment(
            worker=env.index,
            coordinates=self._coordinates,
            open_partition=partial(self._internal_partition, TRANSACTION_STATE_TOPIC),
            transaction_version=lambda: level(self.image.features, TRANSACTION_VERSION),
            new_producer_id=self.next_producer_id,
            owner_of=self.partition_owner,
            write_markers=self._write_markers,
            wall_ms=env.clock.wall_ms,
            sleep_real=env.clock.sleep_real,
            hold_points=env.hold_points,
        )

    # What executing APIs may use --------------------------------------------------------------

    @property
    def image(self) -> Image:
        return self.metadata_client.image

    def now(self) -> float:
        return self._env.clock.now()

    def wall_ms(self) -> int:
        return self._env.clock.wall_ms()

    def records(self, ref: RecordsRef) -> memoryview:
        return ref if isinstance(ref, memoryview) else self._env.arena.view(ref)

    def open_partition(self, topic: str, index: int) -> Partition | None:
        return self._replicas.open_partition(topic, index)

    def partition(self, topic: str, index: int) -> Partition | None:
        found = self._replicas.open_partition(topic, index)
        if found is not None:  # Almost always; then the time is not needed.
            return found
        try:
            return self._replicas.get(self.image, topic, index, now_ms=self.wall_ms())
        except LogError as error:
            if not self.storage.health.is_failing:  # Logged once.
                why = error.text
                self._log.error("a log can't be opened", topic=topic, partition=index, reason=why)
            raise

    @property
    def data_dir(self) -> Path:
        return self._env.data_dir

    def log_size(self, topic: str, index: int) -> int:
        return self._logs.size(topic, index)

    def appended(self, topic: str, partition: int, size_bytes: int, records: int) -> None:
        self._env.metrics.produced(topic, size_bytes, records)
        self._purgatory.wake((topic, partition))

    def partition_owner(self, topic: str, partition: int) -> Owner:
        return partition_owner(topic, partition, self._env.workers)

    async def request_owner(self, owner: Owner, key: ApiKey, part: Any) -> Any:
        if owner != self.index:
            return await self._links.request(owner, ApiPart(key, part))
        api = APIS[key]
        assert api.execute is not None
        reply = api.execute(self, part)
        return await reply if inspect.isawaitable(reply) else reply

    def handle_state(self, operation: StateOperation) -> StateReply:
        return self.states.handle(operation, self.image, self.wall_ms())

    async def request_state(self, operation: StateOperation) -> StateReply:
        return await self.shares.request(operation)

    def _request_state(self, operation: StateOperation) -> StateReply | Awaitable[StateReply]:
        index = self.states.partition_of(operation.key.text)
        owner = self.partition_owner(SHARE_STATE_TOPIC, index)
        if owner == self.index:
            return self.handle_state(operation)
        return self._request_remote_state(owner, operation)

    async def _request_remote_state(self, owner: Owner, operation: StateOperation) -> StateReply:
        replies = await self.request_owner(owner, ApiKey.READ_SHARE_GROUP_STATE, (operation,))
        reply: StateReply = replies[operation.key]
        return reply

    async def sleep_real(self, seconds: float) -> None:
        await self._env.clock.sleep_real(seconds)

    async def run_in_thread(self, work: Callable[[], T]) -> T:
        return await self._work_thread.run(work)

    async def wait_fetch_watch(self, session_id: int, deadline: float) -> None:
        await self._purgatory.wait((session_id,), deadline)

    async def wait_appended(self, partitions: frozenset[tuple[str, int]], deadline: float) -> None:
        await self._purgatory.wait(partitions, deadline)

    def watch_appended(self, partitions: Collection[tuple[str, int]], waiter: Waiter) -> None:
        self._purgatory.add(partitions, waiter)

    def unwatch_appended(self, partitions: Collection[tuple[str, int]], waiter: Waiter) -> None:
        self._purgatory.remove(partitions, waiter)

    async def next_producer_id(self) -> int | None:
        while not self._producer_ids:
            block = None
            with suppress(PeerLost):  # The controller is being restarted.
                block = await self.metadata_client.request(ProducerIdsRequest())
            if block is None:
                return None
            self._producer_ids = range(block[0], sum(block))
        taken, self._producer_ids = self._producer_ids[0], self._producer_ids[1:]
        return taken

    # Life ---------------------------------------------------------------------------------------

    async def run(self) -> None:
        try:
            await self._serve()
        except BaseException:
            self._logs.abandon()  # As after a kill: the next start recovers.
            raise
        for error in self._logs.close(now_ms=self.wall_ms()):
            self._log.error("a log was not closed cleanly and will be recovered", reason=error)

    async def _serve(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.metadata_client.run)
            for service in self.services:
                nursery.start_soon(service)
            await self.metadata_client.wait_image()
            self._load()
            self.groups.on_state = self.transactions.on_state = partial(note_state, self._env)
            if self._env.local_worker is not None:
                self._env.local_worker.serve(self, self.execute)
            await self._run_services(nursery)
            nursery.cancel_scope.cancel()

    def _load(self) -> None:
        """Open all logs, and load groups and transactions from them."""
        found = self._logs.recover(self.image, now_ms=self.wall_ms())
        self.groups.load([number for topic, number in found if topic == OFFSETS_TOPIC])
        self.transactions.load(
            [number for topic, number in found if topic == TRANSACTION_STATE_TOPIC]
        )
        self.states.load([number for topic, number in found if topic == SHARE_STATE_TOPIC])

    def snapshots(self) -> WorkerSnapshots:
        """This worker's part of snapshots of the broker."""
        return WorkerSnapshots(
            self._logs,
            self._replicas,
            self.groups,
            self.transactions,
            self._reset_shares,
            without_cleaning=self.cleaner.paused,
            load=self._load,
        )

    def _reset_shares(self, *, keep_logs: bool) -> None:
        """Forget the states and the records in flight of share partitions."""
        self.states.remove_all(clear=not keep_logs)
        self.shares.forget_all()

    async def _run_services(self, nursery: trio.Nursery) -> None:
        """Run the services of this role until ``env.stopping``."""
        nursery.start_soon(self.groups.run)
        nursery.start_soon(self.transactions.run)
        nursery.start_soon(self.shares.run)
        retention_s = self.settings[LOG_RETENTION_CHECK_INTERVAL_MS] / 1000
        nursery.start_soon(self._repeat, retention_s, self._apply_retention)
        expiration_s = self.settings[PRODUCER_ID_EXPIRATION_CHECK_INTERVAL_MS] / 1000
        expire = self._logs.expire_producers
        nursery.start_soon(self._repeat, expiration_s, lambda: expire(now_ms=self.wall_ms()))
        nursery.start_soon(self._flusher.run)
        nursery.start_soon(self.cleaner.run)
        nursery.start_soon(self.storage.run)
        for service, topic, what in (
            (self.groups, OFFSETS_TOPIC, "groups"),
            (self.transactions, TRANSACTION_STATE_TOPIC, "transactions"),
            (self.states, SHARE_STATE_TOPIC, "share_partitions"),
        ):
            nursery.start_soon(self._load_remaining, service, topic, what)
        nursery.start_soon(self._connected.run)
        nursery.start_soon(self._links.run)
        self._env.ready()
        await self._env.stopping.wait()
        await self._connected.wait_disconnected()

    async def _load_remaining(
        self,
        service: GroupService | TransactionService | ShareStateStore,
        topic: str,
        what: str,
    ) -> None:
        """Load what is stored in logs that could not be opened, as soon as they can be."""
        conditions, kind = self._env.conditions, ConditionKind(f"{what}_not_loaded")
        for pause_s in pauses_s():
            unloaded = dict(service.unloaded)
            if not unloaded:
                break
            why = next(iter(unloaded.values()))
            text = f"{what} of {len(unloaded)} partitions of {topic} must wait: {why}"
            if conditions.set(kind, topic, text, self.wall_ms()):
                self._log.error(f"{what} can't be loaded; retrying", reason=text)
            await self._env.clock.sleep_real(pause_s)
            service.load(unloaded)
        if conditions.clear(kind, topic):
            self._log.warning(f"all {what} are loaded")

    def owns(self, topic: str, partition: int) -> bool:
        return self.partition_owner(topic, partition) == self.index

    def _internal_partition(self, topic: str, index: int) -> Partition:
        partition = self._replicas.get(self.image, topic, index, now_ms=self.wall_ms())
        if partition is None:
            raise LogError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{topic}-{index} is not here")
        return partition

    def _coordinates(self, index: int) -> bool:
        exists = self.image.partition(TRANSACTION_STATE_TOPIC, index) is not None
        return exists and self.owns(TRANSACTION_STATE_TOPIC, index)

    async def _write_markers(
        self, owner: Owner, markers: tuple[TransactionMarker, ...]
    ) -> MarkersReply:
        reply: MarkersReply = await self.request_owner(owner, ApiKey.WRITE_TXN_MARKERS, markers)
        return reply

    def _on_image(self, before: Image, after: Image) -> None:
        if before.controller_epoch != after.controller_epoch:
            self.transactions.release_markers()  # The controller that held them has ended.
        # Groups first: closing them may write to a log that is deleted next.
        if _topic_id(before, OFFSETS_TOPIC) not in (None, _topic_id(after, OFFSETS_TOPIC)):
            self.groups.reset()
        former_id = _topic_id(before, TRANSACTION_STATE_TOPIC)
        if former_id not in (None, _topic_id(after, TRANSACTION_STATE_TOPIC)):
            self.transactions.reset()
        if _topic_id(before, SHARE_STATE_TOPIC) not in (None, _topic_id(after, SHARE_STATE_TOPIC)):
            self._reset_shares(keep_logs=False)
        deleted = before.topic_names.keys() - after.topic_names.keys()
        if deleted:
            self.groups.on_topics_deleted(before.topic_names[topic_id] for topic_id in deleted)
        self._replicas.follow(before, after)
        if before.topic_names != after.topic_names:
            self._purgatory.wake_all()

    async def _repeat(self, interval_s: float, check: Callable[[], object]) -> None:
        while True:
            await trio.sleep(interval_s)
            check()

    def _apply_retention(self) -> None:
        before = {name: log.log_start_offset for name, log in self._logs.items()}
        self._run_check("retention", self._logs.apply_retention)
        for (topic, index), log in self._logs.items():
            start, now = before[topic, index], log.log_start_offset
            if start != now:
                note_state(self._env, "log_start", f"{topic}-{index}", str(start), str(now))
                self.fetch_watches.changed(topic, index)

    def _run_check(self, what: str, check: Callable[..., list[LogError]]) -> None:
        for error in check(now_ms=self.wall_ms()):
            self._log.error(f"{what} failed", reason=error)

    def _storage_changed(self, is_writable: bool) -> None:
        self.groups.can_store = is_writable

    # Processors and the recorder --------------------------------------------------------------

    def _handle_request(self, request: Any) -> Any:
        if isinstance(request, ApiPart):
            return self.execute(request)
        if isinstance(request, ActivityAppend):
            return self._append(request)
        if isinstance(request, RecordsAppend):
            return append_records(self, request)
        if isinstance(request, TailRequest):
            return self._tail(request)
        raise TypeError(f"a worker cannot handle {type(request).__name__}")

    def execute(self, request: ApiPart) -> ApiReply | Awaitable[ApiReply]:
        """Execute a part, at once unless it has to wait."""
        api = APIS[request.api_key]
        assert api.execute is not None
        timer = self._env.work_time.step_timer
        started_ns = timer()
        reply = api.execute(self, request.part)
        worked_ns = timer() - started_ns
        if inspect.isawaitable(reply):
            return self._finish(reply, worked_ns)
        return ApiReply(reply, worked_ns)

    def _append(self, request: ActivityAppend) -> str:
        """Append a batch of the broker itself."""
        try:
            partition = self.partition(request.topic, request.partition)
            if partition is None:
                return "it is not here"
            now_ms = self.wall_ms()
            partition.append_as_leader(request.batch, now_ms=now_ms, origin=Origin.RECORDER)
        except LogError as error:
            return error.text
        self._purgatory.wake((request.topic, request.partition))
        return ""

    def _tail(self, request: TailRequest) -> bytes:
        """Return the last batch of a log."""
        try:
            partition = self.partition(request.topic, request.partition)
            if partition is None or partition.high_watermark == partition.log.log_start_offset:
                return b""
            last = partition.read(partition.high_watermark - 1, 0)
        except LogError as error:
            self._log.error("the end of a log can't be read", topic=request.topic, reason=error)
            return b""
        return b"" if last is None else last.load()

    async def _finish(self, reply: Awaitable[Any], worked_ns: int) -> ApiReply:
        account, started_ns = Account(), time.perf_counter_ns()
        with self._env.work_time.charge(account):
            result = await reply
        elapsed_ns = time.perf_counter_ns() - started_ns
        waited_ns = max(elapsed_ns - account.worked_ns, 0)
        return ApiReply(result, worked_ns + account.worked_ns, waited_ns)

    def _figures(self) -> Iterator[LogFigures]:
        for (topic, partition), log in self._logs.items():
            yield LogFigures(topic, partition, log.size, log.log_start_offset, log.log_end_offset)

    def _commit_figures(self) -> Iterator[CommitFigures]:
        for group, topic, partition, committed in self.groups.all_offsets():
            yield CommitFigures(committed.commit_ms, group, topic, partition, committed.offset)

    def _group_gauges(self) -> dict[Series, float]:
        gauges: defaultdict[Series, float] = defaultdict(float)
        for group in self.groups.list_groups():
            gauges[GROUPS.name, (group.group_type, group.state)] += 1
            gauges[GROUP_MEMBERS.name, (group.group_type,)] += group.members
        for kind, count in self.groups.rebalances.items():
            gauges[GROUP_REBALANCES.name, (kind,)] = count
        return dict(gauges)

    def _share_gauges(self) -> dict[Series, float]:
        """Figures of share groups; none before the first of them."""
        gauges: defaultdict[Series, float] = defaultdict(float)
        for kind, count in self.shares.acknowledged.items():
            if kind != AcknowledgeType.GAP:
                gauges[SHARE_ACKNOWLEDGED.name, (AcknowledgeType(kind).name.lower(),)] = count
        if self.shares.expired_records:
            gauges[SHARE_EXPIRED.name, ()] = self.shares.expired_records
        letters = self.shares.letters
        for result, counts in (("written", letters.written), ("failed", letters.failed)):
            for group_id, count in counts.items():
                gauges[SHARE_DEAD_LETTERS.name, (group_id, result)] = count
        for view in self.shares.views():
            gauges[SHARE_IN_FLIGHT.name, ("acquired",)] += view.acquired
            gauges[SHARE_IN_FLIGHT.name, ("available",)] += view.available
            if view.archiving:
                gauges[SHARE_IN_FLIGHT.name, ("archiving",)] += view.archiving
        return dict(gauges)

    def _disk_gauges(self) -> dict[Series, float]:
        size = sum(log.size for _, log in self._logs.items())
        return {(LOG_DIR_SIZE.name, (str(self._env.data_dir),)): size}


def _topic_id(image: Image, name: str) -> bytes | None:
    topic = image.topics.get(name)
    return None if topic is None else topic.topic_id


# --------------------------------------------------------------------------------------------------
# Flushes the logs of an I/O worker: those that are due each second, and others on request.
#
# Owns the thread in which files are written to the disk. It must never know when a log is due.
# Invariant: the worker's loop does not wait for the disk, except for what was appended while the
# thread was at work; a log is flushed only if none of its files failed. Kafka's counterparts are
# the scheduler's ``kafka-log-flusher`` and ``flush-log`` tasks.

CHECK_S: Final = 1.0
"""How often logs are checked for ``flush.ms`` and for segments that were rolled."""


class LogFlusher:
    """Flushes the logs of one worker; ``run`` must be running."""

    def __init__(self, env: Environment, logs: LogManager) -> None:
        self._log = EventLog(env.name)
        self._logs = logs
        self._wall_ms = env.clock.wall_ms
        # A broker of tasks has a clock of its own, which would not wait for a thread.
        self._has_threads = env.starts_processes

    async def run(self) -> None:
        """Flush logs that are due until cancelled."""
        while True:
            await trio.sleep(CHECK_S)
            for _, log in list(self._logs.items()):
                if log.is_open and log.is_flush_due(now_ms=self._wall_ms()):
                    try:
                        await self.flush(log)
                    except LogError as error:
                        self._log.error("flush failed", reason=error)

    async def flush(self, log: Log) -> None:
        """Write all records of a log to the disk. Raises LogError."""
        if self._has_threads:
            sync = partial(sync_files, log.unflushed_files())
            try:
                await trio.to_thread.run_sync(sync)
            except OSError as error:
                raise log.storage_error("flushed", error) from error
        if log.is_open:
            log.flush(now_ms=self._wall_ms())
