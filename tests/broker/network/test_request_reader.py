"""Bodies out of a stream, whichever way it was cut, and slow ones that occupy memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from minibroker.broker.metrics.definitions import CloseReason
from minibroker.broker.network.client_connection import (
    SCRATCH_BYTES,
    InvalidRequestSize,
    RequestReader,
)
from minibroker.runtime import request_memory
from minibroker.runtime.arena import PART_BYTES_MIN, Arena, ArenaPart
from minibroker.runtime.clock import SimulatedClock
from minibroker.runtime.request_memory import ALIGNMENT, Claim
from minibroker.runtime.stream import MemoryStream, StreamClosed, memory_stream_pair
from tests.broker.process.conftest import MakeEnvironment
from tests.broker.roles.running_processor import HELLO, running_processor
from tests.simulation.client import frame

LARGEST = PART_BYTES_MIN // 2


@pytest.fixture
def part() -> ArenaPart:
    return Arena.create(PART_BYTES_MIN, 1).open_part(0)


class Wire:
    """A client's end, and a reader at the other."""

    def __init__(self, part: ArenaPart) -> None:
        self.part = part
        self.client, server = memory_stream_pair()
        scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.server = server
        now = trio.current_time
        self.reader = RequestReader(
            server, part, LARGEST, scratch, now, number=1, address="10.0.0.1"
        )

    async def bodies(self) -> list[bytes]:
        """All bodies up to the end."""
        found = []
        while (block := await self.reader.next()) is not None:
            found.append(bytes(block.view))
            block.release()
        return found

    def end(self) -> None:
        end_sending(self.client)


def end_sending(stream: MemoryStream) -> None:
    stream._outgoing.ended = True
    stream._outgoing.notify()


@pytest.fixture
def wire(part: ArenaPart) -> Iterator[Wire]:
    made = Wire(part)
    yield made
    assert part.statistics().used == 0


def framed(*bodies: bytes) -> bytes:
    return b"".join(len(body).to_bytes(4, "big") + body for body in bodies)


async def send_in_pieces(wire: Wire, data: bytes, size: int) -> list[bytes]:
    found: list[bytes] = []

    async def read() -> None:
        found.extend(await wire.bodies())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        for at in range(0, len(data), size):
            await wire.client.send_all(data[at : at + size])
            await wait_all_tasks_blocked()
        wire.end()
    return found


BODIES = (b"a", b"bb" * 9, bytes(range(256)))


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 1000], ids=lambda size: f"{size} at a time")
async def test_stream_cut_anywhere_yields_same_bodies(wire: Wire, size: int) -> None:
    assert await send_in_pieces(wire, framed(*BODIES), size) == list(BODIES)


async def test_body_larger_than_one_read(wire: Wire) -> None:
    body = bytes(range(256)) * (LARGEST // 256)
    data = framed(b"first", body, b"last")
    assert await send_in_pieces(wire, data, len(data)) == [b"first", body, b"last"]


async def test_pipelined_requests_wait_in_the_reader(wire: Wire) -> None:
    await wire.client.send_all(framed(b"one", b"two")[:-1])
    block = await wire.reader.next()
    assert block is not None
    assert bytes(block.view) == b"one"
    block.release()
    assert wire.part.statistics().used == 0
    await wire.client.send_all(b"o")
    wire.end()
    assert await wire.bodies() == [b"two"]


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=5), st.integers(1, 50))
def test_bodies_are_independent_of_stream_cuts(bodies: list[bytes], size: int) -> None:
    async def main() -> list[bytes]:
        wire = Wire(Arena.create(PART_BYTES_MIN, 1).open_part(0))
        data = framed(*bodies)
        return await send_in_pieces(wire, data, size)

    assert trio.run(main, clock=MockClock(autojump_threshold=0)) == bodies


