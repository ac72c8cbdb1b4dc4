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

from minibroker.runtime import arena as arena_module
from minibroker.runtime.arena import (
    ALIGNMENT,
    PARTS_MAX,
    RESIDENT_BYTES_KEPT,
    Arena,
    ArenaError,
    ArenaRef,
    Block,
    Part,
    PartStatistics,
    RequestTooLargeError,
    StaleReferenceError,
)

PART = 64 * 1024


@pytest.fixture
def arena() -> Arena:
    return Arena.create(2 * PART, 2)


@pytest.fixture
def part(arena: Arena) -> Part:
    return arena.open_part(0)


def take(part: Part, size: int) -> Block:
    block = part.allocate_nowait(size)
    assert block is not None
    return block


def test_a_block_is_as_long_as_asked_and_accounted_in_cache_lines(part: Part) -> None:
    block = take(part, 100)
    assert len(block.view) == 100
    assert not block.view.readonly
    assert part.statistics() == PartStatistics(size=PART, used=2 * ALIGNMENT, peak=128, waiting=0)
    block.release()
    assert part.statistics() == PartStatistics(size=PART, used=0, peak=128, waiting=0)


def test_a_reference_leads_to_the_same_bytes(arena: Arena) -> None:
    blocks = [take(arena.open_part(index), 1000) for index in (0, 1)]
    for number, block in enumerate(blocks):
        block.view[:] = bytes([number + 1]) * 1000
        block.view[10:15] = b"hello"
    refs = [block.ref(10, 6) for block in blocks]
    assert [bytes(arena.view(ref)) for ref in refs] == [b"hello\x01", b"hello\x02"]
    assert refs[1] == ArenaRef(part=1, offset=blocks[1].offset + 10, length=6, life=1)


@pytest.mark.parametrize(("start", "length"), [(-1, 2), (0, 101), (100, 1), (3, -1)])
def test_a_reference_outside_of_its_block_is_refused(part: Part, start: int, length: int) -> None:
    with pytest.raises(ArenaError, match="not in a block of 100"):
        take(part, 100).ref(start, length)


@pytest.mark.parametrize("ref", [(2, 0, 1), (-1, 0, 1), (0, -1, 1), (0, PART, 1), (0, 0, -1)])
def test_a_reference_outside_of_the_arena_is_refused(
    arena: Arena, part: Part, ref: tuple[int, int, int]
) -> None:
    with pytest.raises(ArenaError, match="lies outside"):
        arena.view(ArenaRef(*ref, life=1))


def test_references_of_a_former_life_are_stale(arena: Arena) -> None:
    ref = take(arena.open_part(0), 100).ref(0, 100)
    reborn = arena.open_part(0)
    assert reborn.statistics().used == 0
    with pytest.raises(StaleReferenceError, match="life 2"):
        arena.view(ref)
    arena.view(take(reborn, 100).ref(0, 100))


def test_releasing_twice_is_an_error_that_frees_nothing(part: Part) -> None:
    block = take(part, 100)
    block.release()
    other = take(part, 100)
    with pytest.raises(ArenaError, match="released already"):
        block.release()
    assert part.statistics().used == 128
    other.release()


def test_a_released_block_cannot_be_used(part: Part) -> None:
    block = take(part, 100)
    block.release()
    with pytest.raises(ValueError, match="released memoryview"):
        block.view[0] = 1
    with pytest.raises(ValueError, match="released memoryview"):
        block.ref(0, 1)


async def test_more_than_a_part_is_refused_at_once(part: Part) -> None:
    take(part, PART).release()
    with pytest.raises(RequestTooLargeError, match=f"{PART + 1} bytes were asked for"):
        part.allocate_nowait(PART + 1)
    with pytest.raises(RequestTooLargeError, match="make the memory larger"):
        await part.allocate(PART + 1)


@pytest.mark.parametrize("size", [0, -1])
def test_a_block_has_at_least_a_byte(part: Part, size: int) -> None:
    with pytest.raises(ValueError, match="at least 1 byte"):
        part.allocate_nowait(size)


@pytest.mark.parametrize(("size", "parts"), [(PART, 2), (PART, 0), (PART, PARTS_MAX + 1), (0, 1)])
def test_an_absurd_arena_is_refused(size: int, parts: int) -> None:
    with pytest.raises(ValueError, match="part"):
        Arena.create(size, parts)


