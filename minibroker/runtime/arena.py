"""Shared memory for request bodies: received into by one process, read in place by another.

It must never know what lies in it, nor keep a block for anybody: who allocates releases.
Its invariant: live blocks never overlap, everything released is again one stretch, and waiters
are served in the order they came, so no request waits for ever behind luckier ones.
It echoes Kafka's `MemoryPool` (KIP-72, `queued.max.request.bytes`): full means sockets aren't read.

The mapping is made before the fork and divided into equal parts, one for each process that
receives. Only that process allocates in its part, so the books are plain Python objects of its
own; others see the bytes through the references they are sent. A process that was restarted
opens its part anew with empty books. References from the former life then name bytes that may
be overwritten, so each part has a count of its lives in shared memory, references carry it, and
`Arena.view` refuses old ones.
"""

from __future__ import annotations

import mmap
from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple

import outcome
import trio

from minibroker.runtime.extents import Extents

ALIGNMENT: Final = 64
"""Blocks start and end on cache lines, so neighbours never share one between processes."""

PART_BYTES_MIN: Final = 64 * 1024
PARTS_MAX: Final = 512
WAITING_MAX: Final = 100_000
"""Waiters a part: above any sensible number of connections a process holds."""

RESIDENT_BYTES_KEPT: Final = 2 * 1024 * 1024
"""Pages a part keeps when it is trimmed, so that everyday requests meet warm memory."""

_LIFE_BYTES: Final = 8
_HEAD_BYTES: Final = mmap.PAGESIZE  # the counts of lives, before the parts

assert PARTS_MAX * _LIFE_BYTES <= _HEAD_BYTES
assert RESIDENT_BYTES_KEPT % mmap.PAGESIZE == 0
assert PART_BYTES_MIN % mmap.PAGESIZE == 0


class ArenaError(Exception):
    """Shared memory can't be used this way; the text says why."""


class RequestTooLargeError(ArenaError):
    """More was asked for than a whole part: it would wait for ever, so it is refused at once."""


class StaleReferenceError(ArenaError):
    """The process that received these bytes has died; they may have been overwritten."""


class ArenaRef(NamedTuple):
    """Where bytes lie, for other processes. `offset` counts from the start of the part."""

    part: int
    offset: int
    length: int
    life: int


@dataclass(frozen=True, slots=True)
class PartStatistics:
    """Bytes of a part, of them in blocks, the most there ever were, and tasks that wait."""

    size: int
    used: int
    peak: int
    waiting: int


class Block:
    """Bytes that belong to the holder until `release`. `view` is exactly as long as asked for."""

    __slots__ = ("_part", "_reserved", "offset", "view")

    def __init__(self, part: Part, offset: int, reserved: int, view: memoryview) -> None:
        self._part: Part | None = part
        self._reserved = reserved
        self.offset = offset
        self.view = view

    def ref(self, start: int, length: int) -> ArenaRef:
        """A reference to `length` bytes from `start` of this block, to be sent elsewhere."""
        if start < 0 or length < 0 or start + length > len(self.view):
            raise ArenaError(
                f"bytes {start} to {start + length} are not in a block of {len(self.view)} bytes"
            )
        part = self._part
        assert part is not None  # a released view has raised already
        return ArenaRef(part.index, self.offset + start, length, part.life)

    def release(self) -> None:
        """Gives the bytes back and wakes who waits for them. Twice is an `ArenaError`.

        `view` can't be used any more afterwards; slices taken from it must not be.
        """
        part = self._part
        if part is None:
            raise ArenaError(
                f"the block at {self.offset} was released already: somebody else may own "
                f"these bytes by now"
            )
        self._part = None
        self.view.release()
        part._take_back(self.offset, self._reserved)  # noqa: SLF001


class _Waiter(NamedTuple):
    task: trio.lowlevel.Task
    size: int