@pytest.mark.parametrize(
    ("data", "reason", "text"),
    [
        (b"\0\0\0\0", CloseReason.BAD_FRAME, "claims 0 bytes"),
        (b"\xff\xff\xff\xff", CloseReason.BAD_FRAME, "claims -1 bytes"),
        (b"\x7f\xff\xff\xff", CloseReason.FRAME_TOO_LARGE, "2147483647 bytes; socket.request"),
        ((LARGEST + 1).to_bytes(4, "big"), CloseReason.FRAME_TOO_LARGE, str(LARGEST)),
        (b"\x16\x03\x01\x02\0\x01", CloseReason.BAD_FRAME, "TLS handshake"),
        (b"GET / HTTP/1.1", CloseReason.BAD_FRAME, "HTTP request"),
    ],
    ids=["zero", "negative", "absurd", "one too many", "TLS", "HTTP"],
)
async def test_invalid_request_is_rejected_before_memory_is_taken(
    wire: Wire, data: bytes, reason: CloseReason, text: str
) -> None:
    await wire.client.send_all(data)
    with pytest.raises(InvalidRequestSize, match=text) as caught:
        await wire.reader.next()
    assert caught.value.reason is reason
    assert wire.part.statistics().peak == 0


@pytest.mark.parametrize(
    ("data", "missing"), [(b"\0", 3), (b"\0\0\0\5abc", 2), (b"\0\0\0\5", 5)], ids=repr
)
async def test_request_that_is_cut_short(wire: Wire, data: bytes, missing: int) -> None:
    await wire.client.send_all(data)
    wire.end()
    with pytest.raises(InvalidRequestSize, match=f"disconnected {missing} bytes before") as caught:
        await wire.reader.next()
    assert caught.value.reason is CloseReason.PARTIAL_REQUEST


async def test_close_between_requests_is_ordinary(wire: Wire) -> None:
    wire.end()
    assert await wire.reader.next() is None


async def test_close_returns_memory(wire: Wire) -> None:
    await wire.client.send_all(b"\0\0\0\5ab")

    async def expect_closed() -> None:
        with pytest.raises(StreamClosed):
            await wire.reader.next()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(expect_closed)
        await wait_all_tasks_blocked()
        assert wire.part.statistics().used > 0
        wire.server.close()


@pytest.mark.parametrize("sent", [8, 6], ids=["whole", "unfinished"])
async def test_nothing_is_read_while_memory_is_full(wire: Wire, sent: int) -> None:
    taken = [wire.part.allocate_nowait(PART_BYTES_MIN) for _ in range(2)]
    await wire.client.send_all(framed(b"late")[:sent])
    found: list[bytes] = []

    async def read() -> None:
        found.extend(await wire.bodies())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await wait_all_tasks_blocked()
        await wire.client.send_all(framed(b"late")[sent:])
        wire.end()
        await wait_all_tasks_blocked()
        assert (found, wire.part.statistics().waiting) == ([], 1)
        for block in taken:
            assert block is not None
            block.release()
    assert found == [b"late"]


async def test_request_that_waits_for_memory_is_complete_after_a_cancelled_wait(wire: Wire) -> None:
    taken = [wire.part.allocate_nowait(PART_BYTES_MIN) for _ in range(2)]
    await wire.client.send_all(framed(b"late"))
    wire.end()
    with trio.move_on_after(0):
        await wire.reader.next()
    for block in taken:
        assert block is not None
        block.release()
    assert await wire.bodies() == [b"late"]


async def test_too_many_waiting_requests_end_the_connection(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_memory, "WAITING_MAX", 0)
    taken = [wire.part.allocate_nowait(PART_BYTES_MIN) for _ in range(2)]
    await wire.client.send_all(framed(b"late"))
    with pytest.raises(InvalidRequestSize, match="0 requests wait for memory") as caught:
        await wire.reader.next()
    assert caught.value.reason is CloseReason.LIMIT
    for block in taken:
        assert block is not None
        block.release()


async def test_reader_knows_how_much_of_a_body_has_arrived(wire: Wire) -> None:
    await wire.client.send_all(b"\0\0\0\5ab")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wire.bodies)
        await wait_all_tasks_blocked()
        assert wire.reader.arrived() == 2
        await wire.client.send_all(b"c")
        await wait_all_tasks_blocked()
        assert wire.reader.arrived() == 3
        await wire.client.send_all(b"de")
        wire.end()


