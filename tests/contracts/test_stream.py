"""The contract of a byte stream, held against sockets and memory."""

from __future__ import annotations

import errno
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
import trio
import trustme
from trio.testing import wait_all_tasks_blocked

from minibroker.broker.network.tls import TlsStream
from minibroker.runtime import system
from minibroker.runtime.stream import (
    LOW_WATER_FROM_BYTES,
    ByteStream,
    SocketStream,
    StreamClosed,
    memory_stream_pair,
)
from tests.tcp import connected_sockets

Pair = tuple[ByteStream, ByteStream]


def tcp_pair() -> Pair:
    client, server = connected_sockets()
    return SocketStream(client), SocketStream(server)


@pytest.fixture(scope="module")
def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    authority = trustme.CA()
    ours, theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("localhost").configure_cert(ours)
    authority.configure_trust(theirs)
    theirs.check_hostname = False
    ours.num_tickets = 0  # An unread session ticket would turn a close into a reset.
    return theirs, ours


async def tls_pair(over: Pair, contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> Pair:
    client = TlsStream(over[0], contexts[0], server_side=False)
    server = TlsStream(over[1], contexts[1])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.handshake)
        nursery.start_soon(server.handshake)
    return client, server


@pytest.fixture(params=["memory", "tcp", "portable tcp", "tls in memory", "tls over tcp"])
async def pair(
    request: pytest.FixtureRequest,
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Pair]:
    monkeypatch.setattr(system, "is_portable", lambda: "portable" in request.param)
    client, server = memory_stream_pair() if "memory" in request.param else tcp_pair()
    if "tls" in request.param:
        client, server = await tls_pair((client, server), contexts)
    yield client, server
    client.close()
    server.close()


async def receive_exactly(stream: ByteStream, count: int) -> bytes:
    data = bytearray(count)
    view = memoryview(data)
    filled = 0
    while filled < count:
        received = await stream.receive_into(view[filled:])
        assert received
        filled += received
    return bytes(data)


async def test_bytes_are_received_in_order(pair: Pair) -> None:
    client, server = pair
    await client.send_all(b"one ", more=True)
    await client.send_all(memoryview(b"two"))
    assert await receive_exactly(server, 7) == b"one two"


async def test_receive_exactly_counts_bytes_before_it_completes(pair: Pair) -> None:
    client, server = pair
    size = LOW_WATER_FROM_BYTES * 2
    view = memoryview(bytearray(size))
    for _ in range(2):  # The second count starts again.
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.receive_exactly, view)
            await wait_all_tasks_blocked()
            await client.send_all(bytes(1000))
            # TLS adds a few bytes to each record.
            await arrival(server, 1000, 1100)
            await client.send_all(bytes(size - 1001))
            await arrival(server, size - 1, size + 1000)
            await client.send_all(b"x")
        assert bytes(view[-1:]) == b"x"


async def arrival(stream: ByteStream, least: int, most: int) -> None:
    with trio.fail_after(20):
        while stream.arrived() < least:
            await trio.lowlevel.checkpoint()
    assert stream.arrived() <= most


async def test_sender_of_large_data_blocks_until_it_is_read(pair: Pair) -> None:
    client, server = pair
    data = os.urandom(8_000_000)
    done = False

    async def send() -> None:
        nonlocal done
        await client.send_all(data)
        done = True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        await wait_all_tasks_blocked()
        assert not done
        assert await receive_exactly(server, len(data)) == data


async def test_receive_after_peer_close_returns_zero(pair: Pair) -> None:
    client, server = pair
    await client.send_all(b"last")
    client.close()
    assert await receive_exactly(server, 4) == b"last"
    assert await server.receive_into(memoryview(bytearray(10))) == 0


async def test_send_to_closed_peer_raises_stream_closed(pair: Pair) -> None:
    client, server = pair
    server.close()
    with pytest.raises(StreamClosed):
        await client.send_all(b"x" * 10_000_000)


async def test_bytes_sent_now_are_delivered_before_close(pair: Pair) -> None:
    client, server = pair
    sent = server.send_now(b"bye")
    assert sent == (0 if isinstance(server, TlsStream) else 3)
    server.close()
    assert await receive_exactly(client, sent) == b"bye"[:sent]
    assert await client.receive_into(memoryview(bytearray(9))) == 0


async def test_send_now_sends_what_fits(pair: Pair) -> None:
    client, server = pair
    data = os.urandom(8_000_000)
    sent = server.send_now(data)
    assert sent < len(data)
    server.close()
    assert await receive_exactly(client, sent) == data[:sent]


async def test_send_now_on_closed_stream_raises_stream_closed(pair: Pair) -> None:
    _client, server = pair
    if isinstance(server, TlsStream):
        return  # It never sends at once.
    server.close()
    with pytest.raises(StreamClosed):
        server.send_now(b"too late")


