"""Shared request memory: blocks, waiting, references across processes, giving pages back."""

from __future__ import annotations

import mmap
import os
import random
import select
import signal

import pytest
import trio
import trio.testing

from minibroker.runtime.arena import (
    PART_BYTES_MIN,
    PARTS_MAX,
    RESIDENT_BYTES_KEPT,
    Arena,
    ArenaError,
    ArenaPart,
    ArenaRef,
    Block,
    PartStatistics,
    RequestTooLargeError,
    StaleReferenceError,
)
from minibroker.runtime.request_memory import ALIGNMENT, SMALL_REGION_BYTES, Claim, part_bytes

PART = 1024 * 1024
WHOLE = part_bytes(PART)


@pytest.fixture
def arena() -> Arena:
    return Arena.create(2 * PART, 2)


@pytest.fixture
def part(arena: Arena) -> ArenaPart:
    return arena.open_part(0)


def take(part: ArenaPart, size: int) -> Block:
    block = part.allocate_nowait(size)
    assert block is not None
    return block


async def claimed(part: ArenaPart, claim: Claim) -> Block:
    return part.claim(claim) or await part.wait_granted(claim)


def test_block_has_requested_length_and_is_accounted_in_cache_lines(part: ArenaPart) -> None:
    block = take(part, 100)
    assert len(block.view) == 100
    assert not block.view.readonly
    assert part.statistics() == PartStatistics(size=WHOLE, used=2 * ALIGNMENT, peak=128, waiting=0)
    block.release()
    assert part.statistics() == PartStatistics(size=WHOLE, used=0, peak=128, waiting=0)


def test_reference_leads_to_the_same_bytes(arena: Arena) -> None:
    blocks = [take(arena.open_part(index), 1000) for index in (0, 1)]
    for number, block in enumerate(blocks):
        block.view[:] = bytes([number + 1]) * 1000
        block.view[10:15] = b"hello"
    refs = [block.ref(10, 6) for block in blocks]
    assert [bytes(arena.view(ref)) for ref in refs] == [b"hello\x01", b"hello\x02"]
    assert refs[1] == ArenaRef(part=1, offset=blocks[1].offset + 10, length=6, incarnation=1)


@pytest.mark.parametrize(("start", "length"), [(-1, 2), (0, 101), (100, 1), (3, -1)])
def test_reference_outside_of_its_block_is_rejected(
    part: ArenaPart, start: int, length: int
) -> None:
    with pytest.raises(ArenaError, match="not in a block of 100"):
        take(part, 100).ref(start, length)


@pytest.mark.parametrize("ref", [(2, 0, 1), (-1, 0, 1), (0, -1, 1), (0, WHOLE, 1), (0, 0, -1)])
def test_reference_outside_of_the_arena_is_rejected(
    arena: Arena, part: ArenaPart, ref: tuple[int, int, int]
) -> None:
    with pytest.raises(ArenaError, match="is outside"):
        arena.view(ArenaRef(*ref, incarnation=1))


def test_references_of_previous_incarnation_are_stale(arena: Arena) -> None:
    ref = take(arena.open_part(0), 100).ref(0, 100)
    reborn = arena.open_part(0)
    assert reborn.statistics().used == 0
    with pytest.raises(StaleReferenceError, match="incarnation 2"):
        arena.view(ref)
    arena.view(take(reborn, 100).ref(0, 100))


def test_double_release_raises(part: ArenaPart) -> None:
    block = take(part, 100)
    block.release()
    other = take(part, 100)
    with pytest.raises(ArenaError, match="released already"):
        block.release()
    assert part.statistics().used == 128
    other.release()


def test_released_block_cannot_be_used(part: ArenaPart) -> None:
    block = take(part, 100)
    block.release()
    with pytest.raises(ValueError, match="released memoryview"):
        block.view[0] = 1
    with pytest.raises(ValueError, match="released memoryview"):
        block.ref(0, 1)


def test_request_larger_than_a_part_is_rejected_at_once(part: ArenaPart) -> None:
    take(part, PART).release()
    with pytest.raises(RequestTooLargeError, match=f"{PART + 1} bytes were requested"):
        part.allocate_nowait(PART + 1)
    with pytest.raises(RequestTooLargeError, match="make the memory larger"):
        part.claim(Claim(1, "a", PART + 1))


@pytest.mark.parametrize("size", [0, -1])
def test_block_has_at_least_a_byte(part: ArenaPart, size: int) -> None:
    with pytest.raises(ValueError, match="at least 1 byte"):
        part.allocate_nowait(size)


@pytest.mark.parametrize(
    ("size", "parts"), [(PART_BYTES_MIN, 2), (PART, 0), (PART, PARTS_MAX + 1), (0, 1)]
)
def test_invalid_arena_is_rejected(size: int, parts: int) -> None:
    with pytest.raises(ValueError, match="part"):
        Arena.create(size, parts)


@pytest.mark.parametrize("index", [-1, 2])
def test_unknown_part_is_rejected(arena: Arena, index: int) -> None:
    with pytest.raises(ValueError, match="0 to 1"):
        arena.open_part(index)


