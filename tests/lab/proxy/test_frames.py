from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from minibroker.lab.proxy.exchange import UnexpectedFrame
from minibroker.lab.proxy.frames import JOINED_BYTES_MAX, FrameReader, send_frame, with_length
from minibroker.runtime.stream import MEMORY_STREAM_BYTES_MAX, memory_stream_pair


@pytest.mark.parametrize("size", [0, 1, JOINED_BYTES_MAX, JOINED_BYTES_MAX + 1, 10**6])
async def test_frames_of_any_size_arrive(size: int) -> None:
    near, far = memory_stream_pair()
    reader = FrameReader(far, 10**6)
    frames = [bytes([number]) * size for number in range(3)]
    received = []
    async with trio.open_nursery() as nursery:

        async def send() -> None:
            for frame in frames:
                await send_frame(near, frame)
            near.close()

        nursery.start_soon(send)
        while (frame := await reader.next_frame()) is not None:
            received.append(frame)
    assert received == frames


async def test_frame_above_the_limit_is_unexpected_before_it_arrives() -> None:
    near, far = memory_stream_pair()
    await near.send_all(with_length(bytes(11))[:4])
    with pytest.raises(UnexpectedFrame, match="above the limit of 10"):
        await FrameReader(far, 10).next_frame()


async def test_tls_is_recognized_in_the_first_bytes_only() -> None:
    near, far = memory_stream_pair()
    await near.send_all(with_length(b"x"))
    reader = FrameReader(far, 2**30)
    assert await reader.next_frame() == b"x"
    await near.send_all(b"\x16\x03\x01\0 more")
    near.close()
    assert await reader.next_frame() is None
    near, far = memory_stream_pair()
    await near.send_all(b"\x16\x03\x01\0")
    with pytest.raises(UnexpectedFrame, match="TLS"):
        await FrameReader(far, 2**30).next_frame()


async def test_stream_is_read_only_for_a_frame() -> None:
    near, far = memory_stream_pair()
    FrameReader(far, 100)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(near.send_all, bytes(MEMORY_STREAM_BYTES_MAX + 1))
        await wait_all_tasks_blocked()
        assert far.unread() == MEMORY_STREAM_BYTES_MAX
        nursery.cancel_scope.cancel()


async def test_discarded_bytes_are_read_to_the_end() -> None:
    near, far = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(FrameReader(far, 100).discard_bytes)
        await near.send_all(bytes(3 * MEMORY_STREAM_BYTES_MAX))
        near.close()
