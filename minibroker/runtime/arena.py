"""Shared memory for request bodies: one process receives into it, others read in place.

It must never know the content, or keep a block for another process: the process that allocates
releases. Invariant: live blocks never overlap, and all released memory is one extent again. The
rules by which requests get memory or wait are in `request_memory`; this module has the bytes and
the tasks. Like Kafka's `MemoryPool` (KIP-72, `queued.max.request.bytes`): when it is full, sockets
are not read.

The mapping is created before the fork and divided into equal parts, one for each process that
receives. Only that process allocates in its part, so the bookkeeping consists of its own Python
objects; others see the bytes through references. A restarted process opens its part again, empty.
References of its former incarnation then name bytes that may be overwritten, so each part has a
counter of incarnations in shared memory, references contain it, and `Arena.view` rejects old ones.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import outcome
import trio

from minibroker.runtime.request_memory import ALIGNMENT, Claim, RequestMemory, part_bytes
from minibroker.runtime.system import free_pages

PART_BYTES_MIN: Final = 64 * 1024
PARTS_MAX: Final = 512
RESIDENT_BYTES_KEPT: Final = 2 * 1024 * 1024
"""Pages that a part keeps when it is trimmed, so that normal requests use resident memory."""

_INCARNATION_BYTES: Final = 8
_HEADER_BYTES: Final = mmap.PAGESIZE  # the counters of incarnations, before the parts

assert PARTS_MAX * _INCARNATION_BYTES <= _HEADER_BYTES
assert RESIDENT_BYTES_KEPT % mmap.PAGESIZE == 0
assert PART_BYTES_MIN % mmap.PAGESIZE == 0


class ArenaError(Exception):
    """Shared memory cannot be used this way; the text says why."""


class RequestTooLargeError(ArenaError):
    """A request larger than the part: it would wait forever, so it is rejected at once."""


class StaleReferenceError(ArenaError):
    """The process that received these bytes has died; they may have been overwritten."""


class ArenaRef(NamedTuple):
    """Reference to bytes, for other processes. `offset` counts from the start of the part."""

    part: int
    offset: int
    length: int
    incarnation: int


RecordsRef: TypeAlias = ArenaRef | memoryview
"""Records of a request: in the arena for another process, or in memory of this one."""


@dataclass(frozen=True, slots=True)
class PartStatistics:
    """Size of a part, its used bytes now and at most, and waiting claims."""

    size: int
    used: int
    peak: int
    waiting: int


class Block:
    """Bytes that belong to the holder until `release`. `view` has exactly the requested length."""

    __slots__ = ("_part", "_reserved", "offset", "view")

    def __init__(self, part: ArenaPart, offset: int, reserved: int, view: memoryview) -> None:
        self._part: ArenaPart | None = part
        self._reserved = reserved
        self.offset = offset
        self.view = view

    def ref(self, start: int, length: int) -> ArenaRef:
        """Return a reference to `length` bytes from `start` of this block, for other processes."""
        if start < 0 or length < 0 or start + length > len(self.view):
            raise ArenaError(
                f"bytes {start} to {start + length} are not in a block of {len(self.view)} bytes"
            )
        part = self._part
        assert part is not None  # a released view has raised before
        return ArenaRef(part.index, self.offset + start, length, part.incarnation)

    def release(self) -> None:
        """Release the bytes, and wake waiting claims. A second call raises `ArenaError`.

        `view` cannot be used afterwards; slices of it must not be used.
        """
        part = self._part
        if part is None:
            raise ArenaError(
                f"the block at {self.offset} was released already; its bytes may belong to "
                f"another block"
            )
        self._part = None
        self.view.release()
        part._free(self.offset, self._reserved)  # noqa: SLF001


class ArenaPart:
    """The part of one process. Its state is in that process: others must not call it."""

    def __init__(
        self,
        index: int,
        incarnation: int,
        memory: mmap.mmap,
        start: int,
        memory_rules: RequestMemory,
    ) -> None:
        self.index = index
        self.incarnation = incarnation
        self._mapping = memory
        self._start = start
        self._memory = memoryview(memory)[start : start + memory_rules.size]
        self._rules = memory_rules
        self._tasks: dict[Claim, trio.lowlevel.Task] = {}
        self._contended = trio.Event()
        # Nothing at or above this was written since the last trim; unknown after a restart.
        self._written_end = memory_rules.size if incarnation > 1 else 0
        self._was_empty = True  # the part has been empty since the last trim

    def allocate_nowait(self, size: int) -> Block | None:
        """Return a block for a request that has arrived completely, or None if it must wait.

        Raises `RequestTooLargeError` for more than the part, `ValueError` for less than 1.
        """
        if not 0 < size <= self._rules.largest:
            self._check(size)
        reserved = (size + (ALIGNMENT - 1)) & -ALIGNMENT
        start = self._rules.take(reserved)
        if start is None:
            return None
        self._was_empty = False
        end = start + reserved
        if end > self._written_end:  # noqa: PLR1730 - a call of `max` costs more
            self._written_end = end
        return Block(self, start, reserved, self._memory[start : start + size])

    def claim(self, claim: Claim) -> Block | None:
        """Return a block for a claim, or None if it must wait: then call `wait_granted`.

        Call `finish` when the body of an incomplete request has arrived. Raises as
        `allocate_nowait`, and `TooManyWaiting`.
        """
        self._check(claim.size)
        return self._block(claim) if self._rules.claim(claim) else None

    async def wait_granted(self, claim: Claim) -> Block:
        """Return the block of a waiting claim."""
        self._tasks[claim] = trio.lowlevel.current_task()
        self._contended.set()

        def abort(_: trio.lowlevel.RaiseCancelT) -> trio.lowlevel.Abort:
            del self._tasks[claim]
            self._rules.abandon(claim)
            self._grant()  # The claim may have been a large one that blocked others.
            return trio.lowlevel.Abort.SUCCEEDED

        granted: Block = await trio.lowlevel.wait_task_rescheduled(abort)
        return granted

    def finish(self, claim: Claim) -> None:
        """End a claim: its body has arrived or will not; it no longer counts for its address."""
        self._rules.finish(claim)
        if self._rules.waiting:
            self._grant()

    async def wait_contended(self) -> None:
        """Wait until a claim waits."""
        if not self._rules.waiting:
            self._contended = trio.Event()
            await self._contended.wait()

    def evict(self, now: float, arrived: Callable[[Claim], int]) -> list[Claim]:
        """Return the claims whose connections must be closed, as `RequestMemory.evict`."""
        return self._rules.evict(now, arrived)

    def statistics(self) -> PartStatistics:
        """Return how full the part is and was; sizes are rounded up to cache lines."""
        memory_rules = self._rules
        return PartStatistics(
            memory_rules.size, memory_rules.used, memory_rules.peak, memory_rules.waiting
        )

    def trim(self) -> int:
        """Return pages of past bursts to the system; return their size. Call it now and then.

        It acts only if the part is empty and has been since the last call: under steady load it
        would remove pages that the next request needs again.
        """
        used = self._rules.used
        was_empty, self._was_empty = self._was_empty, not used
        if not was_empty or used or self._written_end <= RESIDENT_BYTES_KEPT:
            return 0
        end = -(-self._written_end // mmap.PAGESIZE) * mmap.PAGESIZE
        start = self._start + RESIDENT_BYTES_KEPT
        if not free_pages(self._mapping, start, end - RESIDENT_BYTES_KEPT):
            return 0
        self._written_end = RESIDENT_BYTES_KEPT
        return end - RESIDENT_BYTES_KEPT

    def _check(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"a block has at least 1 byte, not {size}")
        largest = self._rules.largest
        if size > largest:
            raise RequestTooLargeError(
                f"{size} bytes were requested, but a part of the shared memory has {largest}: "
                f"make the memory larger or the largest request smaller"
            )

    def _block(self, claim: Claim) -> Block:
        start = claim.start
        assert start is not None
        self._was_empty = False
        self._written_end = max(self._written_end, start + claim.reserved)
        return Block(self, start, claim.reserved, self._memory[start : start + claim.size])

    def _free(self, start: int, reserved: int) -> None:
        self._rules.give(start, reserved)
        if self._rules.waiting:
            self._grant()

    def _grant(self) -> None:
        for claim in self._rules.grant():
            task = self._tasks.pop(claim)
            trio.lowlevel.reschedule(task, outcome.Value(self._block(claim)))


class Arena:
    """The complete mapping. Create it before the fork; each process opens its part after it."""

    def __init__(self, memory: mmap.mmap, parts: int, large_bytes: int) -> None:
        self._mapping = memory
        self._memory = memoryview(memory)
        self._incarnations = self._memory[: parts * _INCARNATION_BYTES].cast("q")
        self._large_bytes = large_bytes
        self.parts = parts
        self.part_size = part_bytes(large_bytes)

    @classmethod
    def create(cls, size: int, parts: int) -> Arena:
        """Create an arena of `size` bytes, rounded up to pages for each of `parts` parts.

        The regions for small requests are added. The system provides pages only where something is
        written.
        """
        if not 1 <= parts <= PARTS_MAX:
            raise ValueError(f"an arena has 1 to {PARTS_MAX} parts, not {parts}")
        large_bytes = -(-size // (parts * mmap.PAGESIZE)) * mmap.PAGESIZE
        if large_bytes < PART_BYTES_MIN:
            raise ValueError(
                f"{size} bytes in {parts} parts are too little: a part has at least "
                f"{PART_BYTES_MIN} bytes"
            )
        memory = mmap.mmap(-1, _HEADER_BYTES + parts * part_bytes(large_bytes))
        return cls(memory, parts, large_bytes)

    def open_part(self, index: int, address_bytes_max: int | None = None) -> ArenaPart:
        """Open the part for its owner; call it once in each incarnation, after the fork.

        `address_bytes_max` is as for `RequestMemory`.

        Each call starts a new incarnation of the part, with nothing allocated: older references are
        stale from now on.
        """
        if not 0 <= index < self.parts:
            raise ValueError(f"part {index} does not exist; there are 0 to {self.parts - 1}")
        self._incarnations[index] += 1
        return ArenaPart(
            index,
            self._incarnations[index],
            self._mapping,
            _HEADER_BYTES + index * self.part_size,
            RequestMemory(self._large_bytes, address_bytes_max),
        )

    def view(self, ref: ArenaRef) -> memoryview:
        """Return the referenced bytes, in place, until the sender gets the answer.

        Raises `StaleReferenceError` if the part's owner has restarted since, `ArenaError` if the
        reference is outside of its part.
        """
        index, offset, length, incarnation = ref
        if not 0 <= index < self.parts or offset < 0 or not 0 <= length <= self.part_size - offset:
            raise ArenaError(f"{ref} is outside of {self.parts} parts of {self.part_size} bytes")
        if self._incarnations[index] != incarnation:
            raise StaleReferenceError(
                f"part {index} is in incarnation {self._incarnations[index]}, "
                f"the reference is of {incarnation}"
            )
        start = _HEADER_BYTES + index * self.part_size + offset
        return self._memory[start : start + length]
