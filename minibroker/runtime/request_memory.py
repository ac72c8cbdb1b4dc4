"""Rules of a processor's request memory: which request gets memory, waits, or is evicted.

Pure: offsets in and out, no bytes, tasks or clock. Invariants: taken extents never overlap, a small
request never waits for a large one, and a request that arrives in time is never evicted. Like
Kafka's `MemoryPool` (KIP-72), which has neither regions nor eviction.

The memory has two regions, one for small requests only. A request that has arrived completely takes
memory at once if it can. Any other one makes a `Claim`, which counts for the limit of its client's
address until its last byte has arrived. Waiting claims are granted round robin by address, and
those of one address in order. A claim that does not fit yet blocks its region, so that smaller ones
do not overtake it forever; an address at its limit blocks only itself.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

ALIGNMENT: Final = 64
"""Blocks start and end on cache lines, so neighbours never share one between processes."""

SMALL_REQUEST_BYTES_MAX: Final = 64 * 1024
"""The largest request that may use the region for small requests."""

SMALL_REGION_BYTES: Final = 4 * 1024 * 1024
"""The region for small requests; at most as large as the other one."""

WAITING_MAX: Final = 100_000
"""Waiting claims of a part: more than a process has connections."""

GRACE_S: Final = 1.0
"""How long a claim is not evicted, however slowly its bytes arrive."""

ARRIVAL_S: Final = 30.0
"""A claim arrives in time if its bytes, at their rate so far, all arrive within this."""

Lane = tuple[str, bool]


class TooManyWaiting(Exception):
    """`WAITING_MAX` claims wait already."""


def aligned(size: int) -> int:
    """Return the bytes that a request of this size takes."""
    return (size + (ALIGNMENT - 1)) & -ALIGNMENT


def part_bytes(large_bytes: int) -> int:
    """Return the size of both regions."""
    return min(SMALL_REGION_BYTES, large_bytes) + large_bytes


class Claim:
    """Memory for a request that has not arrived completely, or that must wait (`is_complete`).

    `start` is its offset, once granted; `since` is when receiving into it started, in seconds;
    `arrived` is how many of its bytes had arrived when that was last checked.
    """

    __slots__ = (
        "address",
        "arrived",
        "connection",
        "is_complete",
        "region",
        "reserved",
        "since",
        "size",
        "start",
    )

    def __init__(
        self, connection: int, address: str, size: int, *, is_complete: bool = False
    ) -> None:
        self.connection = connection
        self.address = address
        self.size = size
        self.reserved = aligned(size)
        self.is_complete = is_complete
        self.region: Region | None = None
        self.start: int | None = None
        self.since: float | None = None
        self.arrived = 0

    @property
    def lane(self) -> Lane:
        """The queue in which it waits. Complete requests ignore the limit of their address."""
        return self.address, self.is_complete

    def lateness(self, now: float) -> float:
        """Return by which factor its bytes arrive too slowly; up to 1 is in time."""
        elapsed = 0.0 if self.since is None else now - self.since
        if elapsed < GRACE_S:
            return 0.0
        if not self.arrived:
            return math.inf
        return self.size * elapsed / (self.arrived * ARRIVAL_S)


class Region:
    """A range of the memory, its unfinished claims, and the claims that wait for it."""

    def __init__(self, start: int, size: int, address_bytes_max: int) -> None:
        self.extents = Extents(size, start)
        self.unfinished: dict[Claim, None] = {}
        self.ready: OrderedDict[Lane, deque[Claim]] = OrderedDict()
        """Claims that wait for free memory, round robin."""
        self.limited: dict[Lane, deque[Claim]] = {}
        """Claims of addresses that are at their limit."""
        self._address_bytes_max = address_bytes_max
        self._held: dict[str, int] = {}

    def admits(self, claim: Claim) -> bool:
        """Whether a claim is within the limit of its address; one claim always is."""
        held = self._held.get(claim.address, 0)
        return claim.is_complete or not held or held + claim.reserved <= self._address_bytes_max

    def take(self, claim: Claim) -> int | None:
        """Take memory for a claim; return its offset, or None if it must wait."""
        return self.extents.take(claim.reserved) if self.admits(claim) else None

    def enqueue(self, claim: Claim) -> None:
        claim.region = self
        lane = claim.lane
        is_limited = lane in self.limited or not (lane in self.ready or self.admits(claim))
        lanes = self.limited if is_limited else self.ready
        lanes.setdefault(lane, deque()).append(claim)

    def dequeue(self, claim: Claim) -> None:
        """Remove a waiting claim; if it was first, the turn of its lane ends."""
        lane = claim.lane
        lanes = self.limited if lane in self.limited else self.ready
        claims = lanes[lane]
        was_first = claims[0] is claim
        claims.remove(claim)
        claim.region = None
        if not claims:
            del lanes[lane]
        elif lanes is self.limited:
            self._readmit(lane)
        elif was_first:
            self.ready.move_to_end(lane)

    def next_ready(self) -> Claim | None:
        """Return the claim to grant next."""
        while self.ready:
            lane, claims = next(iter(self.ready.items()))
            if self.admits(claims[0]):
                return claims[0]
            self.limited[lane] = self.ready.pop(lane)
        return None

    def add(self, claim: Claim) -> None:
        """Count a granted claim until its body has arrived."""
        if not claim.is_complete:
            claim.region = self
            self.unfinished[claim] = None
            self._held[claim.address] = self._held.get(claim.address, 0) + claim.reserved

    def remove(self, claim: Claim) -> None:
        claim.region = None
        del self.unfinished[claim]
        held = self._held.pop(claim.address) - claim.reserved
        if held:
            self._held[claim.address] = held
        if self.limited:
            self._readmit(claim.lane)

    def waiting_bytes(self) -> int:
        """Return the bytes of all claims that wait for free memory."""
        return sum(claim.reserved for claims in self.ready.values() for claim in claims)

    def claims_to_evict(self, now: float, waiting_bytes: int) -> Iterator[Claim]:
        """Yield claims to evict, slowest first, until the waiting claims fit."""
        bytes_by_address = {
            address: sum(claim.reserved for claim in claims)
            for (address, _), claims in self.limited.items()
        }
        if not waiting_bytes and not bytes_by_address:
            return
        late = [claim for claim in self.unfinished if claim.lateness(now) > 1]
        for claim in sorted(late, key=lambda claim: -claim.lateness(now)):
            address_bytes = bytes_by_address.get(claim.address, 0)
            if waiting_bytes > 0 or address_bytes > 0:
                waiting_bytes -= claim.reserved
                bytes_by_address[claim.address] = address_bytes - claim.reserved
                yield claim

    def _readmit(self, lane: Lane) -> None:
        if lane in self.limited and self.admits(self.limited[lane][0]):
            self.ready[lane] = self.limited.pop(lane)


class RequestMemory:
    """The memory of one processor: offsets only."""

    def __init__(self, large_bytes: int, address_bytes_max: int | None = None) -> None:
        """By default, an address may have unfinished claims to half of the large region."""
        if address_bytes_max is None:
            address_bytes_max = large_bytes // 2
        self.largest = large_bytes
        self.size = part_bytes(large_bytes)
        self.used = 0
        self.peak = 0
        self.waiting = 0
        self._small_bytes = small_bytes = self.size - large_bytes
        # An address with more than half of the small region uses the large region.
        self._small = Region(0, small_bytes, small_bytes // 2)
        self._large = Region(small_bytes, large_bytes, address_bytes_max)

    def take(self, reserved: int) -> int | None:
        """Take memory for a complete request; return its offset, or None if it must wait."""
        start = None
        if reserved <= SMALL_REQUEST_BYTES_MAX:
            if self._small.ready:
                return None
            start = self._small.extents.take(reserved)
        if start is None:
            if self._large.ready:
                return None
            start = self._large.extents.take(reserved)
            if start is None:
                return None
        self.used = used = self.used + reserved
        if used > self.peak:  # noqa: PLR1730 - a call of `max` costs more
            self.peak = used
        return start

    def give(self, start: int, reserved: int) -> None:
        """Free memory. Call `grant` afterwards if claims wait."""
        region = self._small if start < self._small_bytes else self._large
        region.extents.give(start, reserved)
        self.used -= reserved

    def claim(self, claim: Claim) -> bool:
        """Grant a claim and return True, or let it wait. Raises `TooManyWaiting`."""
        small, large = self._small, self._large
        is_small = claim.reserved <= SMALL_REQUEST_BYTES_MAX and small.admits(claim)
        region = small if is_small else large
        is_first = not region.ready and not (region.limited and claim.lane in region.limited)
        if is_first and self._place(claim, region):
            return True
        if self.waiting >= WAITING_MAX:
            raise TooManyWaiting(f"{WAITING_MAX} requests wait for memory already")
        region.enqueue(claim)
        self.waiting += 1
        return False

    def grant(self) -> list[Claim]:
        """Grant waiting claims and return them. Call it whenever memory was freed."""
        granted: list[Claim] = []
        for region in (self._large, self._small):
            while (claim := region.next_ready()) is not None:
                if not self._place(claim, region):
                    break
                granted.append(claim)
        return granted

    def abandon(self, claim: Claim) -> None:
        """Remove a waiting claim. Call `grant` afterwards."""
        assert claim.region is not None
        claim.region.dequeue(claim)
        self.waiting -= 1

    def finish(self, claim: Claim) -> None:
        """End a claim: its body has arrived or is given up. Call `grant` afterwards."""
        assert claim.region is not None
        claim.region.remove(claim)

    def evict(self, now: float, arrived: Callable[[Claim], int]) -> list[Claim]:
        """Return claims that arrive too slowly while others wait for their memory.

        `arrived` returns how many bytes of a claim have arrived. Evicted claims must be finished
        and freed.
        """
        if not self.waiting:
            return []
        small, large = self._small, self._large
        for claim in (*small.unfinished, *large.unfinished):
            if claim.since is not None and now - claim.since >= GRACE_S:
                claim.arrived = arrived(claim)
        waiting_bytes = small.waiting_bytes()
        # A small request may use the large region, too.
        return [
            *small.claims_to_evict(now, waiting_bytes),
            *large.claims_to_evict(now, waiting_bytes + large.waiting_bytes()),
        ]

    def _place(self, claim: Claim, region: Region) -> bool:
        """Take memory for a claim; a small one may use the large region if none waits for it."""
        region_used = region
        start = region_used.take(claim)
        if start is None and region is self._small and not self._large.ready:
            region_used = self._large
            start = region_used.take(claim)
        if start is None:
            return False
        if claim.region is not None:
            claim.region.dequeue(claim)
            self.waiting -= 1
        claim.start = start
        region_used.add(claim)
        self.used += claim.reserved
        if self.used > self.peak:  # noqa: PLR1730 - as in `take`
            self.peak = self.used
        return True


# --------------------------------------------------------------------------------------------------
# Allocation of extents in a range: the arithmetic of the arena.
#
# It must never know memory, processes or waiting: numbers in, numbers out. Invariant: free extents
# never overlap or touch, so adjacent free space is one extent, and a request fails only if no free
# extent is long enough. Like the free list of Kafka's `BufferPool`, for extents of any size.
#
# Free extents are in bins by the power of two of their size. A request takes any extent of the
# lowest bin in which all are long enough (found by a bit mask) or, if there is none, the first long
# enough one in the bin below. Freeing looks up both neighbours by address.


class Extent(NamedTuple):
    """A free extent."""

    start: int
    size: int


class Extents:
    """The free extents of a range of `size` from `start`. Sizes are positive."""

    __slots__ = ("_bins", "_filled", "_size_at", "_start_of_end")

    def __init__(self, size: int, start: int = 0) -> None:
        self._size_at: dict[int, int] = {}
        self._start_of_end: dict[int, int] = {}
        # Dicts serve as sets with a cheap `popitem`, which returns the extent that was freed last:
        # its memory is most likely still in the processor's cache.
        self._bins: list[dict[int, None]] = [{} for _ in range(size.bit_length())]
        self._filled = 0
        self._add(start, size)

    def take(self, size: int) -> int | None:
        """Take an extent of `size`; return its start, or None if none is long enough."""
        enough = (size - 1).bit_length()
        candidates = self._filled >> enough
        if candidates:
            number = enough + (candidates & -candidates).bit_length() - 1
            bin_ = self._bins[number]
            start = bin_.popitem()[0]
        else:
            number = enough - 1
            found = self._first_fit(number, size)
            if found is None:
                return None
            start = found
            bin_ = self._bins[number]
            del bin_[start]
        if not bin_:
            self._filled ^= 1 << number
        found_size = self._size_at.pop(start)
        if found_size == size:
            del self._start_of_end[start + size]
        else:
            self._add(start + size, found_size - size)
        return start

    def give(self, start: int, size: int) -> Extent:
        """Free what `take` returned; return the free extent that contains it now."""
        end = start + size
        before = self._start_of_end.pop(start, None)
        if before is not None:
            length = self._size_at.pop(before)
            self._remove_from_bin(before, length)
            start, size = before, size + length
        after = self._size_at.pop(end, None)
        if after is not None:
            self._remove_from_bin(end, after)
            size += after
        self._add(start, size)
        return Extent(start, size)

    def free(self) -> list[Extent]:
        """All free extents by address, for statistics and tests."""
        return [Extent(*item) for item in sorted(self._size_at.items())]

    def _add(self, start: int, size: int) -> None:
        self._size_at[start] = size
        self._start_of_end[start + size] = start
        number = size.bit_length() - 1
        self._bins[number][start] = None
        self._filled |= 1 << number

    def _remove_from_bin(self, start: int, size: int) -> None:
        number = size.bit_length() - 1
        bin_ = self._bins[number]
        del bin_[start]
        if not bin_:
            self._filled ^= 1 << number

    def _first_fit(self, number: int, size: int) -> int | None:
        if not 0 <= number < len(self._bins):
            return None
        size_at = self._size_at
        return next((start for start in self._bins[number] if size_at[start] >= size), None)
