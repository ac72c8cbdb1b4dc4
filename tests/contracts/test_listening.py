"""The contract of connection sources, over TCP and in memory."""

from __future__ import annotations

import errno
import socket
from abc import ABC, abstractmethod
from collections.abc import Iterator

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from minibroker.runtime.addressing import (
    MEMORY_BACKLOG,
    ConnectionSource,
    MemorySource,
    TcpSource,
)
from minibroker.runtime.handoff import Connection, as_stream
from minibroker.runtime.stream import ByteStream, SocketStream


class Place(ABC):
    """A source and how its clients connect."""

    source: ConnectionSource

    @abstractmethod
    async def connect(self) -> ByteStream: ...

    @abstractmethod
    def close(self) -> None: ...


class Tcp(Place):
    def __init__(self) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.source = TcpSource(self.listening)

    async def connect(self) -> ByteStream:
        stream = await trio.open_tcp_stream("127.0.0.1", self.listening.getsockname()[1])
        return SocketStream(socket.socket(fileno=stream.socket.detach()))

    def close(self) -> None:
        self.listening.close()


class Memory(Place):
    def __init__(self) -> None:
        self.source: MemorySource = MemorySource()

    async def connect(self) -> ByteStream:
        return await self.source.connect()

    def close(self) -> None:
        pass  # Nothing of the system's is held.


@pytest.fixture(params=[Tcp, Memory])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    made: Place = request.param()
    yield made
    made.close()


async def word(stream: ByteStream) -> bytes:
    room = memoryview(bytearray(10))
    return bytes(room[: await stream.receive_into(room)])


async def test_each_connection_is_accepted_once(place: Place) -> None:
    clients = [await place.connect() for _ in range(3)]
    servers: list[ByteStream] = []

    async def accept() -> None:
        servers.append(as_stream(await place.source.accept()))

    async with trio.open_nursery() as nursery:
        for _ in clients:
            nursery.start_soon(accept)
    by_peer = {server.peer: server for server in servers}
    for number, client in enumerate(clients):
        await client.send_all(b"%d" % number)
        assert await word(by_peer[client.local]) == b"%d" % number
        assert client.peer == by_peer[client.local].local
    for stream in (*clients, *servers):
        stream.close()


async def test_cancelled_accept_loses_no_connection(place: Place) -> None:
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(place.source.accept)
            await wait_all_tasks_blocked()
            scope.cancel()
    client = await place.connect()
    server = as_stream(await place.source.accept())
    await server.send_all(b"hi")
    assert await word(client) == b"hi"
    client.close()
    server.close()


async def test_tcp_connection_is_nonblocking_with_nodelay() -> None:
    place = Tcp()
    client = await place.connect()
    accepted = await place.source.accept()
    assert isinstance(accepted, socket.socket)
    stream = as_stream(accepted)
    assert not accepted.getblocking()
    assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    stream.close()
    client.close()
    place.close()


class Fickle(socket.socket):
    """A listening socket whose first clients cause errors."""

    troubles: list[int]

    def accept(self) -> tuple[socket.socket, object]:
        if self.troubles:
            raise OSError(self.troubles.pop(), "trouble")
        return super().accept()


async def test_accept_skips_aborted_connection_and_raises_on_emfile() -> None:
    with Fickle() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        source = TcpSource(listening)
        listening.troubles = [errno.EPROTO, errno.ECONNABORTED]
        with socket.create_connection(listening.getsockname()):
            connection: Connection = await source.accept()
            connection.close()
            assert listening.troubles == []
            listening.troubles = [errno.EMFILE]
            with pytest.raises(OSError, match="trouble"):
                await source.accept()


async def test_memory_connect_blocks_if_backlog_is_full() -> None:
    source = MemorySource(("127.0.0.1", 9094))
    clients = [await source.connect("10.1.1.1") for _ in range(MEMORY_BACKLOG)]
    assert len({client.local for client in clients}) == MEMORY_BACKLOG
    assert {client.local[0] for client in clients} == {"10.1.1.1"}
    with trio.move_on_after(0) as scope:
        await source.connect()
    assert scope.cancelled_caught
    assert as_stream(await source.accept()).local == ("127.0.0.1", 9094)
    await source.connect()
