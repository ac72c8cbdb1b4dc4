"""A share partition: which records of a partition are in flight for a share group, and where.

Theory of operation. The *window* is the range of offsets between the start offset and the end of
the last batch of the log of which records were acquired. It consists of *runs*, which are
consecutive records in the same state. A fetch *acquires* available records and those behind the
window, for one member until a deadline, which raises their delivery count. The member accepts,
releases, rejects or renews them; the lock of a silent member expires, which releases them. Released
records are available again, or archived if their delivery count has reached the limit. Finished
records at the start leave the window.

If the group has a dead-letter queue, rejected records and those whose delivery count has reached
the limit are *archiving* until they are written to the queue, or that has failed; then they are
archived by a further transition. A transition names them as *dead letters*, once.

A change by acknowledgement, release or expiry is a *transition*: it is in force when it is stored,
and until then no other member can have its records. A transition that could not be stored is rolled
back. Acquiring is not stored.

Records that were delivered often are delivered in smaller batches, and at last one by one, so that
one bad record does not archive its neighbours. How small depends on the number of records that were
first acquired together, or could have been without the strict limit of a fetch.

This module must never know logs, sockets, tasks or a clock. Invariants: a record is acquired by at
most one member; the runs cover the window without gaps, in order; the start offset never falls.
Kafka's ``SharePartition``, ``InFlightBatch`` and ``InFlightState``.
"""

from __future__ import annotations

import enum
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from minibroker.broker.shares.state import RecordState, ShareState, StateBatch
from minibroker_protocol.errors import ErrorCode

_NO_DEADLINE: Final = math.inf
_AVAILABLE: Final = RecordState.AVAILABLE
_ACQUIRED: Final = RecordState.ACQUIRED
_ARCHIVING: Final = RecordState.ARCHIVING
_ARCHIVED: Final = RecordState.ARCHIVED


class AcknowledgeType(enum.IntEnum):
    """What a member says of a record, with Kafka's numbers."""

    GAP = 0
    """There is no record at the offset."""
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4
    """The lock of the record starts again."""


class ShareSettings(NamedTuple):
    """The settings of a group in force for an event."""

    lock_s: float = 30.0
    delivery_count_limit: int = 5
    records_max: int = 2_000
    """Records in flight."""
    may_renew: bool = True
    has_queue: bool = False
    """Whether records that are not delivered again go to a dead-letter queue."""

    @property
    def throttled_from(self) -> int:
        """The delivery count from which on records are delivered in smaller batches."""
        return max(2, math.ceil(self.delivery_count_limit / 2))


class FetchedBatch(NamedTuple):
    """The offsets of a batch that was read from the log."""

    base: int
    last: int


class AcquireLimits(NamedTuple):
    """The limits of one fetch of a member."""

    max_records: int
    batch_size: int = 1 << 31
    """Acquired records are split into batches of about this size."""
    is_strict: bool = False
    """Whether ``max_records`` may not be exceeded up to the end of a batch of the log."""


class Acquired(NamedTuple):
    """Consecutive records that were acquired together."""

    first: int
    last: int
    deliveries: int
    """The delivery count of each."""


class Acknowledgement(NamedTuple):
    """What a member says of consecutive records: one type for all, or one for each."""

    first: int
    last: int
    types: tuple[int, ...]

    def slices(self) -> Iterator[tuple[int, int, int]]:
        """First offset, last offset and type of consecutive records with the same type."""
        if len(self.types) == 1:
            yield self.first, self.last, self.types[0]
            return
        first = self.first
        for offset, kind in enumerate(self.types, self.first):
            if offset > first and kind != self.types[first - self.first]:
                yield first, offset - 1, self.types[first - self.first]
                first = offset
        yield first, self.last, self.types[first - self.first]