async def test_close_wakes_blocked_reader(pair: Pair) -> None:
    client, _server = pair

    async def expect_closed() -> None:
        with pytest.raises(StreamClosed):
            await client.receive_into(memoryview(bytearray(1)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(expect_closed)
        await wait_all_tasks_blocked()
        client.close()


async def test_send_file_sends_range_of_file(pair: Pair, tmp_path: Path) -> None:
    client, server = pair
    content = os.urandom(3_000_000)
    file = tmp_path / "segment"
    file.write_bytes(content)
    with file.open("rb") as opened:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send_file, opened.fileno(), 1_000, 2_500_000)
            assert await receive_exactly(server, 2_500_000) == content[1_000:2_501_000]


async def test_send_file_beyond_end_of_file_raises_eof_error(pair: Pair, tmp_path: Path) -> None:
    client, server = pair
    file = tmp_path / "segment"
    file.write_bytes(b"short")
    with (
        file.open("rb") as opened,
        pytest.raises(EOFError, match="the file ends 5 bytes too early"),
    ):
        await client.send_file(opened.fileno(), 0, 10)
    assert await receive_exactly(server, 5) == b"short"


async def test_send_file_that_cannot_be_read_raises_os_error(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, _ = pair
    file = tmp_path / "segment"
    file.write_bytes(b"content")

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    for call in ("sendfile", "pread"):
        monkeypatch.setattr(os, call, fail)
    with file.open("rb") as opened, pytest.raises(OSError, match="Input/output error"):
        await client.send_file(opened.fileno(), 0, 7)


async def test_both_ends_have_matching_addresses(pair: Pair) -> None:
    client, server = pair
    assert client.peer == server.local
    assert server.peer == client.local
    assert client.peer[0] == "127.0.0.1"


async def test_cancelled_receive_loses_no_bytes(pair: Pair) -> None:
    client, server = pair
    with trio.move_on_after(0):
        await server.receive_into(memoryview(bytearray(4)))
    await client.send_all(b"kept")
    assert await receive_exactly(server, 4) == b"kept"


@pytest.mark.parametrize("size", [1, 1000, 100_000, 3_000_000])
async def test_receive_exactly_reads_requested_bytes_only(pair: Pair, size: int) -> None:
    client, server = pair
    data = os.urandom(size)
    received = bytearray(size)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.send_all, data + b"next")
        assert await server.receive_exactly(memoryview(received)) == size
        assert received == data
        # Whatever was waited for, the next few bytes are given at once.
        assert await receive_exactly(server, 4) == b"next"


async def test_receive_exactly_returns_count_at_early_end(pair: Pair) -> None:
    client, server = pair
    buffer = memoryview(bytearray(1_000_000))
    counts: list[int] = []

    async def receive() -> None:
        counts.append(await server.receive_exactly(buffer))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        await wait_all_tasks_blocked()
        await client.send_all(b"x" * 100)
        client.close()
    assert counts == [100]


async def test_blocked_receive_is_counted_in_waits(pair: Pair) -> None:
    client, server = pair
    await client.send_all(b"here")
    assert await receive_exactly(server, 2) == b"he"
    before = server.waits
    assert await receive_exactly(server, 2) == b"re"
    assert server.waits == before
    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive_exactly, server, 1)
        await wait_all_tasks_blocked()
        await client.send_all(b"!")
    assert server.waits > before


async def test_blocked_send_is_counted_in_waits(pair: Pair) -> None:
    client, server = pair
    before = client.waits
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.send_all, bytes(8_000_000))
        await wait_all_tasks_blocked()
        assert await receive_exactly(server, 8_000_000) == bytes(8_000_000)
    assert client.waits > before


async def test_before_waiting_is_called_before_blocking(pair: Pair) -> None:
    client, server = pair
    said: list[int] = []
    client.before_waiting = lambda: said.append(client.waits)
    await client.send_all(b"here")
    assert said == []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.send_all, bytes(8_000_000))
        await wait_all_tasks_blocked()
        assert said
        assert await receive_exactly(server, 8_000_004) == b"here" + bytes(8_000_000)
    del said[:]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive_exactly, client, 1)
        await wait_all_tasks_blocked()
        assert len(said) == 1
        await server.send_all(b"!")


async def test_socket_receives_now_what_has_arrived() -> None:
    client, server = tcp_pair()
    assert isinstance(server, SocketStream)
    view = memoryview(bytearray(10))
    assert (server.is_readable(), server.receive_now(view)) == (False, None)
    await client.send_all(b"abc")
    await trio.lowlevel.wait_readable(server.descriptor)
    assert (server.is_readable(), server.receive_now(view)) == (True, 3)
    client.close()
    await trio.lowlevel.wait_readable(server.descriptor)
    assert (server.is_readable(), server.receive_now(view)) == (True, 0)
    server.close()
    assert server.is_readable()
    with pytest.raises(StreamClosed):
        server.receive_now(view)


async def test_stream_to_be_reset_stays_open_until_it_is_closed(pair: Pair) -> None:
    client, server = pair
    server.reset_on_close()
    await server.send_all(b"still open")
    assert await receive_exactly(client, 10) == b"still open"
    server.close()
    with suppress(StreamClosed):  # A socket is reset.
        assert await client.receive_into(memoryview(bytearray(1))) == 0
    with pytest.raises(StreamClosed):
        await server.receive_into(memoryview(bytearray(1)))
    server.close()


async def test_socket_to_be_reset_sends_a_reset() -> None:
    client, server = tcp_pair()
    server.reset_on_close()
    server.close()
    server.reset_on_close()
    with pytest.raises(StreamClosed, match=os.strerror(errno.ECONNRESET)):
        await client.receive_into(memoryview(bytearray(1)))
    client.close()
