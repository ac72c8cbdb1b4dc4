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
from typing import Final

from minibroker.runtime.extents import Extents

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
    """The bytes that a request of a size takes."""
    return (size + (ALIGNMENT - 1)) & -ALIGNMENT


def part_bytes(large_bytes: int) -> int:
    """The bytes of both regions."""
    return min(SMALL_REGION_BYTES, large_bytes) + large_bytes


class Claim:
    """Memory for a request that has not arrived whole, or found no room when it had (`whole`).

    `start` is its offset, once granted; `since` is when receiving into it started, in seconds;
    `arrived` is how many of its bytes had arrived when that was last checked.
    """

    __slots__ = (
        "address",
        "arrived",
        "connection",
        "region",
        "reserved",
        "since",
        "size",
        "start",
        "whole",
    )

    def __init__(self, connection: int, address: str, size: int, *, whole: bool = False) -> None:
        self.connection = connection
        self.address = address
        self.size = size
        self.reserved = aligned(size)
        self.whole = whole
        self.region: Region | None = None
        self.start: int | None = None
        self.since: float | None = None
        self.arrived = 0

    @property
    def lane(self) -> Lane:
        """The queue in which it waits. Whole requests do not wait behind an address's limit."""
        return self.address, self.whole

    def lateness(self, now: float) -> float:
        """How many times too slowly its bytes arrive: 1 and less is in time."""
        elapsed = 0.0 if self.since is None else now - self.since
        if elapsed < GRACE_S:
            return 0.0
        if not self.arrived:
            return math.inf
        return self.size * elapsed / (self.arrived * ARRIVAL_S)


class Region:
    """A range of the memory, the unfinished claims that hold some of it, and those that wait."""

    def __init__(self, start: int, size: int, address_bytes_max: int) -> None:
        self.extents = Extents(size, start)
        self.unfinished: dict[Claim, None] = {}
        self.ready: OrderedDict[Lane, deque[Claim]] = OrderedDict()
        """Claims that wait for room, in turn."""
        self.limited: dict[Lane, deque[Claim]] = {}
        """Claims of addresses that are at their limit."""
        self._address_bytes_max = address_bytes_max
        self._held: dict[str, int] = {}

    def admits(self, claim: Claim) -> bool:
        """Whether the limit of its address lets a claim in; it always lets one in."""
        held = self._held.get(claim.address, 0)
        return claim.whole or not held or held + claim.reserved <= self._address_bytes_max

    def take(self, claim: Claim) -> int | None:
        """The offset of room for a claim, if its address may have it and there is any."""
        return self.extents.take(claim.reserved) if self.admits(claim) else None

    def enqueue(self, claim: Claim) -> None:
        claim.region = self
        lane = claim.lane
        is_limited = lane in self.limited or not (lane in self.ready or self.admits(claim))
        lanes = self.limited if is_limited else self.ready
        lanes.setdefault(lane, deque()).append(claim)

    def dequeue(self, claim: Claim) -> None:
        """Remove a waiting claim; its lane's turn is over if it was first."""
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

    def hold(self, claim: Claim) -> None:
        """Count a granted claim until it has arrived."""
        if not claim.whole:
            claim.region = self
            self.unfinished[claim] = None
            self._held[claim.address] = self._held.get(claim.address, 0) + claim.reserved

    def let_go(self, claim: Claim) -> None:
        claim.region = None
        del self.unfinished[claim]
        held = self._held.pop(claim.address) - claim.reserved
        if held:
            self._held[claim.address] = held
        if self.limited:
            self._readmit(claim.lane)

    def bytes_wanted(self) -> int:
        """Bytes of all claims that wait for room."""
        return sum(claim.reserved for claims in self.ready.values() for claim in claims)

    def too_late(self, now: float, bytes_wanted: int) -> Iterator[Claim]:
        """Claims to evict, the slowest first, until as much is free as is waited for."""
        of_address = {
            address: sum(claim.reserved for claim in claims)
            for (address, _), claims in self.limited.items()
        }
        if not bytes_wanted and not of_address:
            return
        late = [claim for claim in self.unfinished if claim.lateness(now) > 1]
        for claim in sorted(late, key=lambda claim: -claim.lateness(now)):
            own = of_address.get(claim.address, 0)
            if bytes_wanted > 0 or own > 0:
                bytes_wanted -= claim.reserved
                of_address[claim.address] = own - claim.reserved
                yield claim

    def _readmit(self, lane: Lane) -> None:
        if lane in self.limited and self.admits(self.limited[lane][0]):
            self.ready[lane] = self.limited.pop(lane)


class RequestMemory:
    """The books of one part."""

    def __init__(self, large_bytes: int, address_bytes_max: int | None = None) -> None:
        """By default an address may have unfinished claims to half of the large region."""
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
        """The offset of memory for a request that has arrived whole; None if it has to wait."""
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
        """Whether a claim is granted at once; otherwise it waits. Raises `TooManyWaiting`."""
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
        """Claims that waited and have got memory now. Call it whenever some became free."""
        granted: list[Claim] = []
        for region in (self._large, self._small):
            while (claim := region.next_ready()) is not None:
                if not self._place(claim, region):
                    break
                granted.append(claim)
        return granted

    def abandon(self, claim: Claim) -> None:
        """A waiting claim is given up. Call `grant` afterwards."""
        assert claim.region is not None
        claim.region.dequeue(claim)
        self.waiting -= 1

    def finish(self, claim: Claim) -> None:
        """A claim has arrived whole or its memory is about to be freed. Call `grant` afterwards."""
        assert claim.region is not None
        claim.region.let_go(claim)

    def evict(self, now: float, arrived: Callable[[Claim], int]) -> list[Claim]:
        """Claims that arrive too slowly while others wait for their memory.

        `arrived` returns how many bytes of a claim have arrived. Evicted claims must be finished
        and freed.
        """
        if not self.waiting:
            return []
        small, large = self._small, self._large
        for claim in (*small.unfinished, *large.unfinished):
            if claim.since is not None and now - claim.since >= GRACE_S:
                claim.arrived = arrived(claim)
        wanted = small.bytes_wanted()
        # A small request may use the large region, too.
        return [
            *small.too_late(now, wanted),
            *large.too_late(now, wanted + large.bytes_wanted()),
        ]

    def _place(self, claim: Claim, region: Region) -> bool:
        """Take memory for a claim; for a small one also large memory for which none waits."""
        holder = region
        start = holder.take(claim)
        if start is None and region is self._small and not self._large.ready:
            holder = self._large
            start = holder.take(claim)
        if start is None:
            return False
        if claim.region is not None:
            claim.region.dequeue(claim)
            self.waiting -= 1
        claim.start = start
        holder.hold(claim)
        self.used += claim.reserved
        if self.used > self.peak:  # noqa: PLR1730 - as in `take`
            self.peak = self.used
        return True