class AcknowledgeRejected(Exception):
    """Acknowledgements are rejected as a whole."""

    def __init__(self, error: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.error = error
        self.text = text


class DeadLetters(NamedTuple):
    """Consecutive records that are to be written to the dead-letter queue."""

    first: int
    last: int
    deliveries: int
    """The delivery count of each."""
    is_rejected: bool
    """Whether a member has rejected them; if not, their delivery count has reached the limit."""


class Transition(NamedTuple):
    """A change of records that is to be stored."""

    batches: tuple[StateBatch, ...]
    dead: tuple[DeadLetters, ...] = ()
    """Records to write to the dead-letter queue as soon as the change is stored."""

    @property
    def is_empty(self) -> bool:
        return not self.batches


class _Run:
    """Consecutive records in the same state."""

    __slots__ = (
        "batch",
        "count",
        "deadline",
        "first",
        "is_rejected",
        "last",
        "member",
        "state",
        "target",
    )

    def __init__(
        self, first: int, last: int, state: RecordState, count: int, batch: tuple[int, int]
    ) -> None:
        self.first = first
        self.last = last
        self.state = state
        self.count = count
        self.batch = batch
        """First and last offset of the records that were first acquired together."""
        self.member = ""
        self.deadline = _NO_DEADLINE
        self.target: RecordState | None = None
        """The state after the transition under way."""
        self.is_rejected = False
        """Whether the transition under way is that a member rejects the records."""

    @property
    def is_free(self) -> bool:
        """Whether the records can be acquired."""
        return self.state is _AVAILABLE and self.target is None

    @property
    def is_finished(self) -> bool:
        """Whether the records are, or are about to be, never delivered again."""
        return (self.state if self.target is None else self.target).is_terminal

    def joins(self, other: _Run) -> bool:
        """Whether this run and the next one are the same to members."""
        if self.target is not None or other.target is not None or self.state is not other.state:
            return False
        if self.state.is_terminal:
            return True
        return self.state is _AVAILABLE and (self.count, self.batch) == (other.count, other.batch)

    def split(self, at: int) -> _Run:
        """Keep the records before an offset; return a run of the others."""
        rest = _Run(at, self.last, self.state, self.count, self.batch)
        rest.member, rest.deadline, rest.target = self.member, self.deadline, self.target
        rest.is_rejected = self.is_rejected
        self.last = at - 1
        return rest

    def aim(self, kind: int, count: int, settings: ShareSettings) -> None:
        """Start the transition of an acknowledgement of a type, with a delivery count."""
        self.target = _state_after(kind, count, settings)
        self.is_rejected = kind == AcknowledgeType.REJECT


class SharePartition:
    """The records of a partition that are in flight for a share group. Times are in seconds."""

    def __init__(self, state: ShareState, start_offset: int, *, has_queue: bool = False) -> None:
        """``start_offset`` is that of the state, or is chosen for a group without one.

        Records that were being archived are archived now if there is no dead-letter queue.
        """
        self.state_epoch = state.state_epoch
        self.start_offset = start_offset
        self.end_offset = start_offset
        """The offset behind the window."""
        self.next_deadline = _NO_DEADLINE
        """A time before which no lock expires."""
        self._runs: list[_Run] = []
        for first, last, stored, count in state.batches:
            if first > self.end_offset:  # What was acquired, and never stored.
                self._add(self.end_offset, first - 1, _AVAILABLE, 0)
            if last >= self.end_offset:
                loaded = RecordState(stored)
                if loaded is _ARCHIVING and not has_queue:
                    loaded = _ARCHIVED
                self._add(max(first, self.end_offset), last, loaded, count)
        self._tidy()

    def _add(self, first: int, last: int, state: RecordState, count: int) -> _Run:
        run = _Run(first, last, state, count, (first, last))
        self._runs.append(run)
        self.end_offset = last + 1
        return run

    # ------------------------------------------------------------------------------ views

    @property
    def in_flight(self) -> int:
        """Records of the window that are not finished."""
        return self.end_offset - self.start_offset - self.complete_count

    @property
    def complete_count(self) -> int:
        """Records of the window that are never delivered again."""
        return sum(run.last - run.first + 1 for run in self._runs if run.is_finished)

    @property
    def acquired_count(self) -> int:
        """Records that members have."""
        return sum(run.last - run.first + 1 for run in self._runs if run.state is _ACQUIRED)

    @property
    def archiving_count(self) -> int:
        """Records that are written to the dead-letter queue before they are archived."""
        return sum(run.last - run.first + 1 for run in self._runs if run.state is _ARCHIVING)

    @property
    def fetch_offset(self) -> int:
        """The first offset that can be acquired."""
        return next((run.first for run in self._runs if run.is_free), self.end_offset)

    def can_acquire(self, settings: ShareSettings) -> bool:
        """Whether there is room for records, or released ones are waiting."""
        return self.fetch_offset < self.end_offset or self.in_flight < settings.records_max

    def has_acquired(self, member: str) -> bool:
        """Whether a member has records."""
        return any(run.state is _ACQUIRED and run.member == member for run in self._runs)

    def archiving(self, settings: ShareSettings) -> tuple[DeadLetters, ...]:
        """The records that are being archived. Why is not stored: the delivery count decides."""
        return tuple(
            DeadLetters(run.first, run.last, run.count, run.count < settings.delivery_count_limit)
            for run in self._runs
            if run.state is _ARCHIVING
        )

    def runs(self) -> Iterator[tuple[int, int, RecordState, int, str]]:
        """First and last offset, state, delivery count and member of each run."""
        for run in self._runs:
            yield run.first, run.last, run.state, run.count, run.member

    # ----------------------------------------------------------------------------- acquire

    def acquire(
        self,
        member: str,
        batches: Sequence[FetchedBatch],
        limits: AcquireLimits,
        settings: ShareSettings,
        now: float,
    ) -> list[Acquired]:
        """Acquire records of batches, which were read from the fetch offset on."""
        if not batches:
            return []
        base, last = batches[0].base, batches[-1].last
        self._archive_missing(base)
        wanted = min(limits.max_records, settings.records_max - self.in_flight)
        if wanted <= 0:
            wanted = min(limits.max_records, self.end_offset - self.fetch_offset)
            last = min(last, self.end_offset - 1)
        deadline = now + settings.lock_s
        acquired, count, goes_on = self._acquire_released(
            member, (base, last), limits._replace(max_records=wanted), settings, deadline
        )
        if goes_on and count < wanted and last >= self.end_offset:
            rest = [batch for batch in batches if batch.last >= self.end_offset]
            acquired += self._acquire_new(
                member, rest, limits._replace(max_records=wanted - count), deadline
            )
        if acquired:
            self.next_deadline = min(self.next_deadline, deadline)
        return acquired

    def _archive_missing(self, base: int) -> None:
        """Archive available records before the first one that the log still has."""
        if self.fetch_offset >= base:
            return
        changed = False
        for run in self._between(self.fetch_offset, min(base, self.end_offset) - 1):
            if run.is_free:
                run.state = _ARCHIVED
                changed = True
        if changed:
            self._tidy()

    def _acquire_released(
        self,
        member: str,
        offsets: tuple[int, int],
        limits: AcquireLimits,
        settings: ShareSettings,
        deadline: float,
    ) -> tuple[list[Acquired], int, bool]:
        """Acquire available records of the window; also return whether to go on behind it."""
        acquired: list[Acquired] = []
        count = 0
        for _, runs in groupby(self._overlapping(*offsets), key=lambda run: run.batch):
            free = [run for run in runs if run.is_free]
            if any(run.count >= settings.throttled_from for run in free):
                if not acquired:
                    acquired = self._acquire_throttled(
                        member, free, offsets, limits, settings=settings, deadline=deadline
                    )
                return acquired, count, False
            for run in free:
                if count >= limits.max_records:
                    return acquired, count, True
                first, last = max(run.first, offsets[0]), min(run.last, offsets[1])
                if limits.is_strict:
                    last = min(last, first + limits.max_records - count - 1)
                acquired.append(self._take(first, last, member, deadline))
                count += last - first + 1
        return acquired, count, True

    def _acquire_throttled(
        self,
        member: str,
        free: Sequence[_Run],
        offsets: tuple[int, int],
        limits: AcquireLimits,
        *,
        settings: ShareSettings,
        deadline: float,
    ) -> list[Acquired]:
        """Acquire some records that were acquired together, of which some were delivered often."""
        acquired: list[Acquired] = []
        count, most = 0, 0
        for run in free:
            is_last_time = 2 < settings.delivery_count_limit <= run.count + 1
            if is_last_time and acquired:
                break
            if run.count >= settings.throttled_from and not most:
                most = _throttled_size(run, settings)
            first, last = max(run.first, offsets[0]), min(run.last, offsets[1])
            if is_last_time:
                last = first
            if limits.is_strict:
                last = min(last, first + limits.max_records - count - 1)
            if most > count:
                last = min(last, first + most - count - 1)
            acquired.append(self._take(first, last, member, deadline))
            count += last - first + 1
            is_enough = limits.is_strict and count == limits.max_records
            if is_last_time or is_enough or count == most:
                break
        return acquired

    def _take(self, first: int, last: int, member: str, deadline: float) -> Acquired:
        """Give available records of one run to a member."""
        (run,) = self._between(first, last)
        run.state, run.member, run.deadline = _ACQUIRED, member, deadline
        run.count += 1
        return Acquired(first, last, run.count)

    def _acquire_new(
        self, member: str, batches: Sequence[FetchedBatch], limits: AcquireLimits, deadline: float
    ) -> list[Acquired]:
        """Acquire records behind the window, which is extended to the end of a batch of the log."""
        first, last = max(batches[0].base, self.end_offset), batches[-1].last
        if first > self.end_offset:  # There are no records in between, or none any more.
            self._add(self.end_offset, first - 1, _ARCHIVED, 0)
            self._tidy()
        wanted = first + limits.max_records - 1
        if wanted < last:
            ends = (batch.last for batch in batches if batch.last >= wanted)
            last = next(ends, last)
        if limits.is_strict and wanted < last:
            self._add(first, last, _AVAILABLE, 0)
            return [self._take(first, wanted, member, deadline)]
        acquired = []
        for begin, end in _parts(batches, first, last, limits):
            run = self._add(begin, end, _ACQUIRED, 1)
            run.member, run.deadline = member, deadline
            acquired.append(Acquired(begin, end, 1))
        return acquired

    def archive_acquired(
        self, acquired: Sequence[Acquired], unwanted: Iterable[tuple[int, int]]
    ) -> list[Acquired]:
        """Archive those of the acquired records that no member may have; return the others."""
        for first, last in unwanted:
            kept: list[Acquired] = []
            for each in acquired:
                low, high = max(each.first, first), min(each.last, last)
                if low > high:
                    kept.append(each)
                    continue
                for run in self._between(low, high):
                    run.state, run.member, run.deadline = _ARCHIVED, "", _NO_DEADLINE
                if each.first < low:
                    kept.append(each._replace(last=low - 1))
                if each.last > high:
                    kept.append(each._replace(first=high + 1))
            acquired = kept
        self._tidy()
        return list(acquired)

    # ------------------------------------------------------------------------- transitions

    def acknowledge(
        self,
        member: str,
        acknowledgements: Iterable[Acknowledgement],
        settings: ShareSettings,
        now: float,
    ) -> Transition:
        """Start to change acquired records as their member says. Raises AcknowledgeRejected."""
        slices: list[tuple[int, int, int]] = []
        for each in acknowledgements:
            if each.last >= self.start_offset:
                self._check(member, each, settings)
                slices += each.slices()
        changed: list[_Run] = []
        for first, last, kind in slices:
            for run in self._between(max(first, self.start_offset), last):
                if run.target is not None:  # The same records twice in one request.
                    for begin, end, _ in slices:
                        self._undo(self._overlapping(begin, end))
                    raise AcknowledgeRejected(ErrorCode.INVALID_RECORD_STATE, _IN_TRANSITION)
                if kind == AcknowledgeType.RENEW:  # As in Kafka, a rejection does not undo it.
                    run.deadline = now + settings.lock_s
                else:
                    run.aim(kind, run.count, settings)
                    changed.append(run)
        return _transition(changed)

    def _check(self, member: str, each: Acknowledgement, settings: ShareSettings) -> None:
        if not self._runs:
            raise AcknowledgeRejected(
                ErrorCode.INVALID_RECORD_STATE,
                "Batch record not found. The request batch offsets are not found in the cache.",
            )
        for name, offset in (("first", each.first), ("last", each.last)):
            if offset >= self.end_offset:
                raise AcknowledgeRejected(
                    ErrorCode.INVALID_REQUEST,
                    f"Batch record not found. The {name} offset in request is past acquired "
                    "records.",
                )
        for run in self._overlapping(max(each.first, self.start_offset), each.last):
            problem = _problem(run, member)
            if not problem and AcknowledgeType.RENEW in each.types and not settings.may_renew:
                problem = "Renewing acquisition locks is not enabled for the group."
            if problem:
                raise AcknowledgeRejected(ErrorCode.INVALID_RECORD_STATE, problem)

    def release(self, member: str, settings: ShareSettings) -> Transition:
        """Start to release all records of a member."""
        return self._release(lambda run: run.member == member, settings)

    def expire(self, now: float, settings: ShareSettings) -> Transition:
        """Start to release the records whose locks have expired."""
        if now < self.next_deadline:
            return Transition(())
        transition = self._release(lambda run: run.deadline <= now, settings)
        deadlines = (
            run.deadline for run in self._runs if run.state is _ACQUIRED and run.target is None
        )
        self.next_deadline = min(deadlines, default=_NO_DEADLINE)
        return transition

    def expire_now(
        self, member: str | None, offsets: tuple[int, int], settings: ShareSettings
    ) -> Transition:
        """Start to release the records of a range that a member has, by default any member."""
        chosen = set(self._in_window(offsets))
        return self._release(lambda run: run in chosen and member in (None, run.member), settings)

    def set_delivery_count(
        self, count: int, member: str | None, offsets: tuple[int, int], settings: ShareSettings
    ) -> tuple[int, Transition]:
        """Set the delivery count of records of a range; return their number.

        Those that a member has get it at once. Start to change the available ones, unless they
        have to be of a member: they are archived if that was their last delivery.
        """
        chosen = [run for run in self._in_window(offsets) if run.target is None]
        affected = 0
        changed = []
        for run in chosen:
            if run.state is _ACQUIRED and member in (None, run.member):
                run.count = count
            elif run.is_free and member is None:
                run.aim(AcknowledgeType.RELEASE, count, settings)
                changed.append(run)
            else:
                continue
            affected += run.last - run.first + 1
        return affected, _transition(changed, count)

    def _in_window(self, offsets: tuple[int, int]) -> list[_Run]:
        first, last = offsets
        return self._between(max(first, self.start_offset), min(last, self.end_offset - 1))

    def _release(self, concerns: Callable[[_Run], bool], settings: ShareSettings) -> Transition:
        changed = [
            run
            for run in self._runs
            if run.state is _ACQUIRED and run.target is None and concerns(run)
        ]
        for run in changed:
            run.aim(AcknowledgeType.RELEASE, run.count, settings)
        return _transition(changed)

    def archive(self, first: int, last: int) -> Transition:
        """Start to archive those records of a range that are being archived."""
        changed = [
            run
            for run in self._in_window((first, last))
            if run.state is _ARCHIVING and run.target is None
        ]
        for run in changed:
            run.target = _ARCHIVED
        return _transition(changed)

    def commit(self, transition: Transition) -> None:
        """Put a transition in force, which was stored."""
        for batch in transition.batches:
            for run in self._overlapping(batch.first, batch.last):
                if run.target is not None:
                    run.state, run.target = run.target, None
                    run.count = batch.deliveries
                    run.member, run.deadline = "", _NO_DEADLINE
        self._tidy()

    def roll_back(self, transition: Transition) -> None:
        """Undo a transition, which was not stored: the members keep their records."""
        for batch in transition.batches:
            self._undo(self._overlapping(batch.first, batch.last))

    def _undo(self, runs: Iterable[_Run]) -> None:
        for run in runs:
            run.target = None
            self.next_deadline = min(self.next_deadline, run.deadline)

    def move_start(self, log_start: int) -> None:
        """Forget the records before the start of the log, which were deleted."""
        if log_start <= self.start_offset:
            return
        if log_start >= self.end_offset:
            self._runs.clear()
            self.end_offset = log_start
        else:
            del self._runs[: self._index(log_start)]
        self.start_offset = log_start
        self._tidy()

    # --------------------------------------------------------------------------------- runs

    def _overlapping(self, first: int, last: int) -> list[_Run]:
        """The runs that have an offset of a range."""
        low = max(bisect_right(self._runs, first, key=lambda run: run.first) - 1, 0)
        found = []
        for run in self._runs[low:]:
            if run.first > last:
                break
            if run.last >= first:
                found.append(run)
        return found

    def _between(self, first: int, last: int) -> list[_Run]:
        """The runs of a range, which are split at its ends."""
        if first > last:
            return []
        low = self._index(first)
        return self._runs[low : self._index(last + 1)]

    def _index(self, offset: int) -> int:
        """Split the run that has an offset in its middle; return the index of the next run."""
        index = bisect_right(self._runs, offset, key=lambda run: run.first)
        if index == 0 or self._runs[index - 1].last < offset:
            return index
        run = self._runs[index - 1]
        if run.first == offset:
            return index - 1
        self._runs.insert(index, run.split(offset))
        return index

    def _tidy(self) -> None:
        """Remove finished records from the start of the window; join runs."""
        kept: list[_Run] = []
        for run in self._runs:
            is_done = run.state.is_terminal and run.target is None
            if not kept and is_done:
                self.start_offset = run.last + 1
            elif kept and kept[-1].joins(run):
                kept[-1].last = run.last
            else:
                kept.append(run)
        self._runs = kept


_IN_TRANSITION: Final = (
    "The record state is invalid. The acknowledgement of delivery could not be completed."
)


def _problem(run: _Run, member: str) -> str:
    """Why a member cannot acknowledge records; empty if it can."""
    is_whole = (run.first, run.last) == run.batch
    if run.state is not _ACQUIRED:
        if is_whole:
            return "The batch cannot be acknowledged. The batch is not in the acquired state."
        return "The offset cannot be acknowledged. The offset is not acquired."
    if run.member != member:
        return f"Member is not the owner of {'batch record' if is_whole else 'offset'}"
    return "" if run.target is None else _IN_TRANSITION


def _state_after(kind: int, count: int, settings: ShareSettings) -> RecordState:
    if kind == AcknowledgeType.ACCEPT:
        return RecordState.ACKNOWLEDGED
    if kind == AcknowledgeType.RELEASE and count < settings.delivery_count_limit:
        return _AVAILABLE
    if settings.has_queue and kind in (AcknowledgeType.RELEASE, AcknowledgeType.REJECT):
        return _ARCHIVING
    return _ARCHIVED


def _transition(changed: Iterable[_Run], count: int | None = None) -> Transition:
    """A transition of runs to their targets, with a delivery count if they get another one."""
    batches: list[StateBatch] = []
    dead: list[DeadLetters] = []
    for run in changed:
        assert run.target is not None
        batch = StateBatch(run.first, run.last, run.target, run.count if count is None else count)
        if run.target is _ARCHIVING:
            dead.append(DeadLetters(run.first, run.last, batch.deliveries, run.is_rejected))
        if batches and batches[-1].last + 1 == batch.first and batches[-1][2:] == batch[2:]:
            batches[-1] = batches[-1]._replace(last=batch.last)
        else:
            batches.append(batch)
    return Transition(tuple(batches), tuple(dead))


def _throttled_size(run: _Run, settings: ShareSettings) -> int:
    """How many records are delivered together that were delivered often."""
    first, last = run.batch
    return max(1, (last - first + 1) >> (run.count - settings.throttled_from + 1))


def _parts(
    batches: Sequence[FetchedBatch], first: int, last: int, limits: AcquireLimits
) -> Iterator[tuple[int, int]]:
    """Divide offsets at the bounds of batches into parts of about the batch size."""
    begin = first
    if not limits.is_strict and last - first + 1 > limits.batch_size:
        for batch in batches:
            if batch.base > last:
                break
            if batch.base - begin >= limits.batch_size:
                yield begin, batch.base - 1
                begin = batch.base
    yield begin, last