def test_random_use_never_mixes_bytes_and_leaves_nothing(part: ArenaPart) -> None:
    rng = random.Random(2)
    live: list[tuple[Block, bytes]] = []
    for number in range(3000):
        block = part.allocate_nowait(rng.choice([1, 63, 64, 65, 1000, 20_000, 70_000, 300_000]))
        if block is None or len(live) > 40:
            victim, content = live.pop(rng.randrange(len(live)))
            assert bytes(victim.view) == content
            victim.release()
        if block is not None:
            block.view[:] = content = number.to_bytes(2, "big")[-1:] * len(block.view)
            live.append((block, content))
    for block, content in live:
        assert bytes(block.view) == content
        block.release()
    assert part.statistics().used == 0
    take(part, PART).release()


async def test_waiting_claim_is_granted_when_memory_is_released(part: ArenaPart) -> None:
    held = [take(part, PART // 2) for _ in range(2)]
    granted: list[Block] = []

    async def ask(size: int, address: str) -> None:
        granted.append(await claimed(part, Claim(1, address, size)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, PART, "a")
        nursery.start_soon(ask, PART, "b")
        await trio.testing.wait_all_tasks_blocked()
        assert part.statistics().waiting == 2
        held[0].release()
        await trio.testing.wait_all_tasks_blocked()
        assert granted == []
        held[1].release()
        await trio.testing.wait_all_tasks_blocked()
        assert [len(block.view) for block in granted] == [PART]
        granted[0].release()
    assert part.statistics().waiting == 0


async def test_finished_claim_allows_the_next_of_its_address(part: ArenaPart) -> None:
    claim = Claim(1, "a", PART * 2 // 5)
    await claimed(part, claim)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(claimed, part, Claim(2, "a", PART * 2 // 5))
        await trio.testing.wait_all_tasks_blocked()
        assert part.statistics().waiting == 1
        part.finish(claim)
    assert part.statistics().waiting == 0


async def test_cancelled_claim_unblocks_others(part: ArenaPart) -> None:
    held = [take(part, PART // 2), take(part, PART // 4)]
    granted: list[Block] = []

    async def ask(size: int, scope: trio.CancelScope) -> None:
        with scope:
            granted.append(await claimed(part, Claim(1, str(size), size)))

    large, small = trio.CancelScope(), trio.CancelScope()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, PART, large)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(ask, PART // 8, small)
        await trio.testing.wait_all_tasks_blocked()
        large.cancel()
    assert large.cancelled_caught
    assert not small.cancelled_caught
    for block in [*held, *granted]:
        block.release()
    assert part.statistics() == PartStatistics(size=WHOLE, used=0, peak=PART * 7 // 8, waiting=0)


async def test_contention_is_noticed_when_a_claim_waits(part: ArenaPart) -> None:
    held = take(part, PART)
    noticed = trio.Event()

    async def watch() -> None:
        await part.wait_contended()
        noticed.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        await trio.testing.wait_all_tasks_blocked()
        assert not noticed.is_set()
        nursery.start_soon(claimed, part, Claim(1, "a", PART))
        await trio.testing.wait_all_tasks_blocked()
        await noticed.wait()
        await part.wait_contended()
        held.release()


def resident_bytes(pid: int | str = "self") -> int:
    with open(f"/proc/{pid}/statm") as statm:
        return int(statm.read().split()[2]) * mmap.PAGESIZE  # shared pages


def test_idle_region_returns_pages_of_a_burst() -> None:
    burst = 16 * RESIDENT_BYTES_KEPT
    part = Arena.create(burst, 1).open_part(0)
    small, block = take(part, 1), take(part, burst)
    small.view[:] = b"x"
    block.view[:] = b"x" * burst
    assert part.trim() == 0, "it is in use"
    small.release()
    block.release()
    full = resident_bytes()
    assert part.trim() == 0, "it was in use since the last call"
    assert part.trim() == SMALL_REGION_BYTES + burst - RESIDENT_BYTES_KEPT
    assert full - resident_bytes() > burst // 2
    assert part.trim() == 0, "nothing is left to give"
    assert bytes(take(part, 1).view) == b"x", "everyday pages stay"
    assert bytes(take(part, burst).view[-1:]) == b"\0"


def test_pages_of_previous_incarnation_are_returned() -> None:
    arena = Arena.create(4 * RESIDENT_BYTES_KEPT, 1)
    take(arena.open_part(0), 4 * RESIDENT_BYTES_KEPT).view[-1] = 1
    reborn = arena.open_part(0)
    assert reborn.trim() == arena.part_size - RESIDENT_BYTES_KEPT
    assert take(reborn, 4 * RESIDENT_BYTES_KEPT).view[-1] == 0


def test_everyday_use_is_not_trimmed(part: ArenaPart) -> None:
    take(part, PART).release()
    assert [part.trim(), part.trim(), part.trim()] == [0, 0, 0]


def test_peer_process_reads_in_place(arena: Arena) -> None:
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            block = take(arena.open_part(1), 5)
            block.view[:] = b"bytes"
            os.write(write_end, bytes(block.ref(0, 5)))
        finally:
            os._exit(0)
    try:
        assert select.select([read_end], [], [], 20)[0]
        part, offset, length, incarnation = os.read(read_end, 100)
        assert bytes(arena.view(ArenaRef(part, offset, length, incarnation))) == b"bytes"
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(read_end)
        os.close(write_end)
