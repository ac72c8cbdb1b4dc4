"""The share partitions of one I/O worker: reading, waiting, storing, and the timer of locks.

Owns the share partitions of the logs that this worker owns, the members that have sessions here,
and the order of storing before answering. The rules are in ``share_partition``, the stored states
at the owner of their partition of ``__share_group_state``, which may be another worker. It must
never decide about a record itself. Invariant: an acknowledgement is answered only when it is
stored; a share partition whose state is fenced is loaded again. Kafka's ``SharePartitionManager``
and ``DelayedShareFetch``.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

import trio

from minibroker.broker.log.errors import LogError
from minibroker.broker.log.log import FileSlice
from minibroker.broker.log.producers import AbortedTransaction
from minibroker.broker.log.replica_manager import Partition
from minibroker.broker.log.segment import LargeBatchError
from minibroker.broker.metadata.image import EMPTY, GROUP, Image
from minibroker.broker.settings import (
    GROUP_SHARE_DELIVERY_COUNT_LIMIT,
    GROUP_SHARE_PARTITION_MAX_RECORD_LOCKS,
    GROUP_SHARE_RECORD_LOCK_DURATION_MS,
    Setting,
    Settings,
)
from minibroker.broker.settings import resources as group_settings
from minibroker.broker.shares import dead_letters
from minibroker.broker.shares.dead_letters import LetterSource
from minibroker.broker.shares.letter_writer import LettersKey, LetterWriter, QueueEnvironment
from minibroker.broker.shares.sessions import MemberKey
from minibroker.broker.shares.share_partition import (
    Acknowledgement,
    AcknowledgeRejected,
    Acquired,
    AcquireLimits,
    DeadLetters,
    FetchedBatch,
    SharePartition,
    ShareSettings,
    Transition,
)
from minibroker.broker.shares.state import UNKNOWN_OFFSET, RecordState, ShareKey, ShareState
from minibroker.broker.shares.state_store import (
    ReadState,
    StateOperation,
    StateReply,
    WriteState,
)
from minibroker.runtime.rpc import PeerFailed, PeerLost
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.records import BatchHeader, iter_batches

_logger = logging.getLogger(__name__)

READ_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of a partition that are read for one fetch: the headers of their batches are parsed."""

FIRST_LOAD_BYTES: Final = 64 * 1024
"""So many of them are read first, then four times as many, until there are enough records."""

RANGES_MAX: Final = 100
"""Ranges of records that a view of a share partition has."""

STORE_RETRIES: Final = 20
STORE_RETRY_S: Final = 0.1
"""How often and how long the owner of a state is awaited that is being restarted."""

TopicPartition = tuple[str, int]


class SharePart(NamedTuple):
    """What one owner is to do for a member: acknowledge, then fetch, then end its session."""

    member: MemberKey
    connection: str
    processor: int
    """The network processor of the connection."""
    acknowledgements: tuple[tuple[TopicPartition, tuple[Acknowledgement, ...]], ...] = ()
    fetched: tuple[TopicPartition, ...] = ()
    limits: AcquireLimits = AcquireLimits(0)
    bytes_max: int = 0
    bytes_min: int = 0
    deadline: float = 0.0
    acquires: bool = True
    """Whether records are acquired; if not, only wait until there are some."""
    ends: bool = False
    """Whether the session of the member ends."""


class ShareFetched(NamedTuple):
    """What a member has acquired of a partition, or an error."""

    error: ErrorCode = ErrorCode.NONE
    text: str | None = None
    records: FileSlice | None = None
    acquired: tuple[Acquired, ...] = ()


class ShareReply(NamedTuple):
    """Errors of acknowledgements, and what was fetched."""

    acknowledged: Mapping[TopicPartition, tuple[ErrorCode, str | None]]
    fetched: Mapping[TopicPartition, ShareFetched]
    is_due: bool = True
    """Whether there are records, or errors everywhere."""


class ShareRange(NamedTuple):
    """Consecutive records in flight with the same state, for people."""

    first: int
    last: int
    state: RecordState
    deliveries: int
    member: str
    """Empty if no member has them."""