@pytest.mark.parametrize("index", [-1, 2])
def test_a_part_that_is_not_there_is_refused(arena: Arena, index: int) -> None:
    with pytest.raises(ValueError, match="0 to 1"):
        arena.open_part(index)


def test_random_use_never_mixes_bytes_and_leaves_nothing(part: Part) -> None:
    rng = random.Random(2)
    live: list[tuple[Block, bytes]] = []
    for number in range(3000):
        block = part.allocate_nowait(rng.choice([1, 63, 64, 65, 1000, 5000, 20000]))
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


async def test_waiters_are_served_in_the_order_they_came(part: Part) -> None:
    held = [take(part, PART // 4) for _ in range(4)]
    served: list[str] = []

    async def ask(name: str, size: int) -> None:
        block = await part.allocate(size)
        served.append(name)
        assert len(block.view) == size

    async with trio.open_nursery() as nursery:
        for name, size in [("large", PART // 2), ("small", 1), ("medium", PART // 8)]:
            nursery.start_soon(ask, name, size)
            await trio.testing.wait_all_tasks_blocked()
        assert part.statistics().waiting == 3
        held[0].release()
        await trio.testing.wait_all_tasks_blocked()
        assert served == [], "the large one is first, and a quarter is not enough"
        assert part.allocate_nowait(1) is None, "nobody overtakes those who wait"
        held[1].release()
        await trio.testing.wait_all_tasks_blocked()
        assert served == ["large"]
        held[2].release()
    assert sorted(served[1:]) == ["medium", "small"]
    assert part.statistics().waiting == 0


async def test_a_waiter_that_gives_up_lets_the_others_pass(part: Part) -> None:
    held = [take(part, PART // 2), take(part, PART // 4)]
    granted: list[Block] = []

    async def ask(size: int, scope: trio.CancelScope) -> None:
        with scope:
            granted.append(await part.allocate(size))

    large, small = trio.CancelScope(), trio.CancelScope()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, PART, large)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(ask, 1000, small)
        await trio.testing.wait_all_tasks_blocked()
        large.cancel()
    assert large.cancelled_caught
    assert not small.cancelled_caught
    for block in [*held, *granted]:
        block.release()
    assert part.statistics() == PartStatistics(
        size=PART, used=0, peak=PART * 3 // 4 + 1024, waiting=0
    )


async def test_waiting_is_bounded(part: Part, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena_module, "WAITING_MAX", 1)
    block = take(part, PART)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(part.allocate, 1)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(ArenaError, match="1 tasks wait"):
            await part.allocate(1)
        block.release()


async def test_a_cancelled_task_gets_nothing(part: Part) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await part.allocate(1)
    assert scope.cancelled_caught
    assert part.statistics().used == 0


def resident_bytes(pid: int | str = "self") -> int:
    with open(f"/proc/{pid}/statm") as statm:
        return int(statm.read().split()[2]) * mmap.PAGESIZE  # shared pages


def test_pages_of_a_burst_are_given_back_when_the_part_stays_idle() -> None:
    burst = 16 * RESIDENT_BYTES_KEPT
    part = Arena.create(burst, 1).open_part(0)
    block = take(part, burst)
    block.view[:] = b"x" * burst
    assert part.trim() == 0, "it is in use"
    block.release()
    full = resident_bytes()
    assert part.trim() == 0, "it was in use since the last call"
    assert part.trim() == burst - RESIDENT_BYTES_KEPT
    assert full - resident_bytes() > burst // 2
    assert part.trim() == 0, "nothing is left to give"
    block = take(part, burst)
    assert bytes(block.view[:1]) == b"x", "everyday pages stay"
    assert bytes(block.view[-1:]) == b"\0"


def test_pages_of_a_former_life_are_given_back() -> None:
    arena = Arena.create(4 * RESIDENT_BYTES_KEPT, 1)
    take(arena.open_part(0), arena.part_size).view[-1] = 1
    reborn = arena.open_part(0)
    assert reborn.trim() == 3 * RESIDENT_BYTES_KEPT
    assert take(reborn, arena.part_size).view[-1] == 0


def test_everyday_use_is_not_trimmed(part: Part) -> None:
    take(part, PART).release()
    assert [part.trim(), part.trim(), part.trim()] == [0, 0, 0]


def test_another_process_reads_in_place(arena: Arena) -> None:
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
        part, offset, length, life = os.read(read_end, 100)
        assert bytes(arena.view(ArenaRef(part, offset, length, life))) == b"bytes"
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(read_end)
        os.close(write_end)
