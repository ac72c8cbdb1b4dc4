from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from minibroker.broker.security.handshakes import Pem, client_context
from minibroker.broker.settings.setting import HostPort, parse_host_port
from minibroker.lab.proxy.exchange import UnexpectedFrame
from minibroker.lab.proxy.streams import (
    JOINED_BYTES_MAX,
    FrameReader,
    UpstreamLost,
    check_broker,
    connect,
    send_frame,
    with_length,
)
from minibroker.runtime.stream import MEMORY_STREAM_BYTES_MAX, memory_stream_pair
from minibroker.testing import MiniBroker
from tests.broker.network.certificates import authority, keystore, truststore


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


LOOPBACK = "127.0.0.1"
PASSWORD = "ssl.key.password"


@asynccontextmanager
async def echo(tls: ssl.SSLContext | None = None) -> AsyncIterator[HostPort]:
    """A server that sends back what it receives."""

    async def serve(stream: trio.SocketStream) -> None:
        both: Any = stream if tls is None else trio.SSLStream(stream, tls, server_side=True)
        try:
            while data := await both.receive_some():
                await both.send_all(data)
        except trio.BrokenResourceError:
            pass
        finally:
            await trio.aclose_forcefully(both)

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, serve, 0, host=LOOPBACK))
        yield HostPort(*listener.socket.getsockname()[:2])
        nursery.cancel_scope.cancel()


@pytest.fixture
def server(tmp_path: Path) -> ssl.SSLContext:
    """The context of a server for 127.0.0.1 and localhost."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keystore(tmp_path))
    return context


def trusting(folder: Path, *, checks_host: bool = True) -> ssl.SSLContext:
    return client_context(Pem(checks_host, truststore=str(truststore(folder))), PASSWORD)


async def reason_of(broker: HostPort, context: ssl.SSLContext) -> str:
    with pytest.raises(UpstreamLost) as raised:
        await connect(broker, context)
    return str(raised.value)


async def test_connection_with_tls_passes_bytes(server: ssl.SSLContext, tmp_path: Path) -> None:
    async with echo(server) as broker:
        stream = await connect(broker, trusting(tmp_path))
        assert stream.peer == broker
        for data in (b"one", b"x" * 300_000):
            received = memoryview(bytearray(len(data)))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stream.send_all, data)
                assert await stream.receive_exactly(received) == len(data)
            assert received == data
        stream.close()


async def test_certificate_must_be_trusted(server: ssl.SSLContext) -> None:
    async with echo(server) as broker:
        text = await reason_of(broker, client_context(Pem(checks_host=True), PASSWORD))
    assert text.startswith(f"broker {broker} can't be reached: its certificate is not trusted")
    assert "ssl.truststore.location" in text


async def test_certificate_must_be_that_of_the_host(tmp_path: Path) -> None:
    async with echo(context_for("other.example")) as broker:
        text = await reason_of(broker, trusting(tmp_path))
        assert "Use a host name in --upstream that its certificate contains" in text
        (await connect(broker, trusting(tmp_path, checks_host=False))).close()


def context_for(host: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority().issue_cert(host).configure_cert(context)
    return context


async def test_listener_without_tls_is_named(tmp_path: Path) -> None:
    async with echo() as broker:
        text = await reason_of(broker, trusting(tmp_path))
    assert "check that the port in --upstream is that of a TLS listener" in text


async def test_broker_that_disconnects_in_the_handshake_is_named(tmp_path: Path) -> None:
    async def close(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, close, 0, host=LOOPBACK))
        broker = HostPort(*listener.socket.getsockname()[:2])
        text = await reason_of(broker, trusting(tmp_path))
        nursery.cancel_scope.cancel()
    assert "the TLS handshake failed (the broker disconnected)" in text


async def test_handshake_has_a_limit_of_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minibroker.lab.proxy.streams.CONNECT_S", 0.05)

    async def wait(_: trio.SocketStream) -> None:
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, wait, 0, host=LOOPBACK))
        broker = HostPort(*listener.socket.getsockname()[:2])
        text = await reason_of(broker, trusting(tmp_path))
        nursery.cancel_scope.cancel()
    assert text.endswith("no connection within 0.05 s")


async def test_broker_answers_before_the_proxy_is_ready(minibroker: MiniBroker) -> None:
    await check_broker(parse_host_port(minibroker.bootstrap_servers), None)


async def test_listener_that_requires_tls_is_named(server: ssl.SSLContext) -> None:
    async with echo(server) as broker:
        with pytest.raises(UpstreamLost, match="requires TLS, name a file by --command-config"):
            await check_broker(broker, None)


async def test_listener_that_is_no_broker_is_named(tmp_path: Path, server: ssl.SSLContext) -> None:
    async with echo(server) as broker:
        with pytest.raises(UpstreamLost, match=r"it does not answer requests$"):
            await check_broker(broker, trusting(tmp_path))


async def test_listener_that_never_answers_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minibroker.lab.proxy.streams.ANSWER_S", 0.05)
    with (
        socket.create_server((LOOPBACK, 0)) as silent,
        pytest.raises(UpstreamLost, match="it does not answer requests"),
    ):
        await check_broker(HostPort(*silent.getsockname()[:2]), None)