class ShareView(NamedTuple):
    """A share partition, for people."""

    group_id: str
    topic: str
    partition: int
    start_offset: int
    end_offset: int
    acquired: int
    available: int
    archiving: int = 0
    """Records that are being written to the dead-letter queue."""
    ranges: tuple[ShareRange, ...] = ()
    """The first records in flight."""


class ShareEnvironment(NamedTuple):
    """What the service uses of its worker."""

    settings: Settings
    image: Callable[[], Image]
    now: Callable[[], float]
    wall_ms: Callable[[], int]
    partition: Callable[[str, int], Partition | None]
    """Opens a partition of this worker. Raises LogError."""
    request_state: Callable[[StateOperation], StateReply | Awaitable[StateReply]]
    """Carries out an operation at the owner of the state. Raises ``PeerLost`` or ``PeerFailed``."""
    watch: Callable[[Sequence[TopicPartition], trio.Event], None]
    """Sets an event when one of the partitions has grown, until ``unwatch``."""
    unwatch: Callable[[Sequence[TopicPartition], trio.Event], None]
    sleep_real: Callable[[float], Awaitable[None]]
    queues: QueueEnvironment
    """What dead-letter queues need."""


class _Unavailable(Exception):
    """A share partition cannot be used now."""

    def __init__(self, error: ErrorCode, text: str | None = None) -> None:
        super().__init__(text or error.name)
        self.error = error
        self.text = text


@dataclass(slots=True)
class _Cached:
    """A share partition, and its state's key and leader epoch."""

    share: SharePartition
    key: ShareKey
    leader_epoch: int
    writes: int = 0
    """Transitions that are being stored."""
    is_left: bool = False
    """Whether the last session of the group has ended in the meantime."""


CacheKey = tuple[str, str, int]
"""Group, topic and partition."""