class Part:
    """One process's share. Its books live in that process: call nothing here from another."""

    def __init__(self, index: int, life: int, memory: mmap.mmap, begin: int, size: int) -> None:
        self.index = index
        self.life = life
        self.size = size
        self._mapping = memory
        self._begin = begin
        self._memory = memoryview(memory)[begin : begin + size]
        self._extents = Extents(size)
        self._waiters: deque[_Waiter] = deque()
        self._used = 0
        self._peak = 0
        # Nothing at or above was written since the last trim; of a former life nobody knows.
        self._touched = size if life > 1 else 0
        self._quiet = True  # the part was empty all the time since the last trim

    def allocate_nowait(self, size: int) -> Block | None:
        """A block of `size` bytes, or None if there's no room or others wait already.

        Raises `RequestTooLargeError` for more than the part, `ValueError` for less than 1.
        """
        if self._waiters:
            self._check(size)
            return None
        return self._carve(size)

    async def allocate(self, size: int) -> Block:
        """As `allocate_nowait`, but waits for room in the order of asking.

        Always a point of cancellation; other tasks run only if it has to wait. Raises
        `ArenaError` if `WAITING_MAX` tasks wait already.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        block = self.allocate_nowait(size)
        if block is not None:
            return block
        if len(self._waiters) >= WAITING_MAX:
            raise ArenaError(f"{WAITING_MAX} tasks wait for shared memory already")
        waiter = _Waiter(trio.lowlevel.current_task(), size)
        self._waiters.append(waiter)

        def abort(_: trio.lowlevel.RaiseCancelT) -> trio.lowlevel.Abort:
            self._waiters.remove(waiter)
            self._serve()  # it may have been the large one at the head that held up the others
            return trio.lowlevel.Abort.SUCCEEDED

        granted: Block = await trio.lowlevel.wait_task_rescheduled(abort)
        return granted

    def statistics(self) -> PartStatistics:
        """How full the part is and was; reserved bytes, that is rounded up to cache lines."""
        return PartStatistics(self.size, self._used, self._peak, len(self._waiters))

    def trim(self) -> int:
        """Gives the pages of past bursts back to the system; how many bytes. Call it now and then.

        It acts only if the part is empty and was so since the last call: under steady load it
        would take away pages that the next request needs again.
        """
        quiet, self._quiet = self._quiet, not self._used
        if not quiet or self._used or self._touched <= RESIDENT_BYTES_KEPT:
            return 0
        end = -(-self._touched // mmap.PAGESIZE) * mmap.PAGESIZE
        # Only MADV_REMOVE frees pages of a shared mapping; MADV_DONTNEED just unmaps them here.
        self._mapping.madvise(
            mmap.MADV_REMOVE, self._begin + RESIDENT_BYTES_KEPT, end - RESIDENT_BYTES_KEPT
        )
        self._touched = RESIDENT_BYTES_KEPT
        return end - RESIDENT_BYTES_KEPT

    def _check(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"a block has at least 1 byte, not {size}")
        if size > self.size:
            raise RequestTooLargeError(
                f"{size} bytes were asked for, and a part of the shared memory has {self.size}: "
                f"make the memory larger or the largest request smaller"
            )

    def _carve(self, size: int) -> Block | None:
        if not 0 < size <= self.size:
            self._check(size)
        reserved = (size + (ALIGNMENT - 1)) & -ALIGNMENT
        start = self._extents.take(reserved)
        if start is None:
            return None
        self._quiet = False
        self._used += reserved
        self._peak = max(self._peak, self._used)
        self._touched = max(self._touched, start + reserved)
        return Block(self, start, reserved, self._memory[start : start + size])

    def _take_back(self, start: int, reserved: int) -> None:
        self._used -= reserved
        merged = self._extents.give(start, reserved)
        # Nothing else has changed since the head of the queue was refused, so only this
        # extent can suit it.
        if self._waiters and merged.size >= self._waiters[0].size:
            self._serve()

    def _serve(self) -> None:
        while self._waiters:
            block = self._carve(self._waiters[0].size)
            if block is None:
                return
            trio.lowlevel.reschedule(self._waiters.popleft().task, outcome.Value(block))


class Arena:
    """The whole mapping. Make it before the fork; each process opens its part after it."""

    def __init__(self, memory: mmap.mmap, parts: int, part_size: int) -> None:
        self._mapping = memory
        self._memory = memoryview(memory)
        self._lives = self._memory[: parts * _LIFE_BYTES].cast("q")
        self.parts = parts
        self.part_size = part_size

    @classmethod
    def create(cls, size: int, parts: int) -> Arena:
        """An arena of `size` bytes, rounded up to whole pages for each of `parts` parts.

        The system provides pages only where something is written.
        """
        if not 1 <= parts <= PARTS_MAX:
            raise ValueError(f"an arena has 1 to {PARTS_MAX} parts, not {parts}")
        part_size = -(-size // (parts * mmap.PAGESIZE)) * mmap.PAGESIZE
        if part_size < PART_BYTES_MIN:
            raise ValueError(
                f"{size} bytes in {parts} parts are too little: a part has at least "
                f"{PART_BYTES_MIN} bytes"
            )
        return cls(mmap.mmap(-1, _HEAD_BYTES + parts * part_size), parts, part_size)

    def open_part(self, index: int) -> Part:
        """The part for its one owner, to be called once by each life of it, after the fork.

        Every call begins a new life of the part, with nothing allocated: references from the
        life before are stale from now on.
        """
        if not 0 <= index < self.parts:
            raise ValueError(f"part {index} was asked for; there are 0 to {self.parts - 1}")
        self._lives[index] += 1
        return Part(
            index,
            self._lives[index],
            self._mapping,
            _HEAD_BYTES + index * self.part_size,
            self.part_size,
        )

    def view(self, ref: ArenaRef) -> memoryview:
        """The bytes of a reference, in place, until the sender is told that they were used.

        Raises `StaleReferenceError` if the part's owner was restarted since, `ArenaError` if
        the reference lies outside of its part.
        """
        index, offset, length, life = ref
        if not 0 <= index < self.parts or offset < 0 or not 0 <= length <= self.part_size - offset:
            raise ArenaError(f"{ref} lies outside of {self.parts} parts of {self.part_size} bytes")
        if self._lives[index] != life:
            raise StaleReferenceError(
                f"part {index} is in life {self._lives[index]}, the reference of life {life}"
            )
        begin = _HEAD_BYTES + index * self.part_size + offset
        return self._memory[begin : begin + length]