async def test_late_claim_is_named_until_its_body_has_arrived(
    wire: Wire, autojump_clock: MockClock
) -> None:
    await trio.sleep(7)
    await wire.client.send_all(b"\0\0\0\5ab")
    taken = [wire.part.allocate_nowait(PART_BYTES_MIN - ALIGNMENT) for _ in range(2)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wire.bodies)
        await wait_all_tasks_blocked()
        nursery.start_soon(wait_for_memory, wire.part)
        await trio.sleep(0.5)
        assert evicted(wire) == []
        await trio.sleep(0.5)
        assert evicted(wire) == []
        await trio.sleep(12)
        assert evicted(wire) == [1]
        await wire.client.send_all(b"cde")
        await wait_all_tasks_blocked()
        assert evicted(wire) == []
        wire.end()
        for block in taken:
            assert block is not None
            block.release()


async def wait_for_memory(part: ArenaPart) -> None:
    claim = Claim(2, "10.0.0.2", PART_BYTES_MIN)
    assert part.claim(claim) is None
    (await part.wait_granted(claim)).release()


def evicted(wire: Wire) -> list[int]:
    claims = wire.part.evict(trio.current_time(), lambda _: wire.reader.arrived())
    return [claim.connection for claim in claims]


LARGE = 1024 * 1024
LARGE_MAX = f"socket.request.max.bytes={LARGE}"


def large_hello() -> bytes:
    """A request padded to the maximum size."""
    body = frame(HELLO, 4)[4:].ljust(LARGE, b"\0")
    return LARGE.to_bytes(4, "big") + body


async def test_slow_claim_is_evicted_only_when_a_large_request_waits(
    make_env: MakeEnvironment, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_processor(make_env, LARGE_MAX, arena=Arena.create(LARGE, 1)) as at:
        slow = await at.connect()
        await slow.stream.send_all(large_hello()[:7])
        await trio.sleep(60)
        other = await at.connect()
        assert (await other.ask(HELLO, 4)).error_code == 0
        assert at.closed() == {}
        asked = trio.current_time()
        await other.stream.send_all(large_hello())
        await other.receive_frame()
        assert trio.current_time() - asked < 1
        assert at.closed() == {CloseReason.SLOW_CLIENT: 1}
    [text] = [
        vars(record)["fields"]["reason"] for record in caplog.records if "slow" in record.message
    ]
    assert text.startswith(f"3 bytes of a request of {LARGE} had arrived in 60.")


async def test_small_requests_are_answered_while_large_claims_wait_for_each_other(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with running_processor(make_env, LARGE_MAX, arena=Arena.create(LARGE, 1)) as at:
        for _ in range(40):
            attacker = await at.connect()
            await attacker.stream.send_all(large_hello()[:7])
        other = await at.connect()
        asked = trio.current_time()
        for _ in range(10):
            assert (await other.ask(HELLO, 4)).error_code == 0
        assert trio.current_time() == asked
        assert at.closed() == {}


async def test_claim_that_arrives_in_time_is_not_evicted(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with running_processor(make_env, LARGE_MAX, arena=Arena.create(LARGE, 1)) as at:
        slow, other = await at.connect(), await at.connect()
        data, pieces = large_hello(), 28
        size = -(-len(data) // pieces)
        for start in range(0, len(data), size):
            await slow.stream.send_all(data[start : start + size])
            if start == 0:
                await wait_all_tasks_blocked()
                at.nursery.start_soon(other.stream.send_all, data)
            await trio.sleep(1)
        for client in (slow, other):
            await client.receive_frame()
        assert at.closed() == {}


async def test_slow_claim_is_evicted_in_real_time_while_the_clock_is_frozen(
    make_env: MakeEnvironment, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_s = 1000.0

    async def sleep_real(_clock: SimulatedClock, seconds: float) -> None:
        nonlocal real_s
        real_s += seconds
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(SimulatedClock, "real_s", lambda _clock: real_s)
    monkeypatch.setattr(SimulatedClock, "sleep_real", sleep_real)
    async with running_processor(make_env, LARGE_MAX, arena=Arena.create(LARGE, 1)) as at:
        slow, other = await at.connect(), await at.connect()
        await slow.stream.send_all(large_hello()[:7])
        await wait_all_tasks_blocked()
        autojump_clock.autojump_threshold = float("inf")
        frozen = trio.current_time()
        await other.stream.send_all(large_hello())
        await other.receive_frame()
        assert at.closed() == {CloseReason.SLOW_CLIENT: 1}
        assert trio.current_time() == frozen
        assert real_s >= 1001
        autojump_clock.autojump_threshold = 0