class ShareService:
    """Share partitions of one I/O worker. Start ``run``, which lets locks expire."""

    def __init__(self, env: ShareEnvironment) -> None:
        self._env = env
        self._cache: dict[CacheKey, _Cached] = {}
        self._loading: dict[CacheKey, trio.Event] = {}
        self._sessions: dict[MemberKey, tuple[str, int]] = {}
        """The connection of each member's session, and its network processor."""
        self.acknowledged: Counter[int] = Counter()
        """Records that were acknowledged, by type."""
        self.expired_records = 0
        """Records whose locks have expired."""
        self.letters = LetterWriter(env.queues, self._archive)
        self._waiting: dict[CacheKey, dict[trio.Event, None]] = {}
        self._wake_at = math.inf
        self._wakeup = trio.Event()

    # --------------------------------------------------------------------------- requests

    async def execute(self, part: SharePart) -> ShareReply:
        """Carry out a part of a request."""
        if not part.ends or part.member not in self._sessions:  # The end of an old one may be late.
            self._sessions[part.member] = part.connection, part.processor
        acknowledged = {}
        for (topic, index), acknowledgements in part.acknowledgements:
            key = part.member.group_id, topic, index
            acknowledged[topic, index] = await self._acknowledge(key, part, acknowledgements)
        fetched, is_due = await self._fetch(part) if part.fetched else ({}, True)
        if part.ends:
            await self.end_session(part.member, part.connection)
        return ShareReply(acknowledged, fetched, is_due)

    async def end_session(self, member: MemberKey, connection: str) -> None:
        """Release the records of a member, unless it has another session by now."""
        if self._sessions.get(member, ("", 0))[0] != connection:
            return
        del self._sessions[member]
        settings = self._settings(member.group_id)
        keys = [key for key in self._cache if key[0] == member.group_id]
        acquired = {
            key: self._cache[key]
            for key in keys
            if self._cache[key].share.has_acquired(member.member_id)
        }
        # All at once: the next session of the member may acquire records while these are stored.
        released = {
            key: cached.share.release(member.member_id, settings)
            for key, cached in acquired.items()
        }
        for key, transition in released.items():
            if self._cache.get(key) is acquired[key]:
                await self._store(key, acquired[key], transition)
        for key in keys:
            if key in self._cache:
                self._cache[key].is_left = True
                self._forget_left(key)

    def _has_sessions(self, group_id: str) -> bool:
        return any(each.group_id == group_id for each in self._sessions)

    async def end_sessions(self, processor: int, *, task_status: trio.TaskStatus[None]) -> None:
        """Release the records of the members whose network processor has ended."""
        ended = [
            (member, connection)
            for member, (connection, served_by) in self._sessions.items()
            if served_by == processor
        ]
        task_status.started()
        for member, connection in ended:
            await self.end_session(member, connection)

    async def _acknowledge(
        self, key: CacheKey, part: SharePart, acknowledgements: tuple[Acknowledgement, ...]
    ) -> tuple[ErrorCode, str | None]:
        cached = self._cache.get(key)
        if cached is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None
        settings, now = self._settings(key[0]), self._env.now()
        try:
            transition = cached.share.acknowledge(
                part.member.member_id, acknowledgements, settings, now
            )
        except AcknowledgeRejected as rejected:
            return rejected.error, rejected.text
        error = await self._store(key, cached, transition)
        if error is ErrorCode.NONE:
            for each in acknowledgements:
                for first, last, kind in each.slices():
                    self.acknowledged[kind] += last - first + 1
        return error, None

    def _settings(self, group_id: str) -> ShareSettings:
        image, settings = self._env.image(), self._env.settings
        return share_settings(image, settings, group_id)

    # ------------------------------------------------------------------------------ fetch

    async def _fetch(self, part: SharePart) -> tuple[dict[TopicPartition, ShareFetched], bool]:
        """Acquire records; if there are none, wait for them until the deadline."""
        keys = [(part.member.group_id, *each) for each in part.fetched]
        grown = trio.Event()
        self._env.watch(part.fetched, grown)
        event = grown
        try:
            while True:
                for key in keys:
                    self._waiting.setdefault(key, {})[event] = None
                fetched, is_due = await self._attempt(part)
                if is_due or self._env.now() >= part.deadline:
                    return fetched, is_due
                with trio.move_on_at(part.deadline):
                    await event.wait()
                self._stop_waiting(keys, event)
                self._env.unwatch(part.fetched, event)
                event = trio.Event()
                self._env.watch(part.fetched, event)
        finally:
            self._stop_waiting(keys, event)
            self._env.unwatch(part.fetched, event)

    def _stop_waiting(self, keys: Iterable[CacheKey], event: trio.Event) -> None:
        for key in keys:
            waiting = self._waiting.get(key)
            if waiting is not None:
                waiting.pop(event, None)
                if not waiting:
                    del self._waiting[key]

    async def _attempt(self, part: SharePart) -> tuple[dict[TopicPartition, ShareFetched], bool]:
        found: dict[TopicPartition, ShareFetched] = {}
        usable: list[tuple[TopicPartition, _Cached]] = []
        settings = self._settings(part.member.group_id)
        for topic, index in part.fetched:
            try:
                cached = await self._get((part.member.group_id, topic, index))
                await self._expire((part.member.group_id, topic, index), cached, settings)
            except _Unavailable as problem:
                found[topic, index] = ShareFetched(problem.error, problem.text)
            else:
                usable.append(((topic, index), cached))
        if not usable:
            return found, True
        is_due = self._acquire(part, usable, settings, found)
        return found, is_due

    def _acquire(
        self,
        part: SharePart,
        usable: Sequence[tuple[TopicPartition, _Cached]],
        settings: ShareSettings,
        found: dict[TopicPartition, ShareFetched],
    ) -> bool:
        """Acquire records of partitions; return whether that is enough for a response."""
        open_ones = [each for each in usable if each[1].share.can_acquire(settings)]
        reads = {}
        size = 0
        share_bytes = part.bytes_max // max(len(open_ones), 1)
        for name, cached in open_ones:
            try:
                bytes_max = min(share_bytes, READ_BYTES_MAX)
                read = self._read(name, cached, part.limits, bytes_max, is_first=size == 0)
            except LogError as error:
                found[name] = ShareFetched(error.code, error.text)
                continue
            if read is not None:
                reads[name] = read
                size += len(read.records)
        if len(found) == len(part.fetched):  # Errors everywhere.
            return True
        is_enough = size >= min(part.bytes_min, READ_BYTES_MAX) and size > 0
        if not (is_enough or self._env.now() >= part.deadline):
            return False
        if not part.acquires:
            return bool(reads)
        remaining, goes_on = part.limits.max_records, False
        for name, cached in open_ones:
            if name in reads and remaining > 0:
                offset = cached.share.fetch_offset
                limits = part.limits._replace(max_records=remaining)
                fetched = self._acquire_read(part, cached.share, reads[name], limits, settings)
                remaining -= sum(each.last - each.first + 1 for each in fetched.acquired)
                found[name] = fetched
                goes_on = goes_on or cached.share.fetch_offset > offset
        if remaining < part.limits.max_records:
            return True
        # All that was read belongs to aborted transactions: there may be more behind it.
        return goes_on and self._acquire(part, usable, settings, _errors(found))

    def _read(
        self,
        name: TopicPartition,
        cached: _Cached,
        limits: AcquireLimits,
        bytes_max: int,
        *,
        is_first: bool,
    ) -> _Read | None:
        """Read records from the first offset that can be acquired. Raises LogError.

        Of the batches behind the window, only those are looked at whose records can be acquired.
        """
        partition = self._env.partition(*name)
        if partition is None:
            raise LogError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the partition is not here")
        share = cached.share
        share.move_start(partition.log.log_start_offset)
        is_committed = self._isolation(cached.key.group_id) == "read_committed"
        aborted: Sequence[AbortedTransaction] = ()
        offset = share.fetch_offset
        end = partition.last_stable_offset if is_committed else partition.high_watermark
        if offset >= end:
            return None
        if is_committed:
            records, aborted = partition.read_committed(offset, bytes_max, min_one=is_first)
        else:
            records = partition.read(offset, bytes_max, min_one=is_first)
        if records is None:
            return None
        headers = _headers(records, share.end_offset + limits.max_records - 1)
        if not headers:
            return None
        return _Read(records, headers, tuple(aborted), is_committed)

    def _isolation(self, group_id: str) -> str:
        declared = group_settings.SHARE_ISOLATION_LEVEL
        overrides = self._env.image().configs.get((GROUP, group_id), EMPTY)
        return overrides.get(declared.name, declared.default)

    def _acquire_read(
        self,
        part: SharePart,
        share: SharePartition,
        read: _Read,
        limits: AcquireLimits,
        settings: ShareSettings,
    ) -> ShareFetched:
        batches = [
            FetchedBatch(header.base_offset, header.last_offset) for _, header in read.headers
        ]
        member, now = part.member.member_id, self._env.now()
        acquired = share.acquire(member, batches, limits, settings, now)
        if read.aborted:
            acquired = share.archive_acquired(acquired, read.aborted_ranges())
        if share.next_deadline < self._wake_at:
            self._wake_at = share.next_deadline
            self._wakeup.set()
        if not acquired:
            return ShareFetched()
        return ShareFetched(
            records=read.overlapping(acquired[0].first, acquired[-1].last),
            acquired=tuple(acquired),
        )

    # ---------------------------------------------------------------------------- storing

    async def _store(self, key: CacheKey, cached: _Cached, transition: Transition) -> ErrorCode:
        """Store a transition and put it in force, or roll it back; return the error."""
        if transition.is_empty:
            return ErrorCode.NONE
        share = cached.share
        write = WriteState(
            cached.key,
            share.state_epoch,
            cached.leader_epoch,
            share.start_offset,
            share.complete_count,
            transition.batches,
        )
        cached.writes += 1
        with trio.CancelScope(shield=True):
            error = (await self.request(write)).error
        cached.writes -= 1
        if error is ErrorCode.NONE:
            share.commit(transition)
            if transition.dead:
                self.letters.add(_letters_key(key, cached.key), transition.dead)
        else:
            share.roll_back(transition)
            _logger.warning("share partition %s was not stored: %s", cached.key.text, error.name)
            if error in _FENCED and self._cache.get(key) is cached:
                self._forget(key)
        self._wake(key)
        if self._cache.get(key) is cached:
            self._forget_left(key)
        return _leader_error(error)

    async def request(self, operation: StateOperation) -> StateReply:
        """The reply of the state's owner, which may be restarted in the meantime."""
        reply = StateReply(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        for _ in range(STORE_RETRIES):
            try:
                answer = self._env.request_state(operation)
                reply = answer if isinstance(answer, StateReply) else await answer
            except PeerFailed:
                return StateReply(ErrorCode.UNKNOWN_SERVER_ERROR)
            except PeerLost:
                reply = StateReply(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            if reply.error not in _RETRIED:
                break
            await self._env.sleep_real(STORE_RETRY_S)
        return reply

    # ---------------------------------------------------------------------------- loading

    async def _get(self, key: CacheKey) -> _Cached:
        """The share partition, loaded if needed. Raises _Unavailable."""
        while True:
            cached = self._cache.get(key)
            partition = self._partition(key)
            if cached is not None and (partition.topic_id, partition.leader_epoch) == (
                cached.key.topic_id,
                cached.leader_epoch,
            ):
                return cached
            if cached is not None:
                self._forget(key)
            loading = self._loading.get(key)
            if loading is None:
                return await self._load(key, partition)
            await loading.wait()

    def _partition(self, key: CacheKey) -> Partition:
        try:
            partition = self._env.partition(key[1], key[2])
            if partition is None:
                self._forget(key)
                raise _Unavailable(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            partition.check_leader()
        except LogError as error:
            raise _Unavailable(error.code, error.text) from None
        return partition

    async def _load(self, key: CacheKey, partition: Partition) -> _Cached:
        loaded = self._loading[key] = trio.Event()
        share_key = ShareKey(key[0], partition.topic_id, key[2])
        try:
            with trio.CancelScope(shield=True):
                reply = await self.request(ReadState(share_key, partition.leader_epoch))
            if reply.error is not ErrorCode.NONE or reply.state is None:
                raise _Unavailable(_leader_error(reply.error), reply.text)
            start = self._start_offset(key[0], partition, reply.state)
            has_queue = dead_letters.has_queue(self._env.image(), key[0])
            share = SharePartition(reply.state, start, has_queue=has_queue)
            cached = _Cached(share, share_key, partition.leader_epoch)
            self._cache[key] = cached
            if has_queue:  # A former process may have been killed before it had written them.
                letters = share.archiving(self._settings(key[0]))
                self.letters.add(_letters_key(key, share_key), letters)
            return cached
        finally:
            del self._loading[key]
            loaded.set()

    def _start_offset(self, group_id: str, partition: Partition, state: ShareState) -> int:
        """The start offset of a state, or where a group without one starts to read."""
        if state.start_offset != UNKNOWN_OFFSET:
            return state.start_offset
        declared = group_settings.SHARE_AUTO_OFFSET_RESET
        overrides = self._env.image().configs.get((GROUP, group_id), EMPTY)
        reset = overrides.get(declared.name, declared.default)
        if reset == "earliest":
            return partition.log.log_start_offset
        duration_s = group_settings.reset_duration_s(reset)
        if duration_s is not None:
            since = self._env.wall_ms() - int(duration_s * 1000)
            try:
                found = partition.log.offset_for_time(since)
            except LargeBatchError as large:
                found = large.search()
            if found is not None:
                return found.offset
        return partition.high_watermark

    def _forget_left(self, key: CacheKey) -> None:
        """Let the next session load the state, which may have been changed by then.

        What is being stored must not overwrite what that session stores.
        """
        cached = self._cache[key]
        if cached.is_left and not cached.writes and not self._has_sessions(key[0]):
            self._forget(key)

    def _forget(self, key: CacheKey) -> None:
        self._cache.pop(key, None)
        self._wake(key)

    def forget_all(self) -> None:
        """Forget all share partitions and sessions, because logs are replaced."""
        self._sessions.clear()
        self.letters.forget_all()
        for key in list(self._cache):
            self._forget(key)

    def _wake(self, key: CacheKey) -> None:
        for event in self._waiting.get(key, ()):
            event.set()

    async def _archive(self, letters_key: LettersKey, letters: DeadLetters) -> None:
        """Archive records that were written to a dead-letter queue, or cannot be."""
        key = letters_key.source
        try:
            cached = await self._get(key)
        except _Unavailable:
            return
        if cached.key.topic_id == letters_key.topic_id:
            first, last = letters.first, letters.last
            error = await self._store(key, cached, cached.share.archive(first, last))
            if error is not ErrorCode.NONE:  # The state keeps that they were being archived.
                cached.share.commit(cached.share.archive(first, last))
        if not self._has_sessions(key[0]):
            self._forget(key)

    # ------------------------------------------------------------------------------- time

    async def run(self) -> None:
        """Let locks expire, and write dead letters, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.letters.run)
            await self._expire_locks()

    async def _expire_locks(self) -> None:
        while True:
            with trio.move_on_at(self._wake_at):
                await self._wakeup.wait()
            self._wakeup = trio.Event()
            if self._wake_at <= self._env.now():
                for key, cached in list(self._cache.items()):
                    await self._expire(key, cached, self._settings(key[0]))
            deadlines = (cached.share.next_deadline for cached in self._cache.values())
            self._wake_at = min(deadlines, default=math.inf)

    async def _expire(self, key: CacheKey, cached: _Cached, settings: ShareSettings) -> None:
        await self._store_expired(key, cached, cached.share.expire(self._env.now(), settings))

    async def _store_expired(
        self, key: CacheKey, cached: _Cached, transition: Transition
    ) -> tuple[ErrorCode, int]:
        """Store that locks have expired; return an error and the number of records."""
        error = await self._store(key, cached, transition)
        if error is not ErrorCode.NONE:
            return error, 0
        count = sum(each.last - each.first + 1 for each in transition.batches)
        self.expired_records += count
        return error, count

    # ------------------------------------------------------------------- requests of tests

    async def expire_acquisition(
        self, key: CacheKey, member: str | None, offsets: tuple[int, int]
    ) -> tuple[ErrorCode, int]:
        """Let locks of acquired records expire now; return an error and the number of records."""
        cached = self._cache.get(key)
        if cached is None:
            return ErrorCode.NONE, 0
        transition = cached.share.expire_now(member, offsets, self._settings(key[0]))
        return await self._store_expired(key, cached, transition)

    async def set_delivery_count(
        self, key: CacheKey, count: int, member: str | None, offsets: tuple[int, int]
    ) -> tuple[ErrorCode, int]:
        """Set delivery counts of records in flight; return an error and the number of records."""
        cached = self._cache.get(key)
        if cached is None:
            return ErrorCode.NONE, 0
        settings = self._settings(key[0])
        affected, transition = cached.share.set_delivery_count(count, member, offsets, settings)
        error = await self._store(key, cached, transition)
        return error, affected if error is ErrorCode.NONE else 0

    # ------------------------------------------------------------------------------ views

    def views(self, group_id: str | None = None) -> Iterator[ShareView]:
        """The share partitions that are in use, of all groups or one."""
        for (group, topic, index), cached in self._cache.items():
            if group_id in (None, group):
                share = cached.share
                acquired, archiving = share.acquired_count, share.archiving_count
                yield ShareView(
                    group,
                    topic,
                    index,
                    share.start_offset,
                    share.end_offset,
                    acquired,
                    share.in_flight - acquired - archiving,
                    archiving,
                    () if group_id is None else _ranges(share),
                )


def _letters_key(key: CacheKey, share_key: ShareKey) -> LettersKey:
    return LettersKey(LetterSource(*key), share_key.topic_id)


def _ranges(share: SharePartition) -> tuple[ShareRange, ...]:
    found = (
        ShareRange(first, last, state, count, member)
        for first, last, state, count, member in share.runs()
        if not state.is_terminal
    )
    return tuple(islice(found, RANGES_MAX))


def _headers(records: FileSlice, enough: int) -> list[tuple[int, BatchHeader]]:
    """Positions and headers of the whole batches, up to the one that has an offset."""
    size = FIRST_LOAD_BYTES
    while True:
        loaded = FileSlice(
            records.path, records.position, min(size, records.length), records.inode
        ).load()
        headers = []
        for at, header in iter_batches(loaded):
            headers.append((at, header))
            if header.last_offset >= enough:
                return headers
        if size >= records.length:
            return headers
        size *= 4


class _Read(NamedTuple):
    """Records that were read, with the positions and headers of their batches."""

    records: FileSlice
    headers: list[tuple[int, BatchHeader]]
    aborted: tuple[AbortedTransaction, ...]
    is_committed: bool

    def overlapping(self, first: int, last: int) -> FileSlice:
        """The batches that have offsets of a range."""
        chosen = [
            (at, header)
            for at, header in self.headers
            if header.last_offset >= first and header.base_offset <= last
        ]
        start = chosen[0][0]
        end = chosen[-1][0] + chosen[-1][1].size
        records = self.records
        return FileSlice(records.path, records.position + start, end - start, records.inode)

    def aborted_ranges(self) -> Iterator[tuple[int, int]]:
        """First and last offset of the batches of aborted transactions."""
        for _, header in self.headers:
            if header.is_transactional and not header.is_control and self._is_aborted(header):
                yield header.base_offset, header.last_offset

    def _is_aborted(self, header: BatchHeader) -> bool:
        return any(
            each.producer_id == header.producer_id
            and each.first_offset <= header.base_offset <= each.last_offset
            for each in self.aborted
        )


def _errors(found: dict[TopicPartition, ShareFetched]) -> dict[TopicPartition, ShareFetched]:
    for name in [name for name, each in found.items() if each.error is ErrorCode.NONE]:
        del found[name]
    return found


_RETRIED: Final = frozenset(
    {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
)
_FENCED: Final = frozenset(
    {
        ErrorCode.FENCED_STATE_EPOCH,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)


def _leader_error(error: ErrorCode) -> ErrorCode:
    """The error for a client whose share partition could not be loaded or stored."""
    if error in (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.FENCED_STATE_EPOCH):
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    if error in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS):
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    known = (
        ErrorCode.NONE,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    )
    return error if error in known else ErrorCode.UNKNOWN_SERVER_ERROR


def share_settings(image: Image, settings: Settings, group_id: str) -> ShareSettings:
    """The settings of a share group: its configs, or the settings of the broker."""
    overrides = image.configs.get((GROUP, group_id), EMPTY)

    def value(declared: Setting[int], default: Setting[int]) -> int:
        if declared.name in overrides:
            return declared.parse(overrides[declared.name])
        return settings[default]

    renew = group_settings.SHARE_RENEW_ACKNOWLEDGE_ENABLE
    return ShareSettings(
        value(group_settings.SHARE_RECORD_LOCK_DURATION_MS, GROUP_SHARE_RECORD_LOCK_DURATION_MS)
        / 1000,
        value(group_settings.SHARE_DELIVERY_COUNT_LIMIT, GROUP_SHARE_DELIVERY_COUNT_LIMIT),
        value(
            group_settings.SHARE_PARTITION_MAX_RECORD_LOCKS, GROUP_SHARE_PARTITION_MAX_RECORD_LOCKS
        ),
        renew.parse(overrides[renew.name]) if renew.name in overrides else renew.default,
        dead_letters.has_queue(image, group_id),
    )
